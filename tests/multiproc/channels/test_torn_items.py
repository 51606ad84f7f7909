"""Items whose producer does not live to complete them, and places of `maxsize` that die with their process."""

import os
import queue
import select
import signal

import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE, eventually
from support.threads import beside

import shmring
from shmring import PeerLostError
from shmring.core.ring.inspect import look

pytestmark = needs_marks

LONG = bytes(10_000)  # does not fit into a ring of 1 KiB
WAIT_S = 60 * PATIENCE


def fill_of(q):
    """How full its ring is."""
    memory = q.__reduce__()[1][1]
    return look(memoryview(memory.mapping)[memory.ring_offset :]).fill


def begun(q, item=LONG):
    """A process that has put the beginning of an item, and waits for room."""
    pid = in_child(q.put, item)
    eventually(lambda: assert_true(fill_of(q)))
    return pid


def assert_true(value):
    assert value


def readable(q, timeout=0):
    return bool(select.select([q], [], [], timeout)[0])


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_torn_item_makes_nothing_ready(is_watched):
    q = shmring.Queue(capacity_nbytes=1 << 10)
    if is_watched:
        assert not readable(q)
    kill(begun(q))
    assert not q.poll()
    assert not q.poll(0.05)
    assert q.empty()
    assert not readable(q)
    assert shmring.wait([q, shmring.Queue()], 0.05) == []
    q.put("next", timeout=WAIT_S)
    assert readable(q)
    assert q.poll()
    assert q.get(timeout=WAIT_S) == "next"
    assert q.empty()


def test_what_was_put_before_a_torn_item_is_ready():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    q.put(b"first")
    kill(begun(q))
    assert q.poll()
    assert q.get(timeout=WAIT_S) == b"first"
    assert not q.poll()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.02)


def test_a_waiting_poll_returns_no_torn_item():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    with beside(q.poll, 0.3) as waiting:
        kill(begun(q))
        waiting.join()
    assert waiting.result in (True, False)  # it may have looked while the producer lived
    assert not q.poll()


def test_an_item_whose_consumer_died_makes_nothing_ready():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    producer = begun(q)
    os.kill(producer, signal.SIGSTOP)
    os.waitpid(producer, os.WUNTRACED)
    consumer = in_child(q.get)
    eventually(lambda: assert_true(not fill_of(q)))
    kill(consumer)
    os.kill(producer, signal.SIGCONT)
    while not os.waitid(os.P_PID, producer, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        q.poll(0.01)
    assert status_of(producer) == 0
    assert not q.poll()
    assert not readable(q)
    q.put(b"next")
    assert q.get() == b"next"


def poll(q):
    return q.poll(WAIT_S)


@pytest.mark.parametrize("told_by", [poll, readable])
def test_a_get_without_a_timeout_of_an_item_that_was_ready_ends_when_that_is_torn(told_by):
    q = shmring.Queue(capacity_nbytes=1 << 10)
    assert not readable(q)
    producer = begun(q)
    assert told_by(q)
    os.kill(producer, signal.SIGSTOP)  # it lives, but does not go on
    os.waitpid(producer, os.WUNTRACED)

    def kill_when_got():
        eventually(lambda: assert_true(not fill_of(q)))
        kill(producer)

    with beside(kill_when_got):
        with pytest.raises(PeerLostError, match="The queue is usable"):
            q.get()
    assert not readable(q)
    q.put("next")
    assert q.get() == "next"


def test_a_get_that_was_told_nothing_waits_for_the_next_item():
    q = shmring.Queue(capacity_nbytes=1 << 10)
    with beside(q.get) as getter:
        producer = in_child(lambda: (q.put(LONG[:2000]), q.put(b"x" * 3_000_000)))
        getter.join()
        assert getter.result == LONG[:2000]
        with beside(q.get) as second:
            kill(producer)
            q.put("next")
            second.join()
    assert second.result in ("next", b"x" * 3_000_000)


# ---- places ----


def test_a_place_of_a_killed_producer_is_free():
    q = shmring.Queue(1, capacity_nbytes=1 << 10)
    producer = begun(q)
    assert q.full()
    kill(producer)
    eventually(lambda: assert_true(not q.full()))
    q.put("next", timeout=WAIT_S)
    assert q.full()
    assert q.get(timeout=WAIT_S) == "next"


def test_a_put_that_waits_for_a_place_gets_that_of_a_killed_producer():
    q = shmring.Queue(1, capacity_nbytes=1 << 10)
    producer = begun(q)
    with beside(q.put, "next", timeout=WAIT_S):
        kill(producer)
    assert q.get(timeout=WAIT_S) == "next"


def test_processes_killed_while_they_wait_for_a_place_leave_it_to_others():
    q = shmring.Queue(1)
    q.put(0)
    for pid in [in_child(q.put, i) for i in range(3)]:
        kill(pid)
    with beside(q.put, "next", timeout=WAIT_S):
        assert q.get(timeout=WAIT_S) == 0
    assert q.get(timeout=WAIT_S) == "next"


def test_joining_does_not_wait_for_an_item_that_was_torn():
    q = shmring.JoinableQueue(capacity_nbytes=1 << 10)
    producer = begun(q)
    kill(producer)
    q.put(1)
    q.get()
    q.task_done()
    q.join()
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


def test_many_producers_never_exceed_the_places():
    q = shmring.Queue(3)
    producers = [in_child(lambda: [q.put(i) for i in range(200)]) for _ in range(3)]
    most = 0
    for _ in range(600):
        most = max(most, q.qsize())
        q.get(timeout=WAIT_S)
    assert most <= 3
    assert [status_of(pid) for pid in producers] == [0, 0, 0]
    assert q.qsize() == 0
