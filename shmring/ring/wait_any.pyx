"""Waiting at several rings at once: one sleeper, a bell at each ring, one semaphore for all of them.

The sleeper says at every ring for what count it sleeps; who moves a count looks at his own ring's bell alone, as in
ring/blocking.pyx, and posts the semaphore that all of them share. So for a producer nothing is different, and one that is
not waited for makes no system call.
"""

from libc.stdint cimport INT64_MAX, int64_t

from shmring._c.atomics cimport (cpu_pause, full_fence, load_acquire_u64, store_relaxed_u32, store_relaxed_u64,
                              store_release_u32)
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.ring.blocking cimport LATE
from shmring.sync.wait cimport READY, UNREADY, now_ns


cdef extern from "sleep.h" nogil:
    void sleep_on(sem_t *sem, int64_t ns)
    int sched_yield()
    int sem_trywait(sem_t *sem)

cdef enum:                     # stages of a wait, as far as patience_t remembers them between two calls
    FRESH = 0
    SPIN = 1
    SLEEP = 3

cdef enum:
    LOOKS_PER_CLOCK = 32
    FIRST_TICK_NS = 1000000


cdef bint any_has_come(awaited_t *rings, int n) noexcept nogil:
    # SYNC filled (meets: ring_commit in ring/spsc.pxd), SYNC drained (meets: ring_release in ring/spsc.pxd), as in
    # has_come in ring/blocking.pyx.
    cdef int i
    for i in range(n):
        if <int64_t> (load_acquire_u64(rings[i].counter) - rings[i].until) >= 0:
            return True
    return False


cdef bint any_is_gone(awaited_t *rings, int n) noexcept nogil:
    cdef int i, state
    for i in range(n):
        state = ring_end_state(rings[i].watch.other)
        if state == END_CLOSED or state == END_LOST:
            return True
    return False


cdef int look_again(awaited_t *rings, int n, patience_t *patience) noexcept nogil:
    if any_is_gone(rings, n) or any_has_come(rings, n):
        return READY
    if patience.timeout_ns >= 0 and now_ns() >= patience.deadline_ns:
        return LATE
    return UNREADY


cdef void sleep_a_tick(awaited_t *rings, int n, sem_t *wake, patience_t *patience) noexcept nogil:
    cdef int64_t ns = patience.tick_ns
    cdef int i
    if patience.timeout_ns >= 0:
        ns = max(0, min(ns, patience.deadline_ns - now_ns()))
    while sem_trywait(wake) == 0:      # several may have woken the last sleep
        pass
    for i in range(n):
        store_relaxed_u64(&rings[i].watch.bell.until, rings[i].until)
        store_release_u32(&rings[i].watch.bell.asleep, 1)
    # SYNC end asleep (meets: ring_bell in ring/blocking.pyx).
    full_fence()
    if not any_has_come(rings, n):
        rings[0].watch.counts.sleeps += 1
        sleep_on(wake, ns)
    for i in range(n):
        store_relaxed_u32(&rings[i].watch.bell.asleep, 0)
    patience.tick_ns = min(2 * patience.tick_ns, rings[0].watch.tick_ns)


cdef int await_any(awaited_t *rings, int n, sem_t *wake, patience_t *patience) noexcept nogil:
    cdef int64_t now
    cdef int _i, outcome
    if patience.stage == FRESH:
        now = now_ns()
        rings[0].watch.counts.waits += 1
        patience.stage = SPIN
        patience.tick_ns = FIRST_TICK_NS
        patience.spin_until_ns = now + rings[0].watch.spin_ns
        if patience.timeout_ns >= 0:
            patience.deadline_ns = now + min(patience.timeout_ns, INT64_MAX - now)
            patience.spin_until_ns = min(patience.spin_until_ns, patience.deadline_ns)
    while patience.stage == SPIN:
        for _i in range(LOOKS_PER_CLOCK):
            if any_has_come(rings, n):
                return READY
            cpu_pause()
        if now_ns() >= patience.spin_until_ns:
            patience.stage = SLEEP
        else:
            sched_yield()      # the awaited one may want this very processor
    outcome = look_again(rings, n, patience)
    if outcome == UNREADY:
        sleep_a_tick(rings, n, wake, patience)
        outcome = look_again(rings, n, patience)
    return outcome
