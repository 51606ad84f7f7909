"""`shmring.multiprocessing`: what CPython's own tests (test_multiprocessing_standard.py) do not cover."""

import asyncio
import importlib
import multiprocessing
import os
import signal
import socket
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import wait

import numpy as np
import pytest
from support.harness import PATIENCE, eventually
from support.programs import run_program, run_python
from support.threads import at_once, beside

import shmring.multiprocessing
from shmring.channels.queue_locks import QUEUE_NBYTES, lock_holders
from shmring.multiprocessing.connection import RingConnection

METHODS = ("fork", "spawn", "forkserver")
WAIT_S = 60 * PATIENCE
FORK = shmring.multiprocessing.get_context("fork")


class Point:
    """An object whose class has a reducer registered with ForkingPickler."""

    def __init__(self, x):
        self.x = x


def reduce_point(point):
    return Point, (point.x + 1,)


class Interrupting:
    """Pickling it is interrupted."""

    def __reduce__(self):
        raise KeyboardInterrupt


def echo(ends):
    """Sends back what it receives, until None comes."""
    while (x := ends.recv()) is not None:
        ends.send(x)


def put_all(q, items):
    for item in items:
        q.put(item)


def double(x):
    return x * 2


def take_end(ends):
    """Receives an end of another pipe, and sends into it."""
    ends.recv().send("through the pipe that came through a pipe")


def start(method, target, *args):
    process = shmring.multiprocessing.get_context(method).Process(target=target, args=args)
    process.start()
    return process


def end(process):
    process.join(WAIT_S)
    assert process.exitcode == 0


# ---- contexts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_context_is_one_of_the_standard_library(method):
    context = shmring.multiprocessing.get_context(method)
    assert isinstance(context, type(multiprocessing.get_context(method)))
    assert context.get_start_method() == method
    assert context.get_context() is context
    assert context.get_context("spawn") is shmring.multiprocessing.get_context("spawn")
    assert isinstance(context.Lock(), type(multiprocessing.Lock()))


def test_the_module_has_the_names_of_the_standard_one():
    assert set(multiprocessing.__all__) <= set(dir(shmring.multiprocessing))
    assert issubclass(shmring.multiprocessing.Process, multiprocessing.Process)
    assert shmring.multiprocessing.process is multiprocessing.process
    q = shmring.multiprocessing.Queue()
    assert isinstance(q, multiprocessing.queues.Queue)
    assert isinstance(q._reader, RingConnection)
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        shmring.multiprocessing.get_context("thread")


def test_modules_of_the_standard_one_are_found_in_ours():
    program = (
        "from shmring.multiprocessing import pool, shared_memory; import shmring.multiprocessing as ours;"
        "from shmring.multiprocessing.connection import Listener, deliver_challenge;"
        "from shmring.multiprocessing.context import BaseContext;"
        "from shmring.multiprocessing.queues import Empty;"
        "import multiprocessing.managers as managers;"
        "print(ours.managers is managers, pool.ThreadPool.__module__);"
        "print(hasattr(ours, 'threads'), hasattr(ours.connection, 'threads'))"
    )
    assert run_python("-c", program).split() == ["True", "multiprocessing.pool", "False", "False"]


def test_every_module_of_the_standard_one_can_be_imported_from_ours():
    program = (
        "import shmring.multiprocessing.dummy, shmring.multiprocessing.pool as pool;"
        "from shmring.multiprocessing.managers import BaseManager;"
        "import multiprocessing.managers, shmring.multiprocessing as ours;"
        "print(ours.dummy.__name__, pool.__name__, BaseManager is multiprocessing.managers.BaseManager)"
    )
    expected = ["multiprocessing.dummy", "shmring.multiprocessing.pool", "True"]
    assert run_python("-c", program).split() == expected
    with pytest.raises(ModuleNotFoundError, match=r"shmring\.multiprocessing\.threads"):
        importlib.import_module("shmring.multiprocessing.threads")


# ---- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", METHODS)
def test_objects_of_any_size_come_back_as_they_went(method):
    ours, theirs = shmring.multiprocessing.get_context(method).Pipe()
    process = start(method, echo, theirs)
    theirs.close()
    big = np.arange(3 << 17, dtype=np.float64)
    for x in (1, "text", {"a": [big, big[:5]], "b": b"x" * (2 << 20)}, big.reshape(2, -1), b"", [None] * 1000):
        ours.send(x)
        got = ours.recv()
        np.testing.assert_equal(got, x)
    assert got is not x
    ours.send(big)
    got = ours.recv()
    got[0] = 7  # arrays own their memory, and are writable
    ours.send(None)
    end(process)
    with pytest.raises(EOFError):
        ours.recv()
    with pytest.raises(BrokenPipeError):
        ours.send(1)


