"""Asynchronous work: the same results, in the order of the program, whatever threads, callbacks and ends do."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from support.children import in_child, status_of
from support.harness import PATIENCE, report
from support.interrupts import EnoughError
from support.on_ranks import on_processes, on_ranks
from support.programs import run_program
from support.threads import at_once

import shmring
from shmring import Work
from shmring.collectives.calls.progress_thread import TICK_S, await_release, progress_of
from shmring.errors import AbortedError, ClosedError, MismatchError


@on_ranks(1, 3)
def test_work_keeps_its_arrays_while_it_lasts_and_no_longer(comm):
    work = comm.all_reduce(np.full(200_000, comm.rank + 1.0), async_op=True)
    gc.collect()
    noise = [np.zeros(200_000) for _ in range(5)]
    assert (work.result() == sum(range(1, comm.size + 1))).all()
    assert not any(x.any() for x in noise)
    x = np.ones(3)
    gone = weakref.ref(x)
    comm.all_reduce(x, np.empty(3), async_op=True).wait()
    del x
    comm.barrier()
    while gone() is not None:  # until the progress thread has let go of it
        gc.collect()


@on_ranks(2)
def test_a_result_that_cannot_be_copied_into_the_array_is_the_error_of_its_work(comm):
    x = np.ones((4, 2))[:, 0]  # strided: the result is copied into it when it is complete
    if comm.rank == 0:
        work = comm.all_reduce(x, async_op=True)
        x.flags.writeable = False
        comm.send(np.zeros(1), 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="read-only"):
                work.wait()
        assert isinstance(work.exception(), ValueError)
    else:
        comm.recv(np.zeros(1), 0)
        comm.all_reduce(x)
    assert x.tolist() == [1 + comm.rank] * 4
    assert comm.all_reduce(np.ones(1)).tolist() == [2]


@on_ranks(2, 3)
def test_calls_made_at_once_come_after_the_work_submitted_before_them(comm, seed):
    shared = random.Random(seed)  # equal on all ranks
    own = random.Random(seed + comm.rank)
    works = []
    for i in range(200):
        x = np.full(shared.choice((1, 1000, 5000)), i, np.int64)
        if shared.random() < 0.7:
            works.append((i, comm.all_reduce(x, async_op=True)))
        else:
            comm.all_reduce(x)
            assert all(work.done() for _, work in works)
            assert (x == i * comm.size).all()
        if own.random() < 0.1:
            time.sleep(0.001)
        if own.random() < 0.1 and works:
            works[-1][1].wait()
    for i, work in works:
        assert (work.wait() == i * comm.size).all()


@on_ranks(1, 2, 3)
def test_callbacks_make_calls_in_the_place_where_they_were_added(comm, seed):
    """Each call adds up a number for its place in the program; any other order is a mismatch or a wrong sum."""
    own = random.Random(seed + comm.rank)
    log = []

    def number(value, count=1):
        return np.full(count, value, np.int64)

    def dawdle():
        if own.random() < 0.5:
            time.sleep(own.random() / 300)

    def callback(work):
        dawdle()
        log.append(int(comm.all_reduce(number(10, 2), op="max")[0]))
        inner = comm.all_reduce(number(20, 3), op="max", async_op=True)
        inner.add_done_callback(lambda w: log.append(int(comm.all_reduce(w.wait() + 1, op="max")[0])))
        if own.random() < 0.5:
            inner.wait()
        dawdle()
        log.append(int(comm.all_reduce(number(30, 4), op="max")[0]))
        inner = comm.all_reduce(number(40, 5), op="max", async_op=True)
        inner.add_done_callback(lambda w: log.append(int(w.wait()[0])))

    for _ in range(20):
        log.clear()
        first = comm.all_reduce(number(1, 6), async_op=True)
        dawdle()
        first.add_done_callback(callback)
        dawdle()
        second = comm.all_reduce(number(2, 7), async_op=True)
        dawdle()
        first.add_done_callback(lambda w: log.append(int(comm.all_reduce(number(50, 8), op="max")[0])))
        dawdle()
        comm.barrier()
        assert first.done()
        assert second.done()
        assert log == [10, 21, 30, 40, 50]


@on_ranks(2)
def test_a_chain_of_callbacks_may_be_longer_than_the_stack_is_deep(comm):
    done = threading.Event()
    left = [sys.getrecursionlimit() + 100]  # each a turn of the threads of both ranks

    def go_on(work):
        left[0] -= 1
        if left[0]:
            comm.all_reduce(np.ones(1), async_op=True).add_done_callback(go_on)
        else:
            done.set()

    comm.barrier(async_op=True).add_done_callback(go_on)
    done.wait()
    comm.barrier()
    assert left == [0]


@on_ranks(1, 2)
def test_callbacks_run_at_once_or_in_the_thread_and_their_errors_are_reported(comm):
    main, seen, unraisable = threading.get_ident(), [], []
    sys.unraisablehook = unraisable.append
    work = comm.barrier(async_op=True)
    work.wait()
    comm.barrier()
    work.add_done_callback(lambda w: seen.append((w is work, threading.get_ident() == main)))
    assert seen == [(True, True)]

    with pytest.raises(TypeError, match="takes a callable, not int"):
        work.add_done_callback(1)
    with pytest.raises(TypeError, match="async_op=True"):
        Work(1, work.wait)

    def fail(w):
        raise LookupError("in a callback")

    work.add_done_callback(fail)
    held = threading.Event()
    progress_of(comm._engine).append(held.wait)  # else the work could be done before its callbacks are added
    work = comm.barrier(async_op=True)
    work.add_done_callback(fail)
    work.add_done_callback(lambda w: seen.append((w is work, threading.get_ident() == main)))
    later = comm.barrier(async_op=True)

    def wait_for_what_comes_later(w):
        with pytest.raises(RuntimeError, match="comes after this callback"):
            latest.wait()
        seen.append("refused")

    later.add_done_callback(wait_for_what_comes_later)
    latest = comm.barrier(async_op=True)
    held.set()
    comm.barrier()
    assert seen == [(True, True), (True, False), "refused"]
    assert [str(u.exc_value) for u in unraisable] == ["in a callback"] * 2
    assert all(u.object is fail for u in unraisable)


@on_ranks(1, 2, 3)
def test_work_can_be_awaited(comm):
    async def one(i):
        return (await comm.all_reduce(np.full(10 ** (i % 6), i), async_op=True))[0]

    async def main():
        first = comm.barrier(async_op=True)
        assert await first is None
        assert await first is None  # again, when it is done
        sums = await asyncio.gather(*(one(i) for i in range(20)))
        late = comm.all_reduce(np.ones(4), async_op=True) if comm.rank else None
        if comm.rank == 0:
            # The loop is free while others are awaited.
            await asyncio.sleep(0.05)
            late = comm.all_reduce(np.ones(4), async_op=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.01)
        return sums, (await late).tolist()

    sums, late = asyncio.run(main())
    assert sums == [i * comm.size for i in range(20)]
    assert late == [comm.size] * 4


@on_ranks(2)
def test_a_wait_that_is_given_up_leaves_the_work_running(comm):
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)  # once rank 0 has given up
        assert comm.all_reduce(np.ones(2)).tolist() == [2, 2]
        return
    work = comm.all_reduce(np.ones(2), async_op=True)

    async def wait(work):
        return await work

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(work), 0.02)

    asyncio.run(main())
    with pytest.raises(TimeoutError, match=r"all_reduce.*not done after 0\.01 s"):
        work.wait(0.01)
    with pytest.raises(TimeoutError):
        work.exception(timeout=0)
    assert not work.done()
    assert "pending" in repr(work)
    comm.send(np.ones(1), 1)
    assert work.wait().tolist() == [2, 2]
    assert "all_reduce(sum, float64 x 2) done" in repr(work)


@on_ranks(2)
def test_bad_arguments_raise_where_the_work_is_submitted(comm):
    x = np.ones(4, np.float32)
    for error, bad in (
        (ValueError, lambda: comm.all_reduce(x, op="median", async_op=True)),
        (TypeError, lambda: comm.all_reduce([1], async_op=True)),
        (ValueError, lambda: comm.broadcast(x, root=99, async_op=True)),
        (ValueError, lambda: comm.barrier(timeout=-1, async_op=True)),
        (TypeError, lambda: comm.all_reduce(x, op="band", async_op=True)),
    ):
        if comm.rank == 0:
            with pytest.raises(error):
                bad()
    assert comm.all_reduce(x, async_op=True).wait().tolist() == [2] * 4


@on_ranks(2)
def test_errors_reach_waits_and_callbacks(comm):
    x = np.ones(5 if comm.rank else 4)
    seen = []
    work = comm.all_reduce(x, async_op=True)
    work.add_done_callback(lambda w: seen.append(type(w.exception())))
    with pytest.raises(MismatchError):
        work.wait()
    assert isinstance(work.exception(), MismatchError)
    assert "failed: MismatchError" in repr(work)
    with pytest.raises(MismatchError):
        comm.barrier(async_op=True)
    with pytest.raises(MismatchError):
        comm.barrier()
    assert seen == [MismatchError]


@on_ranks(2)
def test_close_waits_for_pending_work(comm):
    if comm.rank == 1:
        time.sleep(0.2)
        assert comm.all_reduce(np.ones(3)).tolist() == [2] * 3
        return
    work = comm.all_reduce(np.ones(3), async_op=True)
    comm.close()
    assert work.wait().tolist() == [2] * 3
    with pytest.raises(ClosedError):
        comm.barrier(async_op=True)
    comm.close()


@on_ranks(2, init={"timeout": 0.2})
def test_close_aborts_what_is_still_pending_after_the_timeout(comm):
    if comm.rank == 1:
        report("ready")
        with pytest.raises(AbortedError, match="pending work"):
            while True:
                time.sleep(0.05)
                if comm.is_broken:
                    comm.barrier()
        return
    work = comm.all_reduce(np.ones(3), timeout=None, async_op=True)
    comm.close()
    with pytest.raises(AbortedError, match=r"closed after waiting 0\.2 s for pending work"):
        work.wait()


@on_ranks(1, 2)
def test_a_callback_may_close_and_what_comes_after_it_fails(comm):
    comm.barrier(async_op=True).add_done_callback(lambda w: comm.close())
    with pytest.raises(ClosedError):
        comm.barrier(async_op=True).wait()


@on_ranks(2)
def test_there_is_one_thread_from_the_first_work_until_close(comm):
    before = threading.active_count()
    comm.barrier()
    assert threading.active_count() == before  # none without asynchronous work
    comm.barrier(async_op=True).wait()
    comm.barrier(async_op=True).wait()
    assert threading.active_count() == before + 1
    thread = next(t for t in threading.enumerate() if t.name.startswith("shmring "))
    assert thread.daemon
    comm.close()
    thread.join(60 * PATIENCE)
    assert not thread.is_alive()


@on_processes(1)
def test_the_thread_ends_with_a_communicator_that_is_dropped(rank):
    comm = shmring.init(rank=0, size=1, session=f"drop{os.getpid()}")
    assert comm.all_reduce(np.ones(2), async_op=True).wait().tolist() == [1, 1]
    thread = next(t for t in threading.enumerate() if t.name.startswith("shmring "))
    gone = weakref.ref(comm)
    del comm
    thread.join(60 * PATIENCE)
    gc.collect()
    assert gone() is None
    assert not thread.is_alive()


@on_ranks(2)
def test_a_forked_child_can_neither_wait_for_its_parents_work_nor_harm_it(comm):
    work = comm.all_reduce(np.ones(2), async_op=True) if comm.rank == 0 else None

    def child():
        calls = [comm.barrier, lambda: comm.barrier(async_op=True)]
        if work is not None:
            calls += [work.wait, lambda: work.add_done_callback(print)]
        for call in calls:
            with pytest.raises(ClosedError, match="parent"):
                call()
        comm.close()

    assert status_of(in_child(child)) == 0
    if comm.rank == 0:
        comm.send(np.ones(1), 1)
    else:
        comm.recv(np.empty(1), 0)  # else the work of rank 0 could be done before it forks
        work = comm.all_reduce(np.ones(2), async_op=True)
    assert work.wait().tolist() == [2, 2]


EXIT = """
import sys, time
import numpy as np
import shmring

