"""A look at a ring from outside, while its two ends are at work: nothing is taken, and nothing is written."""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

from shmring.core.c.atomics cimport load_acquire_u64, load_relaxed_u64
from shmring.core.c.layout cimport (SHMRING_RING_MAGIC, SHMRING_RING_MOST_HEADS, shmring_laps, shmring_ring,
                                shmring_ring_counts, shmring_ring_head, shmring_ring_role)
from shmring.core.ring.spsc cimport ring_control_nbytes, ring_end_state

from shmring.core.kernel.reduce import STORES
from shmring.errors import SegmentError
from shmring.core.ring.spsc import END_STATES


class EndLook(NamedTuple):
    """One end as it was found.

    Attributes
    ----------
    state : {"absent", "here", "closed", "lost"}
    pid : int
    asleep : bool
        Whether it sleeps until the other end goes on.
    position : int
        Slots ever committed, or released.
    messages, dropped : int
    waits : int
        Calls that found the ring full, or empty, and had to wait.
    sleeps : int
    """

    state: str
    pid: int
    asleep: bool
    position: int
    messages: int
    dropped: int
    waits: int
    sleeps: int


class RingLook(NamedTuple):
    """A ring as it was found. Its counters are loaded one after the other, and may have changed in between."""

    nslots: int
    slot_nbytes: int
    producer: EndLook
    consumer: EndLook
    stores: str | None = None
    """The kind of stores by which long messages are written, one of `shmring.core.kernel.reduce.STORES`; None before
    the first."""
    trial_us: tuple[float, ...] = ()
    """Microseconds to write and read one lap round the ring in the last trials of each kind; 0 before."""

    @property
    def fill(self):
        """The part of the ring that is filled, from 0 to 1."""
        return min(1.0, max(0, self.producer.position - self.consumer.position) / self.nslots)


cdef object end_look(shmring_ring_role *role, uint64_t asleep, shmring_ring_counts *counts, uint64_t position):
    return EndLook(
        END_STATES[ring_end_state(role)], role.liveness.pid, asleep != 0, position, load_relaxed_u64(&counts.messages),
        load_relaxed_u64(&counts.dropped), load_relaxed_u64(&counts.waits), load_relaxed_u64(&counts.sleeps),
    )


cdef tuple stores_look(shmring_laps *laps):
    if laps.learner.calls == 0:
        return None, ()
    return STORES[laps.kind & 3], tuple([laps.alternatives[kind].ns / 1e3 for kind in range(len(STORES))])


def look(buffer, uint64_t number=0):
    """Look at the ring at the beginning of a buffer.

    Parameters
    ----------
    buffer : writable buffer
        On a multiple of 128 bytes, as `shmring.core.ring.format_ring` requires.
    number : int
        Which of its consumers.

    Returns
    -------
    RingLook
    """
    cdef Py_buffer view
    cdef shmring_ring *ring
    cdef shmring_ring_head *at
    cdef uint64_t head
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        ring = <shmring_ring *>view.buf
        if <size_t>view.len < ring_control_nbytes() or load_acquire_u64(&ring.magic) != SHMRING_RING_MAGIC:
            raise SegmentError("there is no ring in this buffer")
        if ring.nslots == 0:
            raise SegmentError("the ring in this buffer has no slots")
        if number >= SHMRING_RING_MOST_HEADS or <size_t>view.len < ring_control_nbytes(number + 1):
            raise SegmentError(f"the ring in this buffer has no consumer {number}")
        at = &ring.heads[number]
        # Head first: what is filled is never taken for less than nothing.
        head = load_acquire_u64(&at.head)
        return RingLook(ring.nslots, ring.slot_nbytes,
                        end_look(&ring.producer, load_relaxed_u64(&at.producer_asleep), &ring.sent,
                                 load_acquire_u64(&ring.tail)),
                        end_look(&at.consumer, load_relaxed_u64(&at.consumer.waiter.asleep), &at.received, head),
                        *stores_look(&ring.laps))
    finally:
        PyBuffer_Release(&view)
