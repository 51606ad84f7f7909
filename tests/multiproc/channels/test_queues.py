"""Queues: the behaviour of multiprocessing's queues, and that no killed process makes the queue unusable."""

import ast
import multiprocessing
import os
import queue
import random
import signal
import time

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE
from support.interrupts import interrupted_by_ctrl_c
from support.threads import beside

import shmring
from shmring import ClosedError, ObjectError
from shmring.core.ring.inspect import look


def test_items_come_out_as_they_went_in():
    q = shmring.Queue()
    items = [
        None, 3, "text", b"bytes", bytearray(b"array"), {"a": [1, 2]}, (1, (2,)), b"", np.arange(6.0).reshape(2, 3),
        np.array(5), np.zeros(0), np.array(["a", "bc"]), np.zeros(3, [("x", "i4"), ("y", "f8")]), np.arange(10)[::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)), np.array([{}, None]), slice(3), np.float32(1.5), memoryview,
    ]  # fmt: skip
    for item in items:
        q.put(item)
    assert q.qsize() == len(items)
    for item in items:
        got = q.get()
        assert type(got) is type(item)
        if isinstance(item, np.ndarray):
            assert got.dtype == item.dtype
            assert got.flags.writeable
            np.testing.assert_array_equal(got, item)
        else:
            assert got == item
    assert q.empty()


def test_full_and_empty_are_those_of_the_standard_library():
    q = shmring.Queue(3)
    assert q.empty()
    assert not q.full()
    for i in range(3):
        q.put(i, True, 0.1)
    assert q.full()
    assert q.qsize() == 3
    calls = (q.put_nowait, lambda x: q.put(x, False), lambda x: q.put(x, timeout=0.02), lambda x: q.put(x, True, 0))
    for call in calls:
        with pytest.raises(queue.Full):
            call(4)
    assert [q.get(), q.get_nowait(), q.get(timeout=1)] == [0, 1, 2]
    for call in (q.get_nowait, lambda: q.get(False), lambda: q.get(timeout=0.02), lambda: q.get(True, 0)):
        with pytest.raises(queue.Empty):
            call()


def test_a_put_waits_for_room_and_a_get_for_an_item():
    for q in (shmring.Queue(1), shmring.Queue(capacity_nbytes=64)):
        with beside(lambda q=q: [q.get() for _ in range(200)]) as getter:
            for i in range(200):
                q.put(b"%d" % i)
        assert getter.result == [b"%d" % i for i in range(200)]


def test_what_does_not_pickle_is_refused_and_leaves_the_queue_usable():
    q = shmring.Queue()
    with pytest.raises(ObjectError):
        q.put(lambda: 0)
    q.put(1)
    assert q.get() == 1


class Explosive:
    def __reduce__(self):
        return ast.literal_eval, ("1 +",)


def test_what_cannot_be_made_is_removed_and_reported():
    q = shmring.Queue()
    q.put(Explosive())
    q.put(2)
    with pytest.raises(ObjectError):
        q.get()
    assert q.get() == 2


def test_closed_here_is_open_elsewhere():
    q = shmring.Queue()
    pid = in_child(lambda: (q.close(), q.join_thread(), q.cancel_join_thread()))
    assert status_of(pid) == 0
    q.put(1)
    assert q.get() == 1
    q.close()
    for call in (lambda: q.put(1), q.get):
        with pytest.raises(ClosedError):
            call()
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize("bad", [{"maxsize": "x"}, {"maxsize": 1.5}, {"capacity_nbytes": 3}, {"capacity_nbytes": "1"}])
def test_bad_arguments_of_queues_are_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        shmring.Queue(**bad)


# ---- many on both sides ----