comm = shmring.init()
if comm.rank == 0:
    work = [comm.all_reduce(np.ones(n), async_op=True) for n in (3, 100_000, 3)]
    work[0].add_done_callback(lambda w: time.sleep(0.01))
    print("left with", len(work))
else:
    try:
        while not comm.is_broken:
            time.sleep(0.01)
        while True:
            comm.barrier() if sys.argv[1] == "barrier" else comm.all_reduce(np.ones(4))
    except shmring.BrokenError as error:
        print("raised:", error)
"""


@pytest.mark.parametrize("other", ["barrier", "all_reduce"])
def test_a_program_that_ends_with_work_in_flight_ends_and_aborts_the_others(tmp_path, other):
    script = tmp_path / "leave.py"
    script.write_text(EXIT)
    done = run_program(sys.executable, "-m", "shmring", "run", "-n", "2", str(script), other)
    assert "left with 3" in done.stdout
    assert "rank 0 aborted: exited while asynchronous work was pending" in done.stdout
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr


LEAVE_IN_EVERY_WAY = """
import atexit, os, sys, threading, time


def look():
    print("left:", [thread.name for thread in threading.enumerate() if thread.name.startswith("shmring ")])


atexit.register(look)       # before shmring's own, hence run after them
import numpy as np
import shmring
import shmring.collectives.calls.progress_thread

