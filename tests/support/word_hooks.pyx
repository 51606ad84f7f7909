# cython: language_level=3, binding=True
"""Waits at several counters, and their wakers, for tests in Python; built by `support.compiled`."""

from libc.stdint cimport uint64_t
from libc.string cimport memset

from shmring.core.c.atomics cimport cpu_pause, load_acquire_u64, store_release_u64
from shmring.core.c.layout cimport sem_t, shmring_ring_counts, shmring_ring_role
from shmring.core.ring.blocking cimport await_any, awaited_t, wake_sleeper, watch_t
from shmring.core.sync.backoff cimport (before_wake, be_patient, patience_t, sched_yield, sem_init)
from shmring.core.sync.group cimport UNREADY


cdef enum:
    MOST = 128
    LONGEST_PAUSE = 512

WORDS = MOST


cdef class Waits:
    """One waiter and one waker at ``n`` counters, each with a waiter word and a semaphore of its own.

    The waiter sleeps at once and has no tick, so a lost wake-up is a hang.
    """

    cdef awaited_t[MOST] awaited
    cdef watch_t[MOST] watches
    cdef uint64_t[MOST] words
    cdef uint64_t[MOST] counters
    cdef sem_t[MOST] beds
    cdef shmring_ring_role role
    cdef shmring_ring_counts counts
    cdef uint64_t done
    cdef int n

    def __cinit__(self, int n, uint64_t start):
        cdef int i
        self.n = n
        for i in range(n):
            self.counters[i] = start
            sem_init(&self.beds[i], 0, 0)
            memset(&self.watches[i], 0, sizeof(watch_t))
            self.watches[i].own = self.watches[i].other = &self.role
            self.watches[i].word, self.watches[i].bed = &self.words[i], &self.beds[i]
            self.watches[i].counts, self.watches[i].tick_ns, self.watches[i].peer_socket = &self.counts, -1, -1
            self.awaited[i].watch, self.awaited[i].counter = &self.watches[i], &self.counters[i]
            self.awaited[i].until = self.awaited[i].wake_at = start + 1

    def wait(self, uint64_t rounds):
        """Wait so many times for the next step of any counter; return how often the waiter slept."""
        cdef patience_t patience
        cdef uint64_t r
        cdef int i
        with nogil:
            for r in range(rounds):
                be_patient(&patience, -1)
                while await_any(self.awaited, self.n, &patience) == UNREADY:
                    pass
                for i in range(self.n):
                    if load_acquire_u64(&self.counters[i]) == self.awaited[i].until:
                        self.awaited[i].until += 1
                        self.awaited[i].wake_at += 1
                        break
                store_release_u64(&self.done, r + 1)
        return self.counts.sleeps

    def wake(self, uint64_t rounds):
        """Move one of the counters so many times, each time once the waiter has seen the last one."""
        cdef uint64_t r, x = 1
        cdef int i, _pause
        with nogil:
            for r in range(rounds):
                while load_acquire_u64(&self.done) < r:
                    sched_yield()
                x = x * <uint64_t>6364136223846793005 + <uint64_t>1442695040888963407
                for _pause in range(<int>(x >> 33) % LONGEST_PAUSE):      # the waiter is anywhere on its way to sleep
                    cpu_pause()
                i = <int>(x >> 48) % self.n
                store_release_u64(&self.counters[i], self.counters[i] + 1)
                before_wake()
                wake_sleeper(&self.words[i], &self.beds[i], self.counters[i])

    def words_left(self):
        """The waiter words that are not 0."""
        cdef int i
        return [self.words[i] for i in range(self.n) if self.words[i]]
