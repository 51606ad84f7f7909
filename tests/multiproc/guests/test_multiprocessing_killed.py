"""`shmring.multiprocessing`, where the standard library fails: processes that are killed, handlers that raise, ends
that are closed in the middle of calls."""

import os
import queue
import signal
import socket
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE, eventually
from support.interrupts import Interrupts, interrupt_at_line, lines_executed
from support.threads import beside

import shmring.multiprocessing

FORK = shmring.multiprocessing.get_context("fork")
WAIT_S = 60 * PATIENCE
LONG = bytes(3 << 20)  # does not fit into the ring of a queue or a pipe


def assert_true(value):
    assert value


def is_begun(reader):
    """Whether a part of an item is in the ring of a connection, or was."""
    return reader._incoming.poll()


# ---- producers and consumers that are killed ----


@needs_marks
@pytest.mark.parametrize("make", [FORK.Queue, FORK.JoinableQueue])
def test_the_places_of_a_killed_producer_are_free(make):
    q = make(2)
    producer = in_child(lambda: (q.put(LONG), q.put(LONG), signal.pause()))
    eventually(lambda: assert_true(q.full()))
    with pytest.raises(queue.Full):
        q.put("no place", timeout=0.02)
    with beside(q.put, "next", timeout=WAIT_S):
        kill(producer)
    q.put("and another", timeout=WAIT_S)
    assert q.full()
    assert [q.get(timeout=WAIT_S) for _ in range(2)] == ["next", "and another"]
    assert q.empty()
    assert q.qsize() == 0


class Slow:
    """Pickling it takes until the process is killed."""

    def __reduce__(self):
        signal.pause()
        return Slow, ()


@needs_marks
@pytest.mark.parametrize("make", [FORK.Queue, FORK.JoinableQueue])
def test_a_place_is_taken_once_the_item_is_pickled(make):
    q = make(1)
    producer = in_child(q.put, Slow())
    time.sleep(0.1)
    assert not q.full()
    q.put(1, timeout=WAIT_S)
    kill(producer)
    assert q.get(timeout=WAIT_S) == 1


@needs_marks
def test_processes_killed_at_any_moment_leave_a_joinable_queue_to_others(seed):
    q, moment = FORK.JoinableQueue(3), np.random.default_rng(seed)

    def produce():
        while True:
            q.put(b"x" * int(moment.integers(1, 300_000)))

    def consume():
        while True:
            q.get()
            q.task_done()

    for _ in range(15):
        pids = [in_child(produce), in_child(consume), in_child(produce), in_child(consume)]
        time.sleep(moment.uniform(0.002, 0.02))
        for pid in pids:
            kill(pid)
    while True:
        try:
            q.get(timeout=0.2)
        except queue.Empty:
            break
    q.put("next", timeout=WAIT_S)
    assert q.get(timeout=WAIT_S) == "next"
    q.task_done()


# ---- torn messages ----


def torn(make):
    """Two ends of a pipe; another process has the sending end, too, and one was killed while it sent."""
    reader, writer = make()
    producer = in_child(writer.send, np.frombuffer(LONG, np.uint8))
    eventually(lambda: assert_true(is_begun(reader)))
    kill(producer)
    return reader, writer


def ends_of_queue():
    q = FORK.SimpleQueue()
    return q._reader, q._writer


@needs_marks
@pytest.mark.parametrize("make", [lambda: FORK.Pipe(False), ends_of_queue], ids=["pipe", "queue"])
def test_a_torn_message_makes_nothing_ready(make):
    reader, writer = torn(make)
    assert not reader.poll()
    assert not reader.poll(0.05)
    assert connection.wait([reader], 0.05) == []
    writer.send("next")
    assert connection.wait([reader], WAIT_S) == [reader]
    assert reader.recv() == "next"


@needs_marks
@pytest.mark.parametrize(
    "is_ready", [lambda r: r.poll(WAIT_S), lambda r: connection.wait([r], WAIT_S)], ids=["poll", "wait"]
)
def test_a_receive_of_a_message_that_was_ready_ends_when_that_is_torn(is_ready):
    reader, writer = FORK.Pipe(False)
    producer = in_child(writer.send_bytes, LONG)
    assert is_ready(reader)
    os.kill(producer, signal.SIGSTOP)
    os.waitpid(producer, os.WUNTRACED)
    with beside(lambda: (time.sleep(0.2), kill(producer))):
        with pytest.raises(ConnectionResetError, match="in the middle"):
            reader.recv()
    assert connection.wait([reader], 0) == []
    writer.send("next")
    assert reader.recv() == "next"


def long_result_and_death(seconds):
    """Dies when a part of the result is in the pipe."""
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    return np.zeros(40_000_000, np.uint8)


@needs_marks
@pytest.mark.leaks
@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.05, 0.1])
def test_an_executor_ends_whose_worker_dies_while_it_sends_a_result(seconds):
    with ProcessPoolExecutor(2, mp_context=FORK) as executor:
        future = executor.submit(long_result_and_death, seconds)
        with suppress(BrokenProcessPool):
            assert len(future.result(WAIT_S)) == 40_000_000  # it was quicker


def double_or_die(x):
    if x == 3:
        return long_result_and_death(0.01)
    return 2 * x


