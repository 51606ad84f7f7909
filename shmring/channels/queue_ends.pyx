"""The ends of a queue's ring, which go from process to process: locks, items that were given up, items that are held.

A ring has one producer and one consumer at a time. Its counters always stand between two messages, so another process
can continue where the last one stopped, or died. The holder of a robust lock owns an end: when the holder dies, the
kernel passes the lock on. A message that a dead producer had not completed is retracted, or cut as in a channel.

An item longer than the ring streams through it, so a consumer whose time is over may have the beginning of one. It
keeps that and marks the item as held (`PUTTING` to `HELD`). The producer does not complete a held item: either the same
consumer continues (`HELD` to `PUTTING`), or another consumer declares it void, and the producer puts it again.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

import os
import queue
import time

from shmring._c.atomics cimport (compare_swap_u64, load_acquire_u64, load_relaxed_u64, store_relaxed_u64,
                                 store_release_u64)
from shmring._c.faults cimport fault_point
from shmring.ring.framing cimport frame_t
from shmring.sync.backoff cimport deadline_of

from shmring.errors import ClosedError

cdef extern from "channels/robust.h" nogil:
    const int LOCK_LATE
    int lock_try(pthread_mutex_t *lock)
    int lock_within(pthread_mutex_t *lock, int64_t ns)
    void lock_release(pthread_mutex_t *lock)


# no_gc: the collector must not clear the memory of a queue that is still used.
@cython.no_gc
cdef class QueueEnds:
    """Both ends of a queue in one process, without a Python interface."""

    cdef int use(self, memory) except -1:
        self.memory = memory
        self.mapping = memory.mapping
        self.maxsize = memory.maxsize or <uint64_t>1 << 63
        self.make_ends()
        self.ring = <shmring_ring *>(self.mapping.address + <size_t>memory.ring_offset)
        self.q = <shmring_queue *>(self.mapping.address + <size_t>memory.queue_offset)
        return 0

    cdef int require_made(self) except -1:
        if self.q == NULL:
            raise ClosedError(f"this {type(self).__name__} was not made: its __init__ has not run, or has failed")
        return 0

    cdef int make_ends(self) except -1:
        """The ends of this process, not used yet."""
        self.sending_thread = self.receiving_thread = 0
        self.sender = MessageWriter(self.memory, "sender")
        self.make_receiver()
        return 0

    cdef int make_receiver(self) except -1:
        self.receiver = MessageReader(self.memory, "receiver")
        self.receiver.leaves_pickled = True
        return 0

    # ---- owning an end ----

    cdef bint lock(self, pthread_mutex_t *lock, uint64_t *holder, int64_t timeout_ns) except -1:
        """False if time ran out. Its holder owns that end: no other process, and no other thread, uses it."""
        cdef int64_t deadline_ns, left
        cdef int outcome
        self.require_made()
        if self.is_closed:
            raise ClosedError("this queue is closed")
        if is_holder(holder):
            raise RuntimeError("this thread is in the middle of the same call of this queue: a signal handler or "
                               "finalizer cannot repeat it")
        outcome = lock_try(lock)
        if outcome == LOCK_LATE and timeout_ns != 0:
            deadline_ns = deadline_of(timeout_ns)
            while outcome == LOCK_LATE:
                left = tick_until(deadline_ns, timeout_ns)
                if left <= 0:
                    break
                with nogil:
                    outcome = lock_within(lock, left)
                if outcome == LOCK_LATE:
                    PyErr_CheckSignals()
        if outcome < 0:
            raise OSError(-outcome, f"cannot lock this queue: {os.strerror(-outcome)}")
        if outcome == LOCK_LATE:
            return False
        store_relaxed_u64(holder, PyThread_get_thread_ident())
        return True

    cdef void unlock(self, pthread_mutex_t *lock, uint64_t *holder) noexcept:
        store_relaxed_u64(holder, 0)
        lock_release(lock)

    cdef int have_sender(self) except -1:
        if not self.sender.is_taken:
            self.sender.prepare()
        cdef bint is_unfinished = load_relaxed_u64(&self.q.item_state)
        self.sender.resume(is_unfinished and not self.take_back())
        return 0

    cdef bint take_back(self) except -1:
        """Retract an item that was given up, or that its producer did not live to complete. False: another process is
        getting, and will skip it."""
        cdef int outcome = lock_within(&self.q.receiving, GLANCE_NS)
        if outcome == LOCK_LATE or outcome < 0:
            return False
        # With both locks held, no other process uses the counters.
        if <int64_t>(self.q.began - load_relaxed_u64(&self.ring.head)) >= 0:
            store_release_u64(&self.ring.tail, self.q.began)
            fault_point("retract")
            store_release_u64(&self.ring.sent.messages, self.q.sent)
        else:                          # its beginning was received, and nothing follows it
            store_release_u64(&self.ring.head, load_relaxed_u64(&self.ring.tail))
            self.settle()
        lock_release(&self.q.receiving)
        return True

    cdef void settle(self) noexcept nogil:
        """Both locks held, the ring empty: a process that died may not have counted its last item."""
        store_release_u64(&self.ring.sent.messages, load_relaxed_u64(&self.ring.received.messages))

    cdef int have_receiver(self) except -1:
        if not self.receiver.is_taken:
            self.receiver.prepare()
        self.receiver.resume()
        if self.receiver.target is not None:       # of an item that this end holds, if no other has declared it void
            if not compare_swap_u64(&self.q.item_state, HELD, PUTTING):
                self.receiver.target = None
        elif load_relaxed_u64(&self.q.item_state) == HELD:
            compare_swap_u64(&self.q.item_state, HELD, VOID)
        return 0

    # ---- items in the middle ----

    cdef bint complete(self, int64_t timeout_ns, int64_t deadline_ns) except -1:
        """All of an item is in the ring, and a consumer holds its beginning, or has declared it void. True once it is
        put; False: it must be put again."""
        while not compare_swap_u64(&self.q.item_state, PUTTING, NO_ITEM):
            if load_acquire_u64(&self.q.item_state) == VOID:
                return False
            if tick_until(deadline_ns, timeout_ns) == 0 and compare_swap_u64(&self.q.item_state, HELD, VOID):
                raise queue.Full
            time.sleep(1e-9 * GLANCE_NS)
        return True

    cdef bint hold_item(self) except -1:
        """Keep the beginning of an item for the next call. False: the producer has completed the item meanwhile, and
        this end has assembled it."""
        cdef frame_t f
        if self.receiver.target is None or compare_swap_u64(&self.q.item_state, PUTTING, HELD):
            return True
        if load_acquire_u64(&self.q.item_state) != NO_ITEM:
            return True
        self.receiver.look(&f, 0)
        return self.receiver.kept is None

    cdef bint is_no_producer(self) except -1:
        """Whether no process is in the middle of an item: it would have the lock."""
        cdef int outcome = lock_try(&self.q.sending)
        if outcome == LOCK_LATE or outcome < 0:
            return False
        if load_relaxed_u64(&self.ring.tail) == load_relaxed_u64(&self.ring.head):
            self.settle()
        lock_release(&self.q.sending)
        return True

    # ---- state ----

    cdef uint64_t count(self) except? 0:
        self.require_made()
        # The receiver's count first: there are never fewer than none.
        cdef uint64_t received = load_acquire_u64(&self.ring.received.messages)
        cdef uint64_t sent = load_acquire_u64(&self.ring.sent.messages)
        # A process that was killed may not have counted its last item; but an empty ring has nothing in it.
        if load_acquire_u64(&self.ring.tail) == load_acquire_u64(&self.ring.head):
            return 0
        return max(<int64_t>0, <int64_t>(sent - received))
