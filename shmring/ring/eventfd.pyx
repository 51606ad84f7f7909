"""An eventfd that becomes readable when a ring's counter reaches a target: for select, epoll and event loops.

The process that moves a counter posts a semaphore, and only if a waiter sleeps there. So a thread of this process waits
as a ring end does, spinning first and then asleep, and writes the eventfd. The process at the other end of the ring is
not involved: no descriptor is passed to it, named and unnamed channels work alike, and it makes no further system call.
The thread is not one of Python's: it can be joined at any time, also while the interpreter ends.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import os

from shmring._c.atomics cimport load_acquire_u32, store_release_u32, store_release_u64
from shmring.ring.blocking cimport await_any, wake_at_once
from shmring.sync.backoff cimport (before_wake, be_patient, patience_t, sched_yield, sem_init, sem_post, sem_wait,
                                   spin_t)
from shmring.sync.group cimport UNREADY
from shmring.sync.liveness cimport fork_generation


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int descriptor, uint64_t value)
    int eventfd_read(int descriptor, uint64_t *value)

cdef extern from "<pthread.h>" nogil:
    int pthread_join(pthread_t thread, void **result)

cdef extern from "_c/thread.h" nogil:
    const size_t SMALL_STACK_NBYTES
    int start_thread(pthread_t *thread, size_t stack_nbytes, void *(*run)(void *) noexcept nogil, void *argument)


# no_gc: the collector must not drop the mapping while the thread waits there.
@cython.final
@cython.no_gc
cdef class Notifier:
    """Makes its eventfd readable when any of several counters reaches its target; readable initially, and when stopped.

    Belongs to the thread that arms it. In a forked child it is stopped: the child has the descriptor, but no thread.

    Parameters
    ----------
    most : int
        The greatest number of counters.
    mapping : Mapping
        The memory of the counters.
    """

    def __cinit__(self, int most, mapping):
        self.notice.descriptor = -1
        self.notice.awaited = <awaited_t *>calloc(1 + most, sizeof(awaited_t))
        if self.notice.awaited == NULL:
            raise MemoryError
        self.most = most
        self.mapping = mapping
        sem_init(&self.notice.requests, 0, 0)
        self.notice.descriptor = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        if self.notice.awaited == NULL:     # without arguments not even descriptor, 0 then, was set
            return
        self.stop()
        free(self.notice.awaited)
        if self.notice.descriptor >= 0:
            close(self.notice.descriptor)

    cdef int arm(self, const awaited_t *awaited, int n) except -1:
        """Signal when one of these counters reaches its ``until``, which the caller has just seen it has not."""
        cdef notice_t *notice = &self.notice
        cdef uint64_t value
        cdef spin_t learned
        cdef int i
        if self.is_armed_for(awaited, n):
            return 0
        self.signal()
        if not self.has_thread:
            self.start()
        learned, notice.watch = notice.watch.spin, awaited[0].watch[0]
        notice.watch.spin = learned        # from the waits of this thread
        notice.watch.word = &notice.asleep
        notice.awaited[0].watch, notice.awaited[0].counter = &notice.watch, &notice.interrupts
        notice.awaited[0].until = notice.awaited[0].wake_at = notice.interrupts + 1
        for i in range(min(n, self.most)):
            notice.awaited[1 + i] = awaited[i]
            notice.awaited[1 + i].wake_at = awaited[i].until
        notice.n = 1 + min(n, self.most)
        eventfd_read(notice.descriptor, &value)
        # SYNC armed (meets: wait_and_signal). The targets are stored before the word that announces them.
        store_release_u32(&notice.is_armed, 1)
        sem_post(&notice.requests)
        return 0

    cdef bint is_armed_for(self, const awaited_t *awaited, int n) noexcept:
        cdef int i
        if self.is_signalled() or self.notice.n != 1 + n:
            return False
        for i in range(n):
            if (self.notice.awaited[1 + i].counter != awaited[i].counter
                    or self.notice.awaited[1 + i].until != awaited[i].until):
                return False
        return True

    cdef int start(self) except -1:
        cdef int error = start_thread(&self.thread, SMALL_STACK_NBYTES, wait_and_signal, &self.notice)
        if error:
            raise OSError(error, f"cannot start the thread behind the descriptor of this end: {os.strerror(error)}")
        self.generation = fork_generation()
        self.has_thread = True
        return 0

    cdef bint is_signalled(self) noexcept:
        # SYNC signalled (meets: wait_and_signal).
        return not load_acquire_u32(&self.notice.is_armed) or self.generation != fork_generation()

    cdef void signal(self) noexcept:
        """Make the descriptor readable now. Afterwards the thread is in no waiter word.

        Waits with the GIL held, as `stop` does: the thread needs none, and no other thread may close the end meanwhile.
        """
        if self.is_signalled():
            return
        store_release_u64(&self.notice.interrupts, self.notice.interrupts + 1)
        before_wake()
        wake_at_once(&self.notice.asleep, self.notice.watch.bed)
        # SYNC signalled (meets: wait_and_signal).
        while load_acquire_u32(&self.notice.is_armed):
            sched_yield()

    cdef void stop(self) noexcept:
        """End the thread. The descriptor is readable, and stays so."""
        self.signal()
        if self.has_thread and self.generation == fork_generation():
            store_release_u32(&self.notice.must_stop, 1)
            sem_post(&self.notice.requests)
            pthread_join(self.thread, NULL)
        self.has_thread = False


cdef void *wait_and_signal(void *argument) noexcept nogil:
    """The thread's function."""
    cdef notice_t *notice = <notice_t *>argument
    cdef patience_t patience
    while True:
        # SYNC armed (meets: arm).
        while not load_acquire_u32(&notice.is_armed):
            if load_acquire_u32(&notice.must_stop):
                return NULL
            sem_wait(&notice.requests)
        be_patient(&patience, -1)
        while await_any(notice.awaited, notice.n, &patience) == UNREADY:
            pass
        eventfd_write(notice.descriptor, 1)
        # SYNC signalled (meets: is_signalled, signal). The descriptor is readable, and this thread is in no waiter
        # word, before the store that announces it.
        store_release_u32(&notice.is_armed, 0)