@needs_marks
@pytest.mark.leaks
def test_a_pool_goes_on_whose_worker_dies_while_it_sends_a_result():
    with FORK.Pool(2) as pool:
        results = [pool.apply_async(double_or_die, (i,)) for i in range(50)]
        assert [r.get(WAIT_S) for i, r in enumerate(results) if i != 3] == [2 * i for i in range(50) if i != 3]


# ---- pools ----


@pytest.mark.leaks
def test_the_thread_that_has_the_lock_of_a_queue_receives_alone():
    q = FORK.SimpleQueue()
    for i in range(3):
        q.put(i)
    with q._rlock:
        child = in_child(lambda: (q.get(), None)[1])
        time.sleep(0.1)
        assert os.waitpid(child, os.WNOHANG)[0] == 0
        assert q._reader.poll()
        assert [q._reader.recv(), q._reader.recv()] == [0, 1]
    assert status_of(child) == 0
    assert q.empty()


@needs_marks
def test_the_lock_of_a_queue_is_inherited_from_a_killed_holder():
    q = FORK.Queue()
    holder = in_child(lambda: (q._rlock.acquire(), q.put("held"), signal.pause()))
    eventually(lambda: assert_true(q.qsize()))
    assert not q._rlock.acquire(True, 0.05)
    kill(holder)
    assert q._rlock.acquire(True, WAIT_S)
    q._rlock.release()
    assert q.get(timeout=WAIT_S) == "held"
    with pytest.raises(ValueError, match="not taken"):
        q._rlock.release()


def same(x):
    return x


@pytest.mark.leaks
def test_pools_are_left_while_tasks_are_under_way():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            with FORK.Pool(3) as pool:
                pool.imap_unordered(same, range(10**7))
                time.sleep(0.02)
            pool.join()
    finally:
        sys.setswitchinterval(interval)


# ---- handlers that raise ----


class TimeUpError(Exception):
    pass


class Interrupted:
    """Pickling it runs the handler of a signal."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGUSR1)
        return Interrupted, ()


@pytest.mark.parametrize("error", [TimeUpError, TimeoutError, BrokenPipeError, KeyboardInterrupt])
@pytest.mark.parametrize("make", [FORK.Queue, FORK.JoinableQueue])
def test_what_a_handler_raises_while_an_item_is_pickled_reaches_the_caller(make, error):
    def handler(*_):
        raise error("time is up")

    q, before = make(1), signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(2):
            with pytest.raises(error, match="time is up"):
                q.put(Interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)
    q.put("next", timeout=WAIT_S)
    assert q.get(timeout=WAIT_S) == "next"


class Stubborn:
    def __reduce__(self):
        raise TimeUpError("of its own")


def test_an_error_of_pickling_is_printed_as_in_the_standard_library(capfd):
    q = FORK.Queue(1)
    q.put(Stubborn())
    assert capfd.readouterr().err.strip().endswith("TimeUpError: of its own")
    q.put("next", timeout=WAIT_S)
    assert q.get(timeout=WAIT_S) == "next"


@pytest.mark.parametrize("item", [1, [1, 2], LONG], ids=["int", "list", "in the backlog"])
@pytest.mark.parametrize("make", [FORK.Queue, FORK.JoinableQueue])
def test_ctrl_c_in_any_line_of_a_put_leaves_the_queue_usable(make, item):
    def interrupt(nth):
        """Interrupt a put at that line; 0: not at all. Returns the number of lines then."""
        q = make(1)
        count = lines_executed(lambda: q.put(item)) if nth == 0 else 0
        if nth:
            interrupt_at_line(lambda: q.put(item), nth)
        while not q.empty() or q.qsize():
            assert q.get(timeout=WAIT_S) == item
        q.put("next", timeout=WAIT_S)
        assert q.get(timeout=WAIT_S) == "next"
        q.close()
        q.join_thread()
        return count

    for nth in range(1, interrupt(0) + 1):
        interrupt(nth)


def test_handlers_that_raise_at_any_moment_leave_the_queue_usable(seed):
    q, interrupts = FORK.Queue(5), Interrupts(seed, 1e-6, 60e-6)
    try:
        for _ in range(2000):
            interrupts.during(q.put, None)
            while True:
                try:
                    q.get(timeout=0)
                except queue.Empty:
                    break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert interrupts.count
    for i in range(5):
        q.put(i, timeout=WAIT_S)
    assert [q.get(timeout=WAIT_S) for _ in range(5)] == list(range(5))


# ---- connections that are closed in the middle of a call ----


def test_a_connection_that_another_thread_closes_ends_a_receive_though_its_number_is_another_files():
    reader, writer = FORK.Pipe(False)
    near, far = socket.socketpair()
    with near, far:
        with beside(outcome_of, reader.recv) as receiving:
            time.sleep(0.1)
            number = reader.fileno()
            reader.close()
            os.dup2(near.fileno(), number)
            try:
                receiving.join()
            finally:
                os.close(number)
        assert isinstance(receiving.result, OSError)
        assert "closed" in str(receiving.result)
        far.send(b"not for the pipe")
        assert near.recv(99) == b"not for the pipe"
    writer.close()


def outcome_of(call):
    try:
        return call()
    except Exception as error:
        return error
