"""Semaphores in shared memory that a process has overwritten: a call that would sleep there raises, in time."""

import contextlib
import queue

import numpy as np
import pytest
from support.harness import PATIENCE
from support.on_ranks import on_ranks

import shmring
from shmring.collectives.engine.outbox import outbox_nbytes

# As a shared semaphore is made by glibc: count and waiters 0, the flags of the futex call, padding.
FRESH = np.array([0, 0, 128, 0], np.uint32)
GARBAGE = [3, 0x40, 2**31, 2**32 - 1]


def semaphores_in(words):
    """The indices of the flags of all semaphores in a memory."""
    rows = np.lib.stride_tricks.sliding_window_view(words, 4)[::2]
    return 2 * np.flatnonzero((rows == FRESH).all(axis=1)) + 2


def overwrite(mapping, value):
    words = np.frombuffer(mapping, np.uint32)
    found = semaphores_in(words)
    assert len(found)
    words[found] = value


@pytest.mark.parametrize("value", GARBAGE)
def test_a_reader_of_a_latest_value(value):
    latest = shmring.Latest(4096)
    overwrite(latest.__reduce__()[1][0].mapping, value)
    with pytest.raises(shmring.SegmentError, match="overwritten"):
        latest.read(60 * PATIENCE)
    latest.write(b"does not wait")
    assert latest.read() == b"does not wait"


@pytest.mark.parametrize("value", GARBAGE)
def test_the_ends_of_a_channel(value):
    sender, receiver = shmring.channel(4096)
    sender.take(), receiver.take()
    overwrite(sender._channel.mapping, value)
    with pytest.raises(shmring.SegmentError, match="overwritten"):
        receiver.recv(60 * PATIENCE)
    while sender.try_send(bytes(500)):
        pass
    with pytest.raises(shmring.SegmentError, match="overwritten"):
        sender.send(bytes(500), 60 * PATIENCE)
    assert receiver.recv() == bytes(500)


@pytest.mark.parametrize("value", GARBAGE)
def test_a_process_that_gets_puts_and_joins(value):
    q = shmring.Queue(capacity_nbytes=4096)
    overwrite(q.__reduce__()[1][1].mapping, value)
    with pytest.raises(shmring.SegmentError, match="overwritten"):
        q.get(timeout=60 * PATIENCE)
    with contextlib.suppress(queue.Full):
        while True:
            q.put(bytes(500), block=False)
    with pytest.raises(shmring.SegmentError, match="overwritten"):
        q.put(bytes(500), timeout=60 * PATIENCE)
    assert q.get() == bytes(500)


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", GARBAGE)
@on_ranks(2, init={"spin_us": 0})
def test_ranks_in_a_collective_and_in_a_message(comm, value):
    with comm.dup() as one, comm.dup() as two:
        for broken, wait in (one, lambda: one.barrier()), (two, lambda: two.recv(np.zeros(1), 1)):
            if comm.rank == 0:
                overwrite(memoryview(broken._engine.segments[0].mapping)[: outbox_nbytes(broken.config, 2)], value)
                with pytest.raises(shmring.AbortedError, match="overwritten"):
                    wait()
            comm.barrier()
