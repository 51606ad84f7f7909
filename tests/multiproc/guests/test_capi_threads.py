"""The C table in threads: calls need no GIL, and take turns with each other and with the methods."""

import threading
import time
from functools import partial

import numpy as np
from support.capi import ANY, IRECV, ISEND, PLAN, RECV, SEND, SENDRECV, TEST, WAIT, Table, on_table
from support.inputs import same_bits, values
from support.on_ranks import on_ranks
from support.threads import at_once, beside
from support.waits import until_waiting

from shmring.collectives.observe.look import LOOK_NBYTES, look
from shmring.dtypes import DTYPE_CODES

SLOTS = {"slot_nbytes": 65536}


@on_table(2, init=SLOTS)
def test_a_call_needs_no_gil(comm, table, handle):
    """The main thread holds the GIL until the thread that makes the calls has ended: with the GIL they would hang."""
    for count in (1, 1000, 100000):
        x = values("float32", count, comm.rank)
        expected = comm.all_reduce(x.copy())
        out = np.zeros_like(x)
        fields = {"x": x, "out": out, "count": count}
        table.call("all_reduce", handle, **fields)  # makes the plan, with the GIL
        out[:] = 0
        table.call("all_reduce", handle, **fields, keep_gil=True, times=20)
        assert same_bits(out, expected)
    for kind in ("barrier", "broadcast"):
        table.call(kind, handle, out=out, count=1, root=0, keep_gil=True, times=20)

    # A peer that is late by far more than a rank spins.
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.3)
    table.call("all_reduce", handle, **fields, keep_gil=True)
    assert same_bits(out, expected)

    # A message that is there, to a pair queue that is open.
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.zeros(1000, np.float32)
    comm.sendrecv(values("float32", 1000, 0), after, out, before)
    x = values("float32", 1000, 1, comm.rank)
    table.call(SEND, handle, x=x, count=1000, peer=after, tag=1, keep_gil=True)
    table.call("barrier", handle, keep_gil=True)
    table.call(RECV, handle, out=out, count=1000, peer=before, tag=1, keep_gil=True)
    assert same_bits(out, values("float32", 1000, 1, before))
    for what in (RECV, SENDRECV):  # the message comes long after the rank has gone to sleep
        table.call("barrier", handle, keep_gil=True)
        out[:] = 0
        if comm.rank == 1:
            time.sleep(0.3)
        fields = {"x": x, "count": 1000, "peer": after, "tag": 4, "source": before, "out_tag": 4, "out_count": 1000}
        if what == RECV:
            table.call(SEND, handle, **fields, keep_gil=True)
            fields |= {"peer": before, "x": None}
        table.call(what, handle, **fields | {"dtype": 1, "out_dtype": 1}, out=out, keep_gil=True)
        assert same_bits(out, values("float32", 1000, 1, before))
    sending = table.call(ISEND, handle, x=x, count=1000, peer=after, tag=2, keep_gil=True)
    table.call("barrier", handle, keep_gil=True)
    out[:] = 0
    receiving = table.call(IRECV, handle, out=out, count=1000, peer=before, tag=2, keep_gil=True)
    assert same_bits(out, values("float32", 1000, 1, before))
    assert table.call(TEST, request=sending.request, keep_gil=True).is_over
    assert table.call(WAIT, request=receiving.request, keep_gil=True).message.tag == 2
    fields = {"x": x, "count": 1000, "peer": after, "tag": 3, "source": before, "out_tag": 3}
    table.call(SEND, handle, **fields, keep_gil=True)
    table.call("barrier", handle, keep_gil=True)
    table.call(SENDRECV, handle, **fields, out=out, out_count=1000, out_dtype=1, keep_gil=True)
    table.call("barrier", handle, keep_gil=True)
    table.call(RECV, handle, out=out, count=1000, peer=before, tag=3, keep_gil=True)


@on_ranks(2)
def test_a_short_call_needs_no_gil_beside_shared_arrays_and_results(comm, c_library):
    shared, result = comm.empty(1000, np.float32), comm.shared_result(1000, np.float32)
    table = Table(c_library)
    handle = table.open(comm)
    for count in (1, 100):
        x = values("float32", count, comm.rank)
        expected, out = comm.all_reduce(x.copy()), np.zeros_like(x)
        table.call("all_reduce", handle, x=x, out=out, count=count, keep_gil=True, times=20)
        assert same_bits(out, expected)
    table.release(handle)
    del shared, result


@on_ranks(2)
def test_a_call_with_the_gil_lets_it_go_while_it_waits(comm, c_library, tmp_path):
    """A thread that has the GIL makes a call that waits, for its turn and for a peer: it lets the GIL go meanwhile."""
    table = Table(c_library)
    handle = table.open(comm)
    x, out = np.ones(1), np.zeros(1)
    counted, began = [], []
    is_counted = [tmp_path / str(i) for i in range(2)]  # while rank 0 was in this call
    ending = threading.Event()

    def count():
        while not ending.is_set():
            counted.append(None)
            if began and len(counted) > began[-1] + 1:
                is_counted[len(began) - 1].touch()
            time.sleep(0.001)

    def call():
        job = table.job("all_reduce", handle, x=x, out=out, count=1)
        table.run_here(job, keep_gil=True)
        assert (job.code, out[0]) == (0, comm.size)

    def wait_for(path):
        while not path.exists():
            time.sleep(0.005)

    if comm.rank == 1:
        wait_for(is_counted[0])
        comm.barrier()
        call()
        wait_for(is_counted[1])
        call()
        table.release(handle)
        return
    with beside(comm.barrier):  # has the turn when the next call begins, and needs the GIL to give it
        until_waiting(comm, 0)
        with beside(count):
            for _ in range(2):  # the first waits for its turn, the second for a peer
                began.append(len(counted))
                call()
            ending.set()
    table.release(handle)