shmring.collectives.calls.progress_thread.LAST_CALLBACK_S = 60  # its end is never waited for, on any machine
for turn in range(int(sys.argv[2])):
    if (pid := os.fork()) == 0:
        sys.setswitchinterval(1e-6)
        comms = [shmring.init(rank=0, size=1, session=f"{sys.argv[1]}{turn}-{i}") for i in range(4)]
        for comm in comms:
            work = comm.all_reduce(np.ones(3), async_op=True)
            if turn % 5 == 1:
                work.wait()
            if turn % 5 == 2:
                work.add_done_callback(lambda w: None)
            if turn % 5 == 3:
                comm.close()
            if turn % 5 == 4:       # a call begins after the exit has
                comm.all_reduce(np.ones(1 << 22), async_op=True).add_done_callback(lambda w: time.sleep(0.2))
                comm.barrier(async_op=True)
                break
        sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_no_thread_is_left_for_the_interpreter_to_end(tmp_path, long_run):
    # It would end one with a lock in its hands, and then ask for that lock.
    script = tmp_path / "leave.py"
    script.write_text(LEAVE_IN_EVERY_WAY)
    done = run_program(sys.executable, str(script), f"leave{os.getpid()}-", "40" if long_run else "5")
    assert set(done.stdout.splitlines()) == {"left: []"}
    assert done.stderr == ""