def test_bytes_of_an_object_are_its_pickle():
    reader, writer = FORK.Pipe(duplex=False)
    big = np.arange(1 << 15, dtype=np.float64)  # beside the stream
    for x in (big, [1, "a"]):
        with beside(writer.send, x):
            np.testing.assert_equal(reduction.ForkingPickler.loads(reader.recv_bytes()), x)
    writer.send_bytes(reduction.ForkingPickler.dumps({"b": 2}))
    assert reader.recv() == {"b": 2}


@pytest.mark.parametrize(
    ("nbytes", "error"),
    [
        (4097.9, TypeError),
        ("4096", TypeError),
        (None, TypeError),
        (True, TypeError),
        (0, ValueError),
        (-1, ValueError),
        (1 << 40, ValueError),
    ],
)
def test_a_pipe_of_an_impossible_capacity_is_refused(nbytes, error):
    with pytest.raises(error, match="capacity_nbytes="):
        shmring.multiprocessing.connection.Pipe(capacity_nbytes=nbytes)


@pytest.mark.leaks
def test_an_end_goes_through_a_pipe():
    ours, theirs = FORK.Pipe()
    process = start("fork", take_end, theirs)
    reader, writer = FORK.Pipe(duplex=False)
    ours.send(writer)
    writer.close()
    assert reader.recv() == "through the pipe that came through a pipe"
    end(process)
    with pytest.raises(EOFError):
        reader.recv()


def test_the_descriptor_is_readable_exactly_while_there_is_a_message():
    reader, writer = FORK.Pipe(duplex=False)
    writer.send(0)  # before the descriptor was ever asked for
    for i in range(3):
        assert wait([reader], 0) == [reader]
        writer.send(i + 1)
        assert reader.recv() == i
        assert wait([reader], 0) == [reader]
    assert reader.recv() == 3
    assert wait([reader], 0) == []
    writer.close()
    assert wait([reader], WAIT_S) == [reader]
    assert reader.poll()
    with pytest.raises(EOFError):
        reader.recv()


def test_an_event_loop_reads_a_connection_without_waiting():
    reader, writer = FORK.Pipe(duplex=False)
    got = []

    async def receive():
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def take():
            got.append(reader.recv())
            if len(got) == 200:
                done.set()

        loop.add_reader(reader.fileno(), take)
        with beside(lambda: [writer.send(i) for i in range(200)]):
            await asyncio.wait_for(done.wait(), WAIT_S)
        loop.remove_reader(reader.fileno())

    asyncio.run(receive())
    assert got == list(range(200))


def test_a_killed_peer_ends_every_wait():
    ours, theirs = FORK.Pipe()
    process = start("fork", echo, theirs)
    theirs.close()

    def fill():
        with pytest.raises(BrokenPipeError):
            while True:
                ours.send(bytes(1 << 16))  # until the ring is full: the child's way back is not read

    with beside(fill):
        assert ours.poll(WAIT_S)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with pytest.raises(EOFError):
        while True:
            ours.recv()


def test_a_closed_connection_wakes_the_other_end_and_refuses_calls():
    reader, writer = FORK.Pipe(duplex=False)
    at_once(partial(check_end, reader), writer.close)
    for call in (reader.send, lambda x: writer.send(x), writer.send_bytes):
        with pytest.raises(OSError, match=r"read-only|handle is closed"):
            call(b"x")
    reader.close()
    with pytest.raises(OSError, match="handle is closed"):
        reader.poll()


def check_end(reader):
    """That nothing is left to come."""
    with pytest.raises(EOFError):
        reader.recv()


def test_several_threads_use_one_connection():
    ours, theirs = FORK.Pipe()
    sending = [partial(put_all, Sending(ours), range(i * 500, i * 500 + 500)) for i in range(2)]
    received = at_once(*sending, *[lambda: [theirs.recv() for _ in range(500)]] * 2)
    assert sorted(received[2] + received[3]) == list(range(1000))


class Sending:
    """A connection with the method of a queue."""

    def __init__(self, connection):
        self.put = connection.send


def test_what_does_not_pickle_raises_as_in_the_standard_library():
    ours, theirs = FORK.Pipe()
    errors = []
    for a in (ours, multiprocessing.Pipe()[0]):
        with pytest.raises(Exception) as caught:
            a.send(lambda: 0)
        errors.append(caught.type)
    assert errors[0] is errors[1]
    ours.send(1)
    assert theirs.recv() == 1


def test_reducers_of_the_forking_pickler_are_used():
    reduction.register(Point, reduce_point)
    try:
        ours, theirs = FORK.Pipe()
        ours.send([Point(1)])
        assert theirs.recv()[0].x == 2
    finally:
        del reduction.ForkingPickler._extra_reducers[Point]


@pytest.mark.parametrize("count", [6, 3000, 300_000])  # in the stream, beside it, in pieces
def test_a_read_only_array_arrives_writable_as_in_the_standard_library(count):
    ours, theirs = FORK.Pipe()
    x = np.arange(count, dtype=np.float64)
    for sent in (x, x.reshape(-1, 2), x.reshape(2, -1).T, x[::2]):
        sent.flags.writeable = False
        with beside(ours.send, {"a": [sent, sent]}):
            got, same = theirs.recv()["a"]
        np.testing.assert_array_equal(got, sent)
        assert got is same
        got[...] = -1
        assert sent.min() == 0


