"""The count of a queue's items, where consumers are killed or interrupted in the middle of one."""

import os
import queue
import signal
import time

import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE, eventually

import shmring
from shmring.core.ring.inspect import look

WAIT_S = 60 * PATIENCE
LONG = 1 << 16  # bytes of an item that streams through a ring of 4 KiB
CAPACITY = 1 << 12


class Interrupted(Exception):
    pass


def assert_true(value):
    assert value


def counts(q):
    """The counters of its ring."""
    memory = q.__reduce__()[1][1]
    return look(memoryview(memory.mapping)[memory.ring_offset :])


class Throttled:
    """A producer that puts one long item, and is stopped in the middle, so that its consumer stays in the middle, too.

    It begins once a consumer takes what is there: the ring holds a sixteenth of the item.
    """

    def __init__(self, q, item):
        self.pid = in_child(q.put, item)
        eventually(lambda: assert_true(counts(q).fill > 0.5))
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)
        assert status_of(self.pid) == 0


def begun(q):
    """A consumer that has got the part of an item that is there."""
    pid = in_child(q.get)
    eventually(lambda: assert_true(counts(q).fill == 0))
    return pid


ITEMS = {"bytes": bytes(LONG), "object": ["long", bytes(LONG)]}


@needs_marks
@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("looks", ["before another consumer", "after it"])
def test_a_consumer_killed_in_the_middle_of_an_item_counts_as_having_got_it(item, looks):
    q = shmring.Queue(maxsize=2, capacity_nbytes=CAPACITY)
    producer = Throttled(q, ITEMS[item])
    kill(begun(q))
    if looks == "after it":
        with pytest.raises(queue.Empty):
            q.get(timeout=0.1)
    else:
        assert not counts(q).fill
    done = in_child(lambda: drain(q, 1, ["after the lost one"]))
    producer.go_on()
    assert q.qsize() == 0
    q.put("after the lost one", timeout=WAIT_S)
    assert status_of(done) == 0
    assert q.qsize() == 0
    for number in range(2):  # both places are free
        q.put(number, timeout=0)
    assert q.full()
    assert q.qsize() == 2
    assert [q.get(timeout=0), q.get(timeout=0)] == [0, 1]
    assert q.qsize() == 0


def drain(q, count, expected):
    assert [q.get(timeout=WAIT_S) for _ in range(count)] == expected


@needs_marks
def test_places_of_killed_consumers_are_free_at_once_without_another_consumer():
    """The producer waits for a place, and nobody else takes an item."""
    q = shmring.Queue(maxsize=1, capacity_nbytes=CAPACITY)
    producer = Throttled(q, bytes(5000))  # the rest of it fits into the ring
    consumer = begun(q)
    kill(consumer)
    producer.go_on()
    assert q.qsize() == 0
    assert not q.full()
    q.put("next", timeout=WAIT_S)
    assert q.qsize() == 1
    assert q.full()
    assert q.get(timeout=WAIT_S) == "next"
    assert q.qsize() == 0


@pytest.mark.parametrize("who", ["the same process", "another one"])
def test_ctrl_c_in_the_middle_of_a_long_item(who):
    q = shmring.Queue(maxsize=2, capacity_nbytes=CAPACITY)
    producer = Throttled(q, bytes(LONG))

    def interrupt(*_):
        raise Interrupted

    def consumer():
        signal.signal(signal.SIGINT, interrupt)
        with pytest.raises(Interrupted):
            q.get()
        if who == "the same process":
            os.kill(producer.pid, signal.SIGCONT)
            assert q.get(timeout=WAIT_S) == bytes(LONG)
            assert q.get(timeout=WAIT_S) == "next"
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
            with pytest.raises(queue.Empty):
                q.get(timeout=0.1)

    pid = in_child(consumer)
    eventually(lambda: assert_true(counts(q).fill == 0))
    os.kill(pid, signal.SIGINT)
    if who == "the same process":
        assert status_of(producer.pid) == 0
        q.put("next", timeout=WAIT_S)
    else:
        os.waitpid(pid, os.WUNTRACED)
        other = in_child(lambda: drain(q, 1, ["next"]))
        producer.go_on()
        q.put("next", timeout=WAIT_S)
        assert status_of(other) == 0
        os.kill(pid, signal.SIGCONT)
    assert status_of(pid) == 0
    assert q.qsize() == 0
    q.put(1, timeout=0)
    q.put(2, timeout=0)
    assert q.qsize() == 2
    assert [q.get(timeout=0), q.get(timeout=0)] == [1, 2]


def test_a_poll_that_has_begun_an_item_goes_on_with_it():
    q = shmring.Queue(capacity_nbytes=CAPACITY)
    pid = in_child(q.put, bytes(LONG))
    assert q.poll(WAIT_S)
    assert q.get(timeout=WAIT_S) == bytes(LONG)
    assert q.qsize() == 0
    assert status_of(pid) == 0


@needs_marks
@pytest.mark.sample(2)
@pytest.mark.parametrize("item", [bytes(100), bytes(LONG), {"a": bytes(5000)}], ids=["short", "long", "object"])
def test_consumers_killed_at_any_moment(item):
    """Whatever they were doing: an empty queue has no items, and `maxsize` of them fit."""
    q = shmring.Queue(maxsize=3, capacity_nbytes=CAPACITY)

    def consume():
        while True:
            q.get()

    producer = in_child(lambda: [q.put(item) for _ in iter(int, 1)])
    for number in range(25):
        pid = in_child(consume)
        time.sleep(0.003 * (number % 5))
        kill(pid)
        assert q.qsize() <= 3
    kill(producer)
    while True:
        try:
            assert q.get(timeout=0.1) == item
        except queue.Empty:
            break
    assert q.qsize() == 0
    assert q.empty()
    for number in range(3):
        q.put(number, timeout=0)
        assert q.qsize() == number + 1
    assert q.full()
    assert [q.get(timeout=0) for _ in range(3)] == [0, 1, 2]
    assert q.qsize() == 0
