"""Queues with items that are reported done: the interface of ``multiprocessing.JoinableQueue``."""

from libc.stdint cimport uint64_t

from shmring._c.atomics cimport compare_swap_u64, load_acquire_u64
from shmring._c.layout cimport shmring_queue
from shmring.channels.queue cimport Queue
from shmring.ring.blocking cimport drive, wake_at_once
from shmring.sync.backoff cimport TICK, back_off, before_wake, end_wait, patience_t, sem_post, sleeper_t
from shmring.sync.group cimport READY, UNREADY

cdef enum:
    LONGEST_SLEEP_NS = 20000000        # of join(): several processes may be in it, and the waiter word is one


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
        self.require_made()
        while True:
            done = load_acquire_u64(&self.q.done)
            if done >= load_acquire_u64(&self.ring.sent.messages):
                raise ValueError("task_done() called too many times")
            if compare_swap_u64(&self.q.done, done, done + 1):
                break
        before_wake()
        if done + 1 >= load_acquire_u64(&self.ring.sent.messages):
            wake_at_once(&self.q.joining, &self.q.joined)

    def join(self):
        """Wait until all items that were ever put have been reported done."""
        cdef bint is_busy = False
        self.require_made()
        drive(await_done, self, NULL, -1, &is_busy)


cdef int await_done(object queue, void *what, patience_t *patience) noexcept nogil:
    """A step of `join` (ring/blocking.pxd)."""
    cdef shmring_queue *q = (<JoinableQueue>queue).q
    cdef sleeper_t sleeper = sleeper_t(word=&q.joining, what=1, wake=&q.joined, next=NULL, spin_ns=0, yields=0,
                                       tick_ns=LONGEST_SLEEP_NS, spin=NULL)
    while load_acquire_u64(&q.done) < load_acquire_u64(&(<JoinableQueue>queue).ring.sent.messages):
        if back_off(patience, &sleeper) == TICK:
            return UNREADY
    end_wait(patience, &sleeper)
    sem_post(&q.joined)                # for the next process in join(), if there is one
    return READY
