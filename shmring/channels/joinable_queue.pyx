"""Queues with items that are reported done: the interface of ``multiprocessing.JoinableQueue``."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.atomics cimport add_u32, compare_swap_u64, full_fence, load_acquire_u64, load_relaxed_u32
from shmring._c.layout cimport sem_t
from shmring.channels.queue cimport Queue
from shmring.channels.queue_ends cimport TICK_NS
from shmring.sync.backoff cimport before_wake, sem_post, sleep_on


cdef extern from "<semaphore.h>" nogil:
    int sem_getvalue(sem_t *sem, int *value)


cdef class JoinableQueue(Queue):
    """A `Queue` with items that are reported done, to be used like `multiprocessing.JoinableQueue`."""

    def task_done(self):
        """Report that an item that was got has been processed.

        Raises
        ------
        ValueError
            More were reported done than were ever put.
        """
        cdef uint64_t done
        cdef int value = 0
        self.require_made()
        while True:
            done = load_acquire_u64(&self.q.done)
            if done >= load_acquire_u64(&self.ring.sent.messages):
                raise ValueError("task_done() called too many times")
            if compare_swap_u64(&self.q.done, done, done + 1):
                break
        # SYNC joined (meets: join).
        before_wake()
        if done + 1 >= load_acquire_u64(&self.ring.sent.messages):
            sem_getvalue(&self.q.joined, &value)
            while value < <int>load_relaxed_u32(&self.q.joiners):
                sem_post(&self.q.joined)
                value += 1

    def join(self):
        """Wait until all items that were ever put have been reported done."""
        while not self.is_done():
            add_u32(&self.q.joiners, 1)
            # SYNC joined (meets: task_done).
            full_fence()
            if not self.is_done():
                with nogil:
                    sleep_on(&self.q.joined, TICK_NS)
            add_u32(&self.q.joiners, <uint32_t>-1)
            PyErr_CheckSignals()

    cdef bint is_done(self) except -1:
        self.require_made()
        return load_acquire_u64(&self.q.done) >= load_acquire_u64(&self.ring.sent.messages)
