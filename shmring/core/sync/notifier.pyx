"""Eventfds that become readable when a wait is over: for select, epoll and event loops.

A waker posts a semaphore or wakes a word, and only if a waiter sleeps there. So one thread of this process waits for
all ends that have a descriptor: it sleeps on all of their waiter words at once (`core/c/futex.h`), as `shmring.wait`
does, and writes the eventfd. The process at the other end is not involved: no descriptor is passed to it, and it makes
no further system call.

The thread touches an end only under the mutex, and only while that is in its list. So an end that leaves the list is
free at once, though the thread may still sleep on its words: in the kernel, which needs no memory of the process for
that. On more words than one call allows, or on a kernel without that call, it looks at the words at every tick.

The thread is not one of Python's: it begins with the first wait, has all signals blocked, and ends with the process.
"""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import os

from shmring.core.c.atomics cimport load_relaxed_u64
from shmring.core.c.thread cimport (SMALL_STACK_NBYTES, pthread_detach, pthread_mutex_init, pthread_mutex_lock,
                                pthread_mutex_t, pthread_mutex_unlock, pthread_t, start_thread)
from shmring.core.sync.backoff cimport (FIRST_TICK_NS, FUTEX_WAITV_WORDS, announce_sleep, futex_of, futex_t,
                                   has_futex_waitv, now_ns, sleep_on_futex, sleep_on_futexes, wake_word,
                                   withdraw_sleep)
from shmring.core.sync.liveness cimport fork_generation

cdef extern from "core/c/descriptors.h" nogil:
    int above_standard(int descriptor)

cdef extern from "<sys/eventfd.h>" nogil:
    const int EFD_CLOEXEC
    const int EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    int eventfd_write(int descriptor, uint64_t value)
    int eventfd_read(int descriptor, uint64_t *value)

cdef enum:
    LONGEST_BLIND_TICK_NS = 20000000       # while there are words that the thread can only look at

cdef pthread_mutex_t mutex          # guards the following, and all that is armed
cdef notice_t *first = NULL         # the list of what is armed, the newest first
cdef uint64_t news = 0              # moved when one is added: the thread sleeps on this word, too
cdef bint has_thread = False

pthread_mutex_init(&mutex, NULL)


# no_gc: the collector must not drop the memory of the words while they are in the list.
@cython.final
@cython.no_gc
cdef class Notifier:
    """The descriptor of one end: readable at first, and unless the end is armed.

    Parameters
    ----------
    nbytes : int
        Of ``memory``, zeroed, for the owner of the notifier.
    """

    def __cinit__(self, size_t nbytes):
        self.notice.descriptor = -1
        self.memory = calloc(1, nbytes)
        if self.memory == NULL:
            raise MemoryError
        self.notice.descriptor = above_standard(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
        if self.notice.descriptor < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        disarm(&self.notice)
        free(self.memory)
        if self.memory != NULL and self.notice.descriptor >= 0:
            close(self.notice.descriptor)

    cdef bint is_armed(self) noexcept:
        cdef bint found
        pthread_mutex_lock(&mutex)
        found = self.notice.is_armed and self.notice.generation == fork_generation()
        pthread_mutex_unlock(&mutex)
        return found

    cdef int arm(self, sleeper_t *sleeper, is_over_t is_over) except -1:
        """Make the descriptor unreadable until ``is_over(self.memory)``; it is disarmed now."""
        global first, news
        cdef notice_t *notice = &self.notice
        cdef uint64_t value
        have_thread()
        eventfd_read(notice.descriptor, &value)
        notice.sleeper, notice.is_over, notice.what = sleeper, is_over, self.memory
        notice.generation = fork_generation()
        pthread_mutex_lock(&mutex)
        notice.next, notice.previous, notice.is_armed = first, NULL, True
        if first != NULL:
            first.previous = notice
        first = notice
        news += 1
        pthread_mutex_unlock(&mutex)
        wake_word(&news)
        return 0


cdef int have_thread() except -1:
    global has_thread
    cdef pthread_t thread
    cdef int error = 0
    pthread_mutex_lock(&mutex)
    if not has_thread:
        error = start_thread(&thread, SMALL_STACK_NBYTES, "shmring-waiter", wait_for_all, NULL)
        if error == 0:
            pthread_detach(thread)
            has_thread = True
    pthread_mutex_unlock(&mutex)
    if error:
        raise OSError(error, f"cannot start the thread behind the descriptors of ends: {os.strerror(error)}")
    return 0


cdef void disarm(notice_t *notice) noexcept nogil:
    # In a forked child, which has the descriptor in common with its parent, but no thread, there is nothing to do.
    if notice.generation == fork_generation():
        pthread_mutex_lock(&mutex)
        if notice.is_armed:
            end_notice(notice)
        pthread_mutex_unlock(&mutex)


cdef void end_notice(notice_t *notice) noexcept nogil:
    global first
    withdraw_sleep(notice.sleeper)
    if notice.previous != NULL:
        notice.previous.next = notice.next
    else:
        first = notice.next
    if notice.next != NULL:
        notice.next.previous = notice.previous
    notice.is_armed = False
    eventfd_write(notice.descriptor, 1)


def _after_fork_in_child():
    global first, has_thread
    pthread_mutex_init(&mutex, NULL)       # the thread may have had it
    first, has_thread = NULL, False


os.register_at_fork(after_in_child=_after_fork_in_child)


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef bint look_at_all(bint is_tick) noexcept nogil:
    """End each wait that is over; whether there was one."""
    cdef notice_t *at = first
    cdef notice_t *next
    cdef bint found = False
    while at != NULL:
        next = at.next
        if is_tick or load_relaxed_u64(at.sleeper.word) != at.sleeper.what:      # new, or a waker has taken it
            announce_sleep(at.sleeper)
            if at.is_over(at.what):
                end_notice(at)
                found = True
        at = next
    return found


cdef void *wait_for_all(void *_unused) noexcept nogil:
    """The thread's function."""
    cdef futex_t[FUTEX_WAITV_WORDS] futexes
    cdef int most = FUTEX_WAITV_WORDS if has_futex_waitv() else 1
    cdef int64_t tick_ns, tick_at_ns = 0, blind_ns = FIRST_TICK_NS, ns, now
    cdef uint64_t known = 0
    cdef notice_t *at
    cdef int n
    cdef bint is_tick
    pthread_mutex_lock(&mutex)
    while True:
        is_tick = now_ns() >= tick_at_ns
        if look_at_all(is_tick) or news != known:
            blind_ns = FIRST_TICK_NS
        known = news
        futexes[0] = futex_of(&news, news)
        n, tick_ns, at = 1, -1, first
        while at != NULL:
            if at.sleeper.tick_ns >= 0 and not 0 <= tick_ns <= at.sleeper.tick_ns:
                tick_ns = at.sleeper.tick_ns
            if n < most:
                futexes[n] = futex_of(at.sleeper.word, at.sleeper.what)
            n += 1
            at = at.next
        ns, now = -1, now_ns()
        if tick_ns >= 0:
            tick_at_ns = now + tick_ns if is_tick else min(tick_at_ns, now + tick_ns)
            ns = max(tick_at_ns - now, <int64_t>0)
        if n > most and not 0 <= ns <= blind_ns:
            ns = blind_ns
            blind_ns = min(2 * blind_ns, <int64_t>LONGEST_BLIND_TICK_NS)
        pthread_mutex_unlock(&mutex)
        if most > 1:
            sleep_on_futexes(futexes, min(n, most), ns)
        else:
            sleep_on_futex(futexes, ns)
        pthread_mutex_lock(&mutex)
