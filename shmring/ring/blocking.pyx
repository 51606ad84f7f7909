"""Waiting at a ring: spin, yield, sleep, until the other end's counter comes to a number; waking who sleeps so.

Each end has a *bell*. Who sleeps writes there what number it sleeps for; who moves a counter looks at the other's bell,
and makes a system call only if that is the number. The awaited end's liveness is looked at after spinning and at every
tick of sleep, so a wait for the dead ends.
"""

from libc.stdint cimport INT64_MAX

from shmring._c.atomics cimport (compare_swap_u32, cpu_pause, full_fence, load_acquire_u32, load_acquire_u64,
                              load_relaxed_u32, load_relaxed_u64, store_relaxed_u32, store_relaxed_u64,
                              store_release_u32)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport sem_t
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.sync.wait cimport READY, UNREADY, now_ns


cdef extern from "sleep.h" nogil:
    void sleep_on(sem_t *sem, int64_t ns)
    int sched_yield()
    int sem_post(sem_t *sem)

# Stages of a wait, as far as patience_t remembers them between two calls.
cdef enum:
    FRESH = 0
    SPIN = 1
    SLEEP = 3

cdef enum:
    LOOKS_PER_CLOCK = 32       # looks between two readings of the clock: about a microsecond of pauses
    BRIEF_LOOKS = 64
    FIRST_TICK_NS = 1000000


cdef inline bint has_come(const uint64_t *counter, uint64_t until) noexcept nogil:
    # SYNC filled (meets: ring_commit in ring/spsc.pxd), SYNC drained (meets: ring_release in ring/spsc.pxd). Every
    # caller loads the counter again, by ring_ready or ring_free.
    return <int64_t> (load_acquire_u64(counter) - until) >= 0


# ---- waking ----------------------------------------------------------------------------------------------------------

cdef void rouse(watch_t *w, uint64_t value) noexcept nogil:
    # SYNC end asleep (meets: sleep_a_tick): the number of this very sleep, or of a later one, whose sleeper then has seen
    # our counter. The swap makes one waker of two: one post per sleep, so tokens cannot pile up in the semaphore.
    if load_acquire_u32(&w.others.asleep) and <int64_t> (value - load_relaxed_u64(&w.others.until)) >= 0:
        if compare_swap_u32(&w.others.asleep, 1, 0):
            fault_point("toll")
            sem_post(w.wake)


cdef void ring_bell(watch_t *w, uint64_t value) noexcept nogil:
    # SYNC end asleep (meets: sleep_a_tick). The counter just moved must be visible before we read whether anyone sleeps;
    # the sleeper says so, fences, and looks at the counter again. In every order of these steps one of the two sees the
    # other.
    full_fence()
    if load_relaxed_u32(&w.others.asleep):
        rouse(w, value)


# ---- waiting ---------------------------------------------------------------------------------------------------------

cdef int await_briefly(watch_t *w, const uint64_t *counter, uint64_t until) noexcept nogil:
    cdef int _i
    if w.spin_ns:
        for _i in range(BRIEF_LOOKS):
            if has_come(counter, until):
                return READY
            cpu_pause()
    return UNREADY


cdef void sleep_a_tick(watch_t *w, const uint64_t *counter, uint64_t until, uint64_t rouse_at,
                       patience_t *patience) noexcept nogil:
    cdef int64_t ns = patience.tick_ns
    if patience.timeout_ns >= 0:
        ns = max(0, min(ns, patience.deadline_ns - now_ns()))
    store_relaxed_u64(&w.bell.until, rouse_at)
    store_release_u32(&w.bell.asleep, 1)
    # SYNC end asleep (meets: ring_bell).
    full_fence()
    fault_point("nap")
    if not has_come(counter, until):
        w.counts.sleeps += 1
        sleep_on(&w.bell.wake, ns)
    store_relaxed_u32(&w.bell.asleep, 0)
    patience.tick_ns = min(2 * patience.tick_ns, w.tick_ns)


cdef int look_again(watch_t *w, const uint64_t *counter, uint64_t until, patience_t *patience) noexcept nogil:
    """READY, GONE or LATE; UNREADY if there is hope."""
    # The end first, the counter second: what it did before it went is not lost.
    cdef int state = ring_end_state(w.other)
    if has_come(counter, until):
        return READY
    if state == END_CLOSED or state == END_LOST:
        return GONE
    if patience.timeout_ns >= 0 and now_ns() >= patience.deadline_ns:
        return LATE
    return UNREADY


cdef int await_counter(watch_t *w, const uint64_t *counter, uint64_t until, uint64_t rouse_at,
                       patience_t *patience) noexcept nogil:
    cdef int64_t now
    cdef int _i, outcome
    if patience.stage == FRESH:
        now = now_ns()
        w.counts.waits += 1
        patience.stage = SPIN
        patience.tick_ns = FIRST_TICK_NS
        # Two ends that may use only one and the same processor need it for each other.
        patience.spin_until_ns = now if w.own.only and w.own.only == w.other.only else now + w.spin_ns
        if patience.timeout_ns >= 0:
            patience.deadline_ns = now + min(patience.timeout_ns, INT64_MAX - now)
            patience.spin_until_ns = min(patience.spin_until_ns, patience.deadline_ns)
    while patience.stage == SPIN:
        for _i in range(LOOKS_PER_CLOCK):
            if has_come(counter, until):
                return READY
            cpu_pause()
        if now_ns() >= patience.spin_until_ns:
            patience.stage = SLEEP
            for _i in range(w.yields):
                sched_yield()
                if has_come(counter, until):
                    return READY
        else:
            sched_yield()      # the awaited end may want this very processor
    outcome = look_again(w, counter, until, patience)
    if outcome == UNREADY:
        sleep_a_tick(w, counter, until, rouse_at, patience)
        outcome = look_again(w, counter, until, patience)
    return outcome