def produce(q, producer, count, seed):
    """Put numbered items, small and large."""
    generator = random.Random(seed + producer)
    for number in range(count):
        nbytes = generator.choice([0, 0, 10, 1000, 30_000])
        kind = generator.random()
        if kind < 0.5:
            q.put((producer, number, b"x" * nbytes))
        elif kind < 0.75:
            q.put(producer.to_bytes(4, "little") + number.to_bytes(4, "little") + b"y" * nbytes)
        else:
            q.put(np.array([producer, number] + [7] * (nbytes // 8)))


def consume(q, results):
    """Get until None comes; the producer and number of each item, in order."""
    got = []
    while True:
        item = q.get()
        if item is None:
            break
        if isinstance(item, bytes):
            item = int.from_bytes(item[:4], "little"), int.from_bytes(item[4:8], "little"), item[8:]
            assert item[2] == b"y" * len(item[2])
        elif isinstance(item, np.ndarray):
            assert (item[2:] == 7).all()
        else:
            assert item[2] == b"x" * len(item[2])
        got.append((int(item[0]), int(item[1])))
    results.put(got)


@pytest.mark.sample(1)
@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_any_number_put_and_any_number_get_by_every_start_method(method, seed):
    q, results = shmring.Queue(capacity_nbytes=1 << 14), shmring.Queue()
    nproducers, nconsumers, count = 3, 2, 300
    context = multiprocessing.get_context(method)
    producers = [context.Process(target=produce, args=(q, i, count, seed)) for i in range(nproducers)]
    consumers = [context.Process(target=consume, args=(q, results)) for _ in range(nconsumers)]
    for process in producers + consumers:
        process.start()
    for process in producers:
        process.join()
        assert process.exitcode == 0
    for _ in consumers:
        q.put(None)
    everything = [results.get(timeout=60 * PATIENCE) for _ in consumers]
    for process in consumers:
        process.join()
        assert process.exitcode == 0
    for got in everything:  # each consumer sees each producer's in order
        for producer in range(nproducers):
            numbers = [number for one, number in got if one == producer]
            assert numbers == sorted(numbers)
    together = sorted(item for got in everything for item in got)
    assert together == [(producer, number) for producer in range(nproducers) for number in range(count)]


# ---- killed processes ----


@pytest.mark.sample(1)
@needs_marks
@pytest.mark.parametrize("nbytes", [100, 50_000])
def test_producers_killed_at_any_moment_leave_the_queue_whole(nbytes, seed):
    generator = random.Random(seed)
    q = shmring.Queue(capacity_nbytes=1 << 12)

    def put_all():
        number = 0
        while True:
            q.put(number.to_bytes(4, "little") * (generator.choice([8, nbytes]) // 4))
            number += 1

    def is_whole(item):
        return item == item[:4] * (len(item) // 4)

    for _ in range(20):
        pids = [in_child(put_all) for _ in range(2)]
        until = time.monotonic() + generator.random() * 0.02
        victims = list(pids)
        while True:
            if victims and time.monotonic() > until:
                os.kill(victims.pop(), signal.SIGKILL)
                until += generator.random() * 0.01
            try:
                assert is_whole(q.get(timeout=0.02))
            except queue.Empty:
                if not victims:
                    break
        assert [status_of(pid) for pid in pids] == [-signal.SIGKILL] * 2
        with pytest.raises(queue.Empty):
            while True:
                assert is_whole(q.get_nowait())
        q.put("still here")
        assert q.get(timeout=10 * PATIENCE) == "still here"


@needs_marks
def test_consumers_killed_at_any_moment_take_at_most_one_item_each(seed):
    generator = random.Random(seed)
    q, received = shmring.Queue(capacity_nbytes=1 << 12), shmring.Queue()

    def get_all():
        while True:
            received.put(q.get())

    sent = 0
    for _ in range(15):
        pids = [in_child(get_all) for _ in range(2)]
        until = time.monotonic() + 0.005 + generator.random() * 0.02
        while time.monotonic() < until:
            try:
                q.put(sent, timeout=0.01)
                sent += 1
            except queue.Full:
                pass
            while not received.empty():
                received.get()
        for pid in pids:
            kill(pid)
    while True:
        try:
            received.get(timeout=0.1)
        except queue.Empty:
            break
    rest = []
    while not q.empty():
        rest.append(q.get(timeout=10 * PATIENCE))
    assert rest == sorted(rest)
    q.put("on")
    assert q.get(timeout=10 * PATIENCE) == "on"


def test_a_producer_that_ran_out_of_time_in_a_long_item_leaves_nothing_of_it():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    for _ in range(3):
        with pytest.raises(queue.Full):
            q.put(bytes(10_000), timeout=0.05)
        assert status_of(in_child(lambda: q.put(b"short", timeout=10 * PATIENCE))) == 0
        assert q.get(timeout=10 * PATIENCE) == b"short"
    assert q.empty()


def test_a_long_item_whose_time_is_over_before_it_begins_finds_the_queue_full():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    with pytest.raises(queue.Full):  # of one nanosecond nothing is left once the lock is held
        q.put(bytes(10_000), timeout=1e-9)
    q.put(b"after", timeout=10)
    assert q.get(timeout=10) == b"after"


def test_what_was_given_up_takes_no_room_and_what_was_before_it_stays():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    q.put(b"before")
    for _ in range(3):
        with pytest.raises(queue.Full):
            q.put(bytes(10_000), timeout=0.05)
        q.put(b"after", timeout=10 * PATIENCE)
    assert [q.get(timeout=10 * PATIENCE) for _ in range(4)] == [b"before", b"after", b"after", b"after"]
    assert q.empty()


@needs_marks
def test_what_a_killed_producer_had_begun_takes_no_room():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    pid = in_child(lambda: q.put(bytes(10_000)))
    while not fill_of(q):
        time.sleep(0.001)
    kill(pid)
    q.put(b"after", timeout=10 * PATIENCE)
    assert q.qsize() == 1
    assert q.get(timeout=10 * PATIENCE) == b"after"
    assert q.empty()


def fill_of(q):
    """How full its ring is."""
    memory = q.__reduce__()[1][1]
    return look(memoryview(memory.mapping)[memory.ring_offset :]).fill


# ---- JoinableQueue ----


def test_join_waits_until_all_is_done():
    q = shmring.JoinableQueue()
    q.join()
    for i in range(50):
        q.put(i)

    def work():
        for _ in range(25):
            q.get()
            time.sleep(0.001)
            q.task_done()

    pids = [in_child(work) for _ in range(2)]
    q.join()
    assert q.empty()
    assert [status_of(pid) for pid in pids] == [0, 0]
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


def test_several_may_join():
    q = shmring.JoinableQueue()
    q.put(1)
    pids = [in_child(q.join) for _ in range(3)]
    time.sleep(0.05)
    assert [os.waitpid(pid, os.WNOHANG)[0] for pid in pids] == [0, 0, 0]
    q.get()
    q.task_done()
    assert [status_of(pid) for pid in pids] == [0, 0, 0]


# ---- long items whose producer is stopped, and consumers that leave in the middle ----


def stopped_in_a_long_item(q, item, timeouts=(None,)):
    """A process that has put the beginning of an item, and is stopped, if one of the timeouts is long enough."""
    for timeout in timeouts:
        pid = in_child(q.put, item, True, timeout)
        while not fill_of(q) and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)
        if os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            return pid
    return pytest.fail("the process has ended")


LONG = np.arange(3000)


def got_or_empty(q):
    """What a short get() returns or raises."""
    try:
        return q.get(timeout=0.01)
    except queue.Empty as error:
        return error


def test_a_get_that_has_the_beginning_of_an_item_waits_for_the_rest():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    pid = stopped_in_a_long_item(q, LONG)
    with beside(got_or_empty, q) as getter:
        getter.join(0.1)
        assert getter.is_alive()
        os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(getter.result, LONG)
    assert status_of(pid) == 0
    assert q.empty()


def test_a_long_item_is_got_by_many_short_calls():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    pid = in_child(lambda: [q.put(LONG + i) for i in range(20)])
    for i in range(20):
        while True:
            try:
                got = q.get_nowait()
                break
            except queue.Empty:
                pass
        np.testing.assert_array_equal(got, LONG + i)
    assert status_of(pid) == 0
    assert q.empty()


def test_an_item_whose_consumer_dies_in_the_middle_is_lost_alone():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    for _ in range(3):
        pid = stopped_in_a_long_item(q, LONG)
        consumer = in_child(q.get)
        while fill_of(q):
            time.sleep(0.001)
        kill(consumer)
        os.kill(pid, signal.SIGCONT)
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # it needs room for the rest
            with pytest.raises(queue.Empty):
                q.get(timeout=0.1)
        assert status_of(pid) == 0
        q.put(b"next")
        assert q.get(timeout=20 * PATIENCE) == b"next"


@pytest.mark.parametrize("by", ["signal", "death", "time"])
def test_an_item_that_has_begun_and_whose_producer_goes_is_dropped(by):
    q = shmring.Queue(capacity_nbytes=1 << 10)
    pid = stopped_in_a_long_item(q, LONG, (0.1, 1, 10) if by == "time" else (None,))
    with beside(got_or_empty, q) as getter:
        getter.join(0.1)
        if by == "time":
            time.sleep(0.3)
        os.kill(pid, {"signal": signal.SIGINT, "death": signal.SIGKILL, "time": signal.SIGCONT}[by])
        os.kill(pid, signal.SIGCONT)
        status = status_of(pid)
    if isinstance(getter.result, queue.Empty):
        assert status == (-signal.SIGKILL if by == "death" else 1)
    else:  # it found room at once, before it saw to the signal or the time
        assert by != "death"
        np.testing.assert_array_equal(getter.result, LONG)
    q.put(b"next", timeout=20 * PATIENCE)
    assert q.get(timeout=20 * PATIENCE) == b"next"
    assert q.empty()


def test_an_item_too_long_to_be_put_without_waiting_is_refused():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    for call in (q.put_nowait, lambda x: q.put(x, timeout=0)):
        with pytest.raises(ValueError, match="without waiting: at most 504 bytes"):
            call(bytes(2000))
    assert q.empty()
    q.put_nowait(bytes(500))
    assert q.get_nowait() == bytes(500)


def test_an_interrupted_get_of_a_long_item_loses_nothing():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    pid = stopped_in_a_long_item(q, LONG)
    interrupted_by_ctrl_c(q.get)
    os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(q.get(timeout=20 * PATIENCE), LONG)
    assert status_of(pid) == 0


# ---- calls in signal handlers ----


# Beside the one of the queue, no function that is to be interrupted makes a call, in which a handler could run, too.
TOO_LONG = bytes(10_000)


def put_second(q):
    """To be interrupted: by a handler, the second line is executed."""
    return q.put(b"second", timeout=0.1)


def put_long(q):
    """The same."""
    return q.put(TOO_LONG, timeout=0.1)


def get_next(q):
    """The same."""
    return q.get(timeout=0.1)


def with_handler(make, call, outer):
    """Have a signal handler run ``call`` in the middle of ``outer``: the queue, and what each returned or raised."""
    results = []

    def run(function):
        try:
            results.append(function(q))
        except Exception as error:
            results.append(type(error))

    def handler(_number, frame):
        if frame.f_code is outer.__code__ and frame.f_lineno > outer.__code__.co_firstlineno:
            signal.setitimer(signal.ITIMER_REAL, 0)
            run(call)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(30):  # the time of ``outer`` may be over before the handler runs
            q = make()
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            run(outer)
            if len(results) == 2:
                return q, results
            results.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return pytest.fail("no handler has run in the middle")


IN_PUT = {
    "put": (lambda q: q.put(b"x"), [RuntimeError, queue.Full]),
    "put_nowait": (lambda q: q.put_nowait(b"x"), [RuntimeError, queue.Full]),
    "get": (lambda q: q.get(), [b"first", None]),
    "close": (lambda q: q.close(), [None, queue.Full]),
    "task_done": (lambda q: q.task_done(), [None, queue.Full]),
}
IN_GET = {
    "get": (lambda q: q.get(), [RuntimeError, queue.Empty]),
    "put": (lambda q: q.put(b"x"), [None, b"x"]),
    "put two": (lambda q: [q.put(b"x"), q.put(b"y")], [queue.Full, b"x"]),
    "put a long item": (lambda q: q.put(bytes(10_000)), [ValueError, queue.Empty]),
    "close": (lambda q: q.close(), [None, queue.Empty]),
    "task_done": (lambda q: q.task_done(), [ValueError, queue.Empty]),
}


@pytest.mark.parametrize("what", IN_PUT)
def test_a_call_in_a_handler_inside_a_waiting_put(what):
    def full():
        q = shmring.JoinableQueue(1)
        q.put(b"first")
        return q

    call, expected = IN_PUT[what]
    assert with_handler(full, call, put_second)[1] == expected


@pytest.mark.parametrize("what", IN_GET)
def test_a_call_in_a_handler_inside_a_waiting_get(what):
    call, expected = IN_GET[what]
    assert with_handler(lambda: shmring.JoinableQueue(1, capacity_nbytes=1 << 10), call, get_next)[1] == expected


def test_a_get_in_a_handler_in_the_middle_of_a_put_of_a_long_item():
    q, results = with_handler(lambda: shmring.Queue(capacity_nbytes=1 << 10), lambda q: q.get(), put_long)
    assert results == [queue.Empty, queue.Full]
    q.put(b"next", timeout=20 * PATIENCE)
    assert q.get(timeout=20 * PATIENCE) == b"next"


# ---- queues that were not made, and arguments out of range ----


class Forgetful(shmring.JoinableQueue):
    def __init__(self):
        pass


class Failing(shmring.JoinableQueue):
    def __init__(self, made):
        made.append(self)
        super().__init__(capacity_nbytes=3)


def half_made(how):
    """A queue whose constructor has not run, or has raised."""
    if how == "new":
        return shmring.JoinableQueue.__new__(shmring.JoinableQueue)
    if how == "forgetful":
        return Forgetful()
    made = []
    with pytest.raises(ValueError, match="capacity_nbytes"):
        Failing(made)
    return made[0]


@pytest.mark.parametrize("how", ["new", "forgetful", "failed"])
def test_a_queue_that_was_not_made_is_an_error_in_every_call(how):
    q = half_made(how)
    assert "not made" in repr(q)
    for call in (
        lambda: q.put(1), lambda: q.put(b""), lambda: q.put_nowait(1), q.get, q.get_nowait, q.qsize, q.empty, q.full,
        q.task_done, q.join, q.__reduce__,
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="not made"):
            call()
    q.close()
    q.join_thread()
    q.cancel_join_thread()


def test_a_queue_is_made_once():
    q = shmring.Queue()
    q.put(1)
    with pytest.raises(RuntimeError, match="already"):
        q.__init__()
    assert q.get() == 1


@pytest.mark.parametrize("value", [2**63, 2**70])
def test_sizes_out_of_range_are_named(value):
    for make in (lambda: shmring.Queue(value), lambda: shmring.Queue(capacity_nbytes=value)):
        with pytest.raises(ValueError, match=str(value)):
            make()
    assert shmring.Queue(2**63 - 1).empty()
    assert shmring.Queue(-value).empty()


# ---- pickle ----


def test_a_queue_without_pickle_carries_bytes_and_arrays_alone():
    q = shmring.Queue(allow_pickle=False)
    q.put(b"x")
    q.put(np.arange(3))
    with pytest.raises(ValueError, match="allow_pickle"):
        q.put({})
    assert q.get() == b"x"
    assert q.get().tolist() == [0, 1, 2]


@pytest.mark.leaks  # multiprocessing keeps a helper process
def test_the_setting_of_each_process_decides_about_pickle(monkeypatch):
    q = shmring.Queue()
    q.put({"a": 1})
    q.put(b"bytes")
    monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "0")
    process = multiprocessing.get_context("spawn").Process(target=get_without_pickle, args=(q,))
    process.start()
    process.join()
    assert process.exitcode == 0


def get_without_pickle(q):
    """Get an object, which is refused, and bytes."""
    with pytest.raises(ObjectError, match="allow_pickle"):
        q.get()
    assert q.get() == b"bytes"


def test_an_interrupted_wait_leaves_the_queue_usable():
    q = shmring.Queue()
    interrupted_by_ctrl_c(q.get)
    q.put(1)
    assert q.get() == 1
