"""The locks in the memory of a queue: holders that die, stop, or never were."""

import os
import queue
import signal
import struct

import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE

import shmring
from shmring.channels.queue_locks import QUEUE_NBYTES, lock_holders

# Of shmring_queue and shmring_liveness in shmring/core/c/layout.h.
SENDING, MEMBERS_MAX, LIVENESS_NBYTES = 0, 1024, 40
MEMBERS = QUEUE_NBYTES - MEMBERS_MAX * LIVENESS_NBYTES


def locks_of(q):
    memory = q.__reduce__()[1][1]
    return memoryview(memory.mapping)[memory.queue_offset :]


def is_member(q, number):
    return struct.unpack_from("I", locks_of(q), MEMBERS + LIVENESS_NBYTES * number)[0] & 0x3FFFFFFF != 0


@needs_marks
def test_a_process_that_takes_the_liveness_of_a_dead_holder_does_not_seem_to_hold_its_lock():
    q = shmring.Queue(capacity_nbytes=4096)
    q.put("by this process, the first one")
    assert status_of(in_child(q.put, "by the second one")) == 0
    assert not is_member(q, 1)
    struct.pack_into("II", locks_of(q), SENDING, 2, 1)  # as if it had died in `put`
    assert lock_holders(bytes(locks_of(q)[:QUEUE_NBYTES]))[0] != 0
    third = in_child(lambda: (q.get(), os.kill(os.getpid(), signal.SIGSTOP)))
    os.waitpid(third, os.WUNTRACED)
    assert is_member(q, 1)
    q.put("the lock is free", timeout=60 * PATIENCE)
    kill(third)


def test_a_holder_that_is_stopped_is_waited_for_no_longer_than_the_timeout():
    q = shmring.Queue(capacity_nbytes=4096)

    def hold():
        q.put(bytes(1000))
        struct.pack_into("II", locks_of(q), SENDING, 1, 1)  # its own id
        os.kill(os.getpid(), signal.SIGSTOP)
        struct.pack_into("II", locks_of(q), SENDING, 0, 0)

    holder = in_child(hold)
    os.waitpid(holder, os.WUNTRACED)
    with pytest.raises(queue.Full, match="another producer"):
        q.put(1, timeout=0.2)
    assert q.get() == bytes(1000)  # the other end is free
    os.kill(holder, signal.SIGCONT)
    q.put(2, timeout=60 * PATIENCE)
    assert q.get() == 2
    assert status_of(holder) == 0


@needs_marks
def test_all_that_wait_get_a_lock_after_the_death_of_its_holder():
    q = shmring.Queue(capacity_nbytes=4096)

    def hold():
        q.put("first")
        struct.pack_into("II", locks_of(q), SENDING, 1, 1)
        os.kill(os.getpid(), signal.SIGSTOP)

    holder = in_child(hold)
    os.waitpid(holder, os.WUNTRACED)
    waiting = [in_child(q.put, i) for i in range(4)]
    kill(holder)
    assert [status_of(pid) for pid in waiting] == [0] * 4
    assert q.get() == "first"
    assert sorted(q.get(timeout=60 * PATIENCE) for _ in waiting) == [0, 1, 2, 3]


def test_a_lock_that_no_process_can_hold_is_an_error():
    q = shmring.Queue(capacity_nbytes=4096)
    for held in (1 << 32 | MEMBERS_MAX + 1, 1 << 32):
        struct.pack_into("Q", locks_of(q), SENDING, held)
        with pytest.raises(shmring.SegmentError, match="corrupted"):
            q.put(1)


def test_more_processes_than_the_table_has_room_for_get_an_error():
    q = shmring.Queue(capacity_nbytes=4096)
    for i in range(MEMBERS_MAX):
        struct.pack_into("I", locks_of(q), MEMBERS + LIVENESS_NBYTES * i, 1)
    with pytest.raises(OSError, match="1024 processes"):
        q.put(1)
