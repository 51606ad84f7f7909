"""Waiting at several rings at once: one sleeper, a waiter word at each ring, one semaphore for all of them.

The sleeper stores in the waiter word of every ring the number it waits for there. A producer loads the word of its own
ring alone, as in ring/blocking.pyx, and posts the semaphore that all rings share. So nothing differs for a producer,
and one that is not awaited makes no system call.
"""

from libc.stdint cimport int64_t

from shmring._c.atomics cimport load_acquire_u64
from shmring.ring.blocking cimport LATE, sleeper_of
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.sync.backoff cimport CHECK, FRESH, LOOK, SLEEPS, TICK, back_off, end_wait, is_past_deadline
from shmring.sync.group cimport READY, UNREADY


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


cdef int await_any(awaited_t *rings, int n, sem_t *wake, patience_t *patience) noexcept nogil:
    cdef int i, step = LOOK, outcome = READY
    for i in range(n):
        rings[i].sleeper = sleeper_of(rings[i].watch, rings[i].until)
        rings[i].sleeper.next = &rings[i + 1].sleeper if i + 1 < n else NULL
    rings[0].sleeper.wake = wake
    rings[0].sleeper.spin_ns = rings[0].watch.spin_ns
    if patience.stage == FRESH:
        rings[0].watch.counts.waits += 1
    while not any_has_come(rings, n):
        if step >= CHECK:
            if any_is_gone(rings, n):
                break
            if is_past_deadline(patience):
                outcome = READY if any_has_come(rings, n) else LATE
                break
            if step == TICK:
                return UNREADY
        step = back_off(patience, &rings[0].sleeper)
        if patience.stage == SLEEPS and step == TICK:
            rings[0].watch.counts.sleeps += 1
    end_wait(patience, &rings[0].sleeper)
    return outcome