@on_ranks(2, init=SLOTS)
def test_threads_call_on_communicators_of_their_own(comm, c_library):
    """A thread for each duplicate, all in calls at the same time."""
    table = Table(c_library)
    twins = [comm.dup() for _ in range(4)]
    handles = [table.open(twin) for twin in twins]
    xs = [values("float64", 500 * (i + 1), comm.rank, i) for i in range(4)]
    outs = [np.zeros_like(x) for x in xs]
    jobs = [
        table.job("all_reduce", handle, x=x, out=out, count=x.size, times=200)
        for handle, x, out in zip(handles, xs, outs, strict=True)
    ]
    jobs[3] = table.job(PLAN, handles[3], x=xs[3], out=outs[3], count=xs[3].size, times=200)
    table.run(*jobs)
    for twin, handle, x, out in zip(twins, handles, xs, outs, strict=True):
        assert same_bits(out, twin.all_reduce(x.copy()))
        table.release(handle)
        twin.close()


@on_table(2)
def test_threads_of_the_table_and_of_python_take_turns(comm, table, handle):
    """Threads of the table send and receive, threads of Python too, and one more makes collectives."""
    peer, times = comm.size - 1 - comm.rank, 300
    code = DTYPE_CODES["int64"]
    numbers = [np.array([tag], np.int64) for tag in range(8)]
    places = [np.zeros(1, np.int64) for _ in range(8)]
    jobs = [table.job(SEND, handle, x=numbers[tag], count=1, peer=peer, tag=tag, times=times) for tag in range(4)]
    jobs += [
        table.job(RECV, handle, out=places[tag].ctypes.data, dtype=code, count=1, peer=peer, tag=tag, times=times)
        for tag in range(4)
    ]
    total = np.zeros(100)

    def exchange(tag):
        for _ in range(times):
            comm.sendrecv(numbers[tag], peer, places[tag], peer, tag=tag, out_tag=tag)

    def add_up():
        for _ in range(times):
            total[:] = comm.rank
            comm.all_reduce(total)

    at_once(*[partial(exchange, tag) for tag in range(4, 8)], lambda: table.run(*jobs), add_up)
    assert not any(job.code for job in jobs), [job.text for job in jobs]
    assert [int(place[0]) for place in places] == list(range(8))
    assert total[0] == sum(range(comm.size))
    assert comm.iprobe(ANY, ANY) is None


@on_table(2)
def test_threads_of_the_table_and_of_python_sleep_for_messages(comm, table, handle):
    """Threads of the table and of Python sleep for messages, which come in any order, with pauses."""
    times, ntags = 30, 6
    if comm.rank == 0:
        rng = np.random.default_rng(11)
        for tag in rng.permutation(np.repeat(np.arange(ntags), times)):
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
            comm.send(np.array([tag], np.int64), 1, tag=int(tag))
        comm.barrier()
        return
    places = [np.zeros(1, np.int64) for _ in range(ntags)]
    fields = [{"out": places[tag], "count": 1, "peer": tag % 2 - 1, "tag": tag, "times": times} for tag in range(3)]
    jobs = [table.job(RECV, handle, **each) for each in fields]

    def receive(tag):
        assert all(comm.recv(places[tag], tag % 2 - 1, tag).tag == tag for _ in range(times))

    at_once(*[partial(receive, tag) for tag in range(3, ntags)], *[partial(table.run, job) for job in jobs])
    assert not any(job.code for job in jobs), [job.text for job in jobs]
    assert [int(place[0]) for place in places] == list(range(ntags))
    comm.barrier()
    assert comm.iprobe() is None


@on_table(2)
def test_others_find_since_when_a_call_of_the_table_waits_for_a_message(comm, table, handle):
    x = np.zeros(1)
    if comm.rank == 1:
        comm.recv(x, 0, 1)
        comm.barrier()
        table.call(RECV, handle, out=x, count=1, dtype=DTYPE_CODES["float64"], peer=0, tag=2)
    else:
        until_waiting(comm, 1)
        comm.send(x, 1, 1)
        began_ns = time.monotonic_ns()
        comm.barrier()
        while not (found := look(bytes(memoryview(comm._engine.segments[1].mapping)[:LOOK_NBYTES]))).message:
            time.sleep(0.001)
        assert found.message_peer == 0
        assert found.message_since >= began_ns  # and not when the wait before began
        comm.send(x, 1, 2)


@on_ranks(2)
def test_a_handle_is_opened_while_threads_wait_for_their_turn(comm, c_library):
    """The turn begins to be shared while one thread has it and another one waits for it."""
    table = Table(c_library)
    if comm.rank == 1:
        time.sleep(0.3)
    with beside(comm.barrier), beside(comm.barrier), beside(comm.barrier):
        handle = table.open(comm)
    table.call("barrier", handle)
    second = table.open(comm)
    table.call("barrier", second)
    table.release(handle)
    table.release(second)


@on_table(2)
def test_asynchronous_work_comes_first(comm, table, handle):
    x = values("float32", 1000, comm.rank)
    works = [comm.all_reduce(x.copy(), async_op=True) for _ in range(20)]
    out = np.zeros_like(x)
    table.call("all_reduce", handle, x=x, out=out, count=1000)
    assert all(work.done() for work in works)
    assert same_bits(out, works[0].wait())


@on_table(2)
def test_more_plans_than_a_handle_keeps(comm, table, handle):
    x, out = np.ones(20000, np.float32), np.zeros(20000, np.float32)
    for _ in range(2):
        for count in range(2000, 2300):
            table.call("all_reduce", handle, x=x, out=out, count=count)
    assert (out[:2299] == comm.size).all()