@on_ranks(2)
def test_threads_may_submit_at_the_same_time(comm):
    def submit():
        return [comm.all_reduce(np.ones(3), async_op=True) for _ in range(100)]

    assert sum(int(work.wait()[0]) for works in at_once(*[submit] * 4) for work in works) == 800


@on_ranks(1)
def test_one_thread_serves_though_a_signal_handler_has_raised_as_it_was_started(comm):
    """A signal handler raises inside of `Thread.start`, when the thread runs already; as it does by chance above."""
    start, started = threading.Thread.start, []

    def interrupted(thread):
        start(thread)
        started.append(thread)
        if len(started) == 1:
            raise EnoughError

    threading.Thread.start = interrupted
    with pytest.raises(EnoughError):
        comm.barrier(async_op=True)
    for _ in range(20):
        comm.barrier(async_op=True).wait()
    while sum(thread.is_alive() for thread in started) > 1:  # one that is not wanted ends at once
        time.sleep(0.001)
    comm.barrier(async_op=True).wait()
    assert sum(thread.is_alive() for thread in started) == 1


@on_ranks(1, 2, 3)
def test_work_can_be_done_by_the_thread_that_waits_for_it(comm):
    x = [np.full(5, float(comm.rank + k)) for k in range(6)]
    seen = []
    works = [comm.all_reduce(one, async_op=True) for one in x]
    works[3].add_done_callback(lambda _: seen.append(comm.all_reduce(np.ones(1), async_op=True).wait()))
    if comm.rank == 0:
        time.sleep(0.01)  # here the thread has begun, there it may not have
    works[-1].hasten()
    results = [work.wait() for work in works]
    comm.barrier()
    assert works[0].done()
    works[0].hasten()  # nothing to be done
    assert [one.tolist() for one in seen] == [[comm.size]]
    assert all((one == sum(r + k for r in range(comm.size))).all() for k, one in enumerate(results))


class LockOfAnotherThread:
    """Is released during the third sleep. A sleep without an end would miss a signal that came just before it."""

    def __init__(self):
        self.sleeps_s = []

    def acquire(self, timeout):
        assert 0 <= timeout < 1
        self.sleeps_s.append(timeout)
        return len(self.sleeps_s) == 3


def test_a_thread_that_waits_for_work_sleeps_in_ticks_so_that_no_signal_is_missed():
    lock = LockOfAnotherThread()
    assert await_release(lock, -1)
    assert lock.sleeps_s == [TICK_S] * 3
    held = threading.Lock()
    held.acquire()
    assert not await_release(held, 0)
    assert not await_release(held, 1)
    held.release()
    assert await_release(held, 0)
