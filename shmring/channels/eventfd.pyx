"""An eventfd that becomes readable when a ring's counter reaches a target: for select, epoll and event loops.

The process that moves a counter posts a semaphore, and only if a waiter sleeps there. So a thread of this process waits
as a ring end does, spinning first and then asleep, and writes the eventfd. The process at the other end of the ring is
not involved: no descriptor is passed to it, named and unnamed channels work alike, and it makes no further system call.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

import os
import threading

from shmring._c.atomics cimport load_acquire_u32, store_release_u32
from shmring.ring.wait_any cimport await_any
from shmring.sync.backoff cimport be_patient, patience_t, sched_yield, sem_init, sem_post, sem_wait
from shmring.sync.group cimport UNREADY


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int descriptor, uint64_t value)
    int eventfd_read(int descriptor, uint64_t *value)


cdef class Notifier:
    """Makes its eventfd readable when any of ``n`` counters reaches its target; readable initially.

    Belongs to the thread that arms it.

    Parameters
    ----------
    n : int
    mapping : Mapping
        Of the memory that holds the counters.
    """

    def __cinit__(self, int n, mapping):
        self.awaited = <awaited_t *>calloc(n, sizeof(awaited_t))
        if self.awaited == NULL:
            raise MemoryError
        self.n = n
        self.mapping = mapping
        sem_init(&self.requests, 0, 0)
        self.descriptor = -1
        self.descriptor = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        free(self.awaited)
        if self.descriptor >= 0:
            os.close(self.descriptor)

    cdef int arm(self, const uint64_t *until) except -1:
        """Signal when a counter reaches its ``until``, which the caller has just seen it has not."""
        cdef uint64_t value
        cdef int i
        cdef bint is_same = True
        if load_acquire_u32(&self.is_armed):
            for i in range(self.n):
                is_same &= self.awaited[i].until == until[i]
            if is_same:
                return 0
            self.signal()
        for i in range(self.n):
            self.awaited[i].until = until[i]
        eventfd_read(self.descriptor, &value)
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="shmring-notifier", daemon=True)
            self.thread.start()
        # SYNC armed (meets: wait_and_signal). The targets are stored before the word that announces them.
        store_release_u32(&self.is_armed, 1)
        sem_post(&self.requests)
        return 0

    cdef bint is_signalled(self) noexcept:
        # SYNC signalled (meets: wait_and_signal).
        return not load_acquire_u32(&self.is_armed)

    cdef void signal(self) noexcept:
        """Make the descriptor readable now. Afterwards the thread is in no waiter word."""
        if self.is_signalled():
            return
        with nogil:
            store_release_u32(&self.must_signal, 1)
            sem_post(self.wake)
            # SYNC signalled (meets: wait_and_signal).
            while load_acquire_u32(&self.is_armed):
                sched_yield()
            store_release_u32(&self.must_signal, 0)

    cdef int stop(self) except -1:
        self.signal()
        if self.thread is not None:
            store_release_u32(&self.must_stop, 1)
            sem_post(&self.requests)
            self.thread.join()
            self.thread = None
        return 0

    def run(self):
        """The thread's function."""
        with nogil:
            self.wait_and_signal()

    cdef void wait_and_signal(self) noexcept nogil:
        cdef patience_t patience
        while True:
            # SYNC armed (meets: arm).
            while not load_acquire_u32(&self.is_armed):
                if load_acquire_u32(&self.must_stop):
                    return
                sem_wait(&self.requests)
            be_patient(&patience, -1)
            while await_any(self.awaited, self.n, self.wake, &patience) == UNREADY:
                if load_acquire_u32(&self.must_signal):
                    break
            eventfd_write(self.descriptor, 1)
            # SYNC signalled (meets: is_signalled, signal). The descriptor is readable, and this thread is in no waiter
            # word, before the store that says so.
            store_release_u32(&self.is_armed, 0)
