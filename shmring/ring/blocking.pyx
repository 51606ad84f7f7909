"""Blocking at a ring: wait until the other end's counter has reached a number, and wake the other end.

Before sleeping, an end stores the number it waits for in its waiter word. After advancing a counter, the peer loads
that word and posts the semaphore only if the number was reached. The liveness of the awaited end is checked after
spinning and at every tick of sleep, so a wait for a dead end returns.
"""

from shmring._c.atomics cimport cpu_pause, load_acquire_u64, load_relaxed_u64
from shmring._c.faults cimport fault_point
from shmring.ring.spsc cimport END_CLOSED, END_LOST, ring_end_state
from shmring.sync.backoff cimport (BRIEF_LOOKS, CHECK, FRESH, LOOK, SLEEPS, TICK, back_off, before_wake, end_wait,
                                   is_past_deadline, sem_post, take_sleeper)
from shmring.sync.group cimport READY, UNREADY


cdef inline bint has_come(const uint64_t *counter, uint64_t until) noexcept nogil:
    # SYNC filled (meets: ring_commit in ring/spsc.pxd), SYNC drained (meets: ring_release in ring/spsc.pxd). Every
    # caller loads the counter again, by ring_ready or ring_free.
    return <int64_t> (load_acquire_u64(counter) - until) >= 0


# ---- waking ----------------------------------------------------------------------------------------------------------

cdef void take_peer(watch_t *w, uint64_t word) noexcept nogil:
    if take_sleeper(&w.peer.asleep, word):
        fault_point("ring_wake")
        sem_post(w.wake)


cdef void wake_peer(watch_t *w, uint64_t value) noexcept nogil:
    cdef uint64_t word
    before_wake()
    word = load_relaxed_u64(&w.peer.asleep)
    if word and <int64_t> (waiter_word(value) - word) >= 0:
        take_peer(w, word)


cdef void wake_peer_at_once(watch_t *w) noexcept nogil:
    cdef uint64_t word
    before_wake()
    word = load_relaxed_u64(&w.peer.asleep)
    if word:
        take_peer(w, word)


# ---- waiting ---------------------------------------------------------------------------------------------------------

cdef int await_briefly(watch_t *w, const uint64_t *counter, uint64_t until) noexcept nogil:
    cdef int _i
    if w.spin_ns:
        for _i in range(BRIEF_LOOKS):
            if has_come(counter, until):
                return READY
            cpu_pause()
    return UNREADY


cdef sleeper_t sleeper_of(watch_t *w, uint64_t wake_at) noexcept nogil:
    # Two ends that may use only one and the same processor need it for each other: they do not spin.
    return sleeper_t(word=&w.waiter.asleep, what=waiter_word(wake_at), wake=&w.waiter.wake, next=NULL,
                     spin_ns=0 if w.own.only and w.own.only == w.other.only else w.spin_ns, yields=w.yields,
                     tick_ns=w.tick_ns)


cdef int await_counter(watch_t *w, const uint64_t *counter, uint64_t until, uint64_t wake_at,
                       patience_t *patience) noexcept nogil:
    cdef sleeper_t sleeper = sleeper_of(w, wake_at)
    cdef int step = LOOK, state, outcome = READY
    if patience.stage == FRESH:
        w.counts.waits += 1
    while not has_come(counter, until):
        if step >= CHECK:
            # The other end's state first, its counter second: what it did before it went is not lost.
            state = ring_end_state(w.other)
            if has_come(counter, until):
                break
            if state == END_CLOSED or state == END_LOST:
                outcome = GONE
                break
            if is_past_deadline(patience):
                outcome = LATE
                break
            if step == TICK:
                return UNREADY
        step = back_off(patience, &sleeper)
        if patience.stage == SLEEPS and step != CHECK:
            if step == TICK:
                w.counts.sleeps += 1
            else:
                fault_point("ring_sleep")
    end_wait(patience, &sleeper)
    return outcome
