"""A descriptor that becomes readable when a ring's counter comes: for select, epoll and event loops.

Who moves a counter wakes a semaphore, and only if somebody sleeps there. So here a thread of this process does what a
waiting end does, spinning first and then asleep, and writes an eventfd. The process at the other end of the ring needs
to know nothing of it: no descriptor travels, channels without a name and with one have it alike, and the sender makes
no more system calls than before.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

import os
import threading

from shmring.ring.wait_any cimport await_any
from shmring._c.atomics cimport load_acquire_u32, store_release_u32
from shmring._c.layout cimport sem_t
from shmring.sync.backoff cimport be_patient, patience_t, sched_yield, sem_init, sem_post, sem_wait
from shmring.sync.group cimport UNREADY


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int descriptor, uint64_t value)
    int eventfd_read(int descriptor, uint64_t *value)


cdef class Alarm:
    """Rings of itself when one of ``n`` counters has come; at first at once. Belongs to the thread that arms it.

    Parameters
    ----------
    n : int
    mapping : Mapping
        Where the counters are.
    """

    def __cinit__(self, int n, mapping):
        self.rings = <awaited_t *>calloc(n, sizeof(awaited_t))
        if self.rings == NULL:
            raise MemoryError
        self.n = n
        self.mapping = mapping
        sem_init(&self.asked, 0, 0)
        self.descriptor = -1
        self.descriptor = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        free(self.rings)
        if self.descriptor >= 0:
            os.close(self.descriptor)

    cdef int arm(self, const uint64_t *until) except -1:
        """Ring when a counter comes to its ``until``, which the caller has just seen it has not."""
        cdef uint64_t value
        cdef int i
        cdef bint is_same = True
        if load_acquire_u32(&self.is_armed):
            for i in range(self.n):
                is_same &= self.rings[i].until == until[i]
            if is_same:
                return 0
            self.ring()
        for i in range(self.n):
            self.rings[i].until = until[i]
        eventfd_read(self.descriptor, &value)
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="shmring-alarm", daemon=True)
            self.thread.start()
        # SYNC armed (meets: watch_on): what to wait for, before the word that there is something.
        store_release_u32(&self.is_armed, 1)
        sem_post(&self.asked)
        return 0

    cdef bint is_rung(self) noexcept:
        # SYNC rung (meets: watch_on).
        return not load_acquire_u32(&self.is_armed)

    cdef void ring(self) noexcept:
        """Ring now, whatever has come. Afterwards the thread sleeps at no bell."""
        if self.is_rung():
            return
        with nogil:
            store_release_u32(&self.must_ring, 1)
            sem_post(self.wake)
            while load_acquire_u32(&self.is_armed):     # SYNC rung (meets: watch_on)
                sched_yield()
            store_release_u32(&self.must_ring, 0)

    cdef int stop(self) except -1:
        self.ring()
        if self.thread is not None:
            store_release_u32(&self.must_stop, 1)
            sem_post(&self.asked)
            self.thread.join()
            self.thread = None
        return 0

    def run(self):
        """The thread's life."""
        with nogil:
            self.watch_on()

    cdef void watch_on(self) noexcept nogil:
        cdef patience_t patience
        while True:
            while not load_acquire_u32(&self.is_armed):      # SYNC armed (meets: arm)
                if load_acquire_u32(&self.must_stop):
                    return
                sem_wait(&self.asked)
            be_patient(&patience, -1)
            while await_any(self.rings, self.n, self.wake, &patience) == UNREADY:
                if load_acquire_u32(&self.must_ring):
                    break
            eventfd_write(self.descriptor, 1)
            # SYNC rung (meets: is_rung, ring): who sees this finds the descriptor readable, and nobody at the bell.
            store_release_u32(&self.is_armed, 0)
