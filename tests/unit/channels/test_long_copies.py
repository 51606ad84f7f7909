"""Long messages are copied without the GIL in every call, those that do not wait included: other threads go on."""

import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from support.children import in_child, status_of
from support.harness import eventually

import shmring
from shmring.core.ring.inspect import look

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="all threads run at once in this Python"
)

CAPACITY = 1 << 26
LONG = bytes(1 << 24)
RECORDS = np.zeros(1 << 24, "i1")
OUT = bytearray(LONG)


def sent(way, **options):
    """A receiver, with a long message in its ring: in pieces, or by `try_send` in one."""
    sender, receiver = shmring.channel(CAPACITY, **options)
    getattr(sender, way)(RECORDS if options.get("dtype") else LONG)
    return sender, receiver


def broadcast_to_one(**options):
    sender, (receiver,) = shmring.broadcast_channel(1, CAPACITY, **options)
    sender.try_send(LONG)
    return sender, receiver


def first_step(coroutine):
    """Of a call in an event loop: up to its end, or to where it would let other tasks run."""
    with suppress(StopIteration, RuntimeError):
        coroutine.send(None)


def with_descriptor(ends):
    """Ends, the first of which needs no descriptor any more: making one lets other threads run."""
    ends[0].fileno()
    return ends


def queue_with_an_item(way):
    items = shmring.Queue(capacity_nbytes=CAPACITY)
    getattr(items, way)(LONG)
    return items


# Calls that do not wait, each with what makes its ends. Before and after there is no call that lets other threads run.
CALLS = {
    "recv, pieces": (lambda: sent("send"), lambda ends: ends[1].recv(0)),
    "recv, whole": (lambda: sent("try_send"), lambda ends: ends[1].recv(0)),
    "recv_many, pieces": (lambda: sent("send"), lambda ends: ends[1].recv_many(5, 0)),
    "recv_many, whole": (lambda: sent("try_send"), lambda ends: ends[1].recv_many(5, 0)),
    "recv_into, pieces": (lambda: sent("send"), lambda ends: ends[1].recv_into(OUT, 0)),
    "recv_into, whole": (lambda: sent("try_send"), lambda ends: ends[1].recv_into(OUT, 0)),
    "poll, pieces": (lambda: sent("send"), lambda ends: ends[1].poll()),
    "recv_async, pieces": (lambda: sent("send"), lambda ends: first_step(ends[1].recv_async())),
    "recv, records": (lambda: sent("send_many", dtype="i1"), lambda ends: ends[1].recv_many(timeout=0)),
    "recv, broadcast": (lambda: broadcast_to_one(slow_timeout=60), lambda ends: ends[1].recv(0)),
    "try_send": (lambda: shmring.channel(CAPACITY), lambda ends: ends[0].try_send(LONG)),
    "send_async": (
        lambda: with_descriptor(shmring.channel(CAPACITY)),
        lambda ends: first_step(ends[0].send_async(LONG)),
    ),
    "send, drop_newest": (lambda: shmring.channel(CAPACITY, when_full="drop_newest"), lambda ends: ends[0].send(LONG)),
    "send_many, records": (lambda: shmring.channel(CAPACITY, dtype="i1"), lambda ends: ends[0].send_many(RECORDS, 0)),
    "send_many, records, drop_newest": (
        lambda: shmring.channel(CAPACITY, dtype="i1", when_full="drop_newest"),
        lambda ends: ends[0].send_many(RECORDS, 0),
    ),
    "get_nowait": (lambda: queue_with_an_item("put_nowait"), lambda items: items.get_nowait()),
    "put_nowait": (lambda: shmring.Queue(capacity_nbytes=CAPACITY), lambda items: items.put_nowait(LONG)),
}


class OtherThread:
    """A thread that counts whenever it has the GIL, which no thread is asked to give away meanwhile."""

    def __enter__(self):
        self.count, self.is_over = 0, False
        self.interval = sys.getswitchinterval()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        sys.setswitchinterval(1000)
        return self

    def run(self):
        while not self.is_over:
            self.count += 1
            time.sleep(0.0001)

    def __exit__(self, *_):
        self.is_over = True
        sys.setswitchinterval(self.interval)
        self.thread.join()


@pytest.mark.sample(6)
@pytest.mark.parametrize(("make", "call"), CALLS.values(), ids=CALLS)
def test_other_threads_run_while_a_long_message_is_copied(make, call):
    def other_ran():
        ends = make()
        before = other.count
        call(ends)
        assert other.count > before, "the call held the GIL from its beginning to its end"

    with OtherThread() as other:
        eventually(other_ran)  # the machine may have had no processor for it the first times


def test_a_call_that_takes_the_place_of_the_waiter_thread_does_not_wait_for_its_tick(monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")

    def child():
        _sender, receiver = shmring.channel(1 << 12)
        receiver.fileno()
        with memoryview(receiver._channel.mapping)[receiver._channel.ring_offset :] as ring:
            for i in range(100):
                assert not receiver.poll(0)  # the thread waits
                if i < 20:  # after several long waits it sleeps at once, by its longest tick
                    while not look(ring).consumer.asleep:
                        time.sleep(0)
                    time.sleep(0.002)
                assert not receiver.poll(2e-5)  # this call waits in its place
        receiver.close()

    assert status_of(in_child(child)) == 0