@pytest.mark.leaks
def test_a_socket_goes_through_a_pipe():
    ours, theirs = FORK.Pipe()
    near, far = socket.socketpair()
    with near:
        ours.send(far)
        far.close()
        with theirs.recv() as got:
            got.sendall(b"here")
            assert near.recv(4) == b"here"


# ---- queues ----------------------------------------------------------------------------------------------------------


def test_put_never_blocks_without_a_maxsize_and_keeps_the_order():
    q = FORK.Queue()
    items = [bytes([i % 250]) * (i % 7 * 40_000) for i in range(200)]  # 24 MB, in a ring of 1 MiB
    for item in items:
        q.put(item)
    assert q.qsize() == 200
    assert [q.get() for _ in items] == items
    q.put("after the thread has fed all")
    assert q.get(timeout=WAIT_S) == "after the thread has fed all"
    q.close()
    q.join_thread()


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", METHODS)
def test_several_processes_put_and_one_gets_all(method):
    context = shmring.multiprocessing.get_context(method)
    q = context.Queue(5)
    processes = [start(method, put_all, q, [(i, j) for j in range(40)]) for i in range(3)]
    got = [q.get(timeout=WAIT_S) for _ in range(120)]
    for process in processes:
        end(process)
    for i in range(3):
        assert [item for item in got if item[0] == i] == [(i, j) for j in range(40)]
    assert q.empty()
    q.close()


def test_a_consumer_that_is_killed_while_it_waits_leaves_the_queue_to_others():
    q = FORK.Queue()
    process = start("fork", q.get)
    eventually(partial(check_getting, q, process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    q.put("for the survivor")  # the standard library's lock would stay with the dead process
    assert q.get(timeout=WAIT_S) == "for the survivor"
    q.close()


def check_getting(q, pid):
    """That the main thread of a process has the receiving end of a queue."""
    memory = q._reader._incoming.channel
    with memoryview(memory.mapping) as view:
        assert lock_holders(bytes(view[memory.queue_offset :][:QUEUE_NBYTES]))[1] == pid


def test_ctrl_c_while_an_item_is_pickled_gives_its_place_back():
    q = FORK.Queue(1)
    with pytest.raises(KeyboardInterrupt):
        q.put(Interrupting())
    q.put(1, timeout=WAIT_S)
    assert q.get(timeout=WAIT_S) == 1


IDLE = """
import threading, shmring.multiprocessing
from queue import Empty

def wait_in(call):
    try:
        call(timeout=0.3)
    except Empty:
        pass

q, (reader, _writer) = shmring.multiprocessing.Queue(), shmring.multiprocessing.Pipe(False)
for call in (q.get, q.get, reader.poll, reader.poll):   # of each two one waits for the other
    threading.Thread(target=wait_in, args=(call,)).start()
"""


def test_an_idle_process_writes_no_notes():
    environ = {**os.environ, "SHMRING_WAIT_NOTES": "0.05"}
    assert run_program(sys.executable, "-c", IDLE, env=environ).stderr == ""


def test_a_queue_of_items_that_are_reported_done():
    q = FORK.JoinableQueue()
    for i in range(3):
        q.put(i)
    for _ in range(3):
        q.get()
        q.task_done()
    q.join()
    with pytest.raises(ValueError, match="too many times"):
        q.task_done()
    q.close()


# ---- pools -----------------------------------------------------------------------------------------------------------


@pytest.mark.leaks
@pytest.mark.parametrize("method", METHODS)
def test_a_pool_maps_over_large_arrays(method):
    arrays = [np.full(200_000, float(i)) for i in range(4)]
    with shmring.multiprocessing.get_context(method).Pool(2) as pool:
        for i, got in enumerate(pool.imap(double, arrays)):
            np.testing.assert_array_equal(got, arrays[i] * 2)
        pool.close()
        pool.join()


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", METHODS)
def test_an_executor_of_the_standard_library_takes_the_context(method):
    with ProcessPoolExecutor(2, mp_context=shmring.multiprocessing.get_context(method)) as executor:
        assert isinstance(executor._result_queue, shmring.multiprocessing.queues.SimpleQueue)
        assert list(executor.map(double, range(50), timeout=WAIT_S)) == [2 * i for i in range(50)]


@pytest.mark.leaks
def test_joblibs_backend_takes_the_context():
    joblib = pytest.importorskip("joblib")
    with joblib.parallel_config("multiprocessing", context=FORK):
        got = joblib.Parallel(2)(joblib.delayed(double)(np.full(1000, i)) for i in range(5))
    np.testing.assert_array_equal(got, [np.full(1000, 2 * i) for i in range(5)])
