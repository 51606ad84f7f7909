"""Waiting: spin, yield, sleep; wake; notice the dead; hear of trouble.

A rank waits for counters of other ranks to reach a number. It spins with pauses for some tens of microseconds, offering
its processor to others every microsecond or two (next to no spinning where ranks outnumber processors: the awaited peer
needs this very core), yields a few times, then sleeps on its own semaphore in ticks, looking after the living at each
tick. A rank that moves a counter makes no system call unless a sleeper has said that it waits for just that.
"""

from libc.stdint cimport INT64_MAX
from libc.string cimport memset, strncpy

from shmring._c.atomics cimport (compare_swap_u32, compare_swap_u64, cpu_pause, full_fence, load_acquire_u32,
                              load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u32)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_LATE, SHMRING_LEFT, SHMRING_LOST, SHMRING_MISMATCH, sem_t, shmring_abort
from shmring.sync.liveness cimport DEAD, life_state
from shmring.sync.wait_graph cimport counter_of, find_late, lacks, want_of, whom_of


cdef extern from "sleep.h" nogil:
    int64_t monotonic_ns()
    void sleep_on(sem_t *sem, int64_t ns)
    int sched_yield()
    int sem_post(sem_t *sem)

cdef enum:
    FRESH = 0
    SPIN = 1
    YIELD = 2
    SLEEP = 3

cdef enum:
    LOOKS_PER_CLOCK = 32     # looks between two readings of the clock: about a microsecond of pauses
    FIRST_TICK_NS = 1000000
    REPORT_PATIENCE_NS = 1000000000
    LONGEST_SPIN_NS = 1000000    # without a look at the living, the clock and signals, whatever the budget


cdef int64_t now_ns() noexcept nogil:
    return monotonic_ns()


cdef void be_patient(patience_t *patience, int64_t timeout_ns) noexcept nogil:
    patience.stage = FRESH
    patience.tick_ns = FIRST_TICK_NS
    patience.timeout_ns = timeout_ns
    patience.deadline_ns = 0


# ---- is it there? ----------------------------------------------------------------------------------------------------

cdef inline bint has_reached(circle_t *c, int what, int who, uint64_t need) noexcept nogil:
    if c.seen[what][who] < need:
        # SYNC published (meets: publish in engine/rounds.pyx, finish in engine/rounds.pyx): the slots of all rounds below
        # the count, and their signatures, are visible.
        # SYNC consumed (meets: release in engine/rounds.pyx, finish in engine/rounds.pyx, conclude in engine/eager.pyx):
        # that rank's reads of those slots are over, they may be overwritten.
        c.seen[what][who] = load_acquire_u64(counter_of(c, what, who))
    return c.seen[what][who] >= need


cdef bint is_ready(circle_t *c, int what, int whom, uint64_t need) noexcept nogil:
    cdef int j
    if whom != EVERYONE:
        return has_reached(c, what, whom, need)
    for j in range(c.size):
        if not has_reached(c, what, j, need):
            return False
    return True


# ---- waking ----------------------------------------------------------------------------------------------------------

# A sleeper's word says what it wants, so that only whoever completes that wakes it.

cdef bint is_due(circle_t *c, int sleeper, uint64_t want) noexcept nogil:
    cdef int whom = whom_of(want), j
    if whom != EVERYONE:
        return whom == c.rank and not lacks(c, want, whom)
    for j in range(c.size):
        if j != sleeper and lacks(c, want, j):
            return False     # that one will come after us, see our counter, and wake the sleeper
    return True


cdef void rouse(circle_t *c, int sleeper, uint64_t word) noexcept nogil:
    # The swap makes one waker of many: one post per sleep, so tokens cannot pile up in the semaphore.
    if compare_swap_u64(&c.outbox[sleeper].asleep, word, 0):
        fault_point("rouse")
        sem_post(&c.outbox[sleeper].wake)


cdef void wake_waiters(circle_t *c) noexcept nogil:
    """Call after moving an own counter."""
    cdef int j
    cdef uint64_t word
    # SYNC rank asleep (meets: sleep_a_tick). The counter we just moved must be visible before we read whether any
    # rank sleeps; the sleeper writes its word, fences, and looks at the counters again. In every order of
    # these four steps either we see its word, or it sees our counter: no wake-up is lost. The same argument between
    # two wakers makes the later one see the earlier one's counter in is_due.
    full_fence()
    for j in range(c.size):
        word = load_relaxed_u64(&c.outbox[j].asleep)
        if word != 0 and j != c.rank and is_due(c, j, word):
            rouse(c, j, word)


cdef void rouse_everyone(circle_t *c) noexcept nogil:
    """Wake whoever sleeps, whatever it sleeps for. Call after writing what they should hear of."""
    cdef uint64_t word
    cdef int j
    # SYNC rank asleep (meets: sleep_a_tick), SYNC p2p asleep (meets: doze in p2p/pair_queue.pyx).
    full_fence()
    c = c.first
    while c != NULL:
        for j in range(c.size):      # the own rank, too: another of its threads may sleep
            word = load_relaxed_u64(&c.outbox[j].asleep)
            if word != 0:
                rouse(c, j, word)
            word = load_relaxed_u64(&c.outbox[j].pair_queues_asleep)
            if word != 0 and compare_swap_u64(&c.outbox[j].pair_queues_asleep, word, 0):
                sem_post(&c.outbox[j].pair_queues_wake)     # also our own: another thread may sleep for messages
        c = c.next


# ---- trouble ---------------------------------------------------------------------------------------------------------

# The state word of the record: 0 nothing; rank + 1 << 8 | 1 being written by that rank; 2 written.
cdef inline shmring_abort *record_of(circle_t *c) noexcept nogil:
    return c.record


cdef bint in_trouble(circle_t *c) noexcept nogil:
    # SYNC trouble (meets: write_record, complete_report): the whole record is visible.
    return load_acquire_u32(&record_of(c).state) == 2


cdef void report_trouble(circle_t *c, uint32_t cause, int about, uint64_t round, uint64_t mine, uint64_t theirs,
                         const char *reason) noexcept nogil:
    """First reporter wins; then everyone asleep is woken, whatever it sleeps for."""
    cdef shmring_abort *record = record_of(c)
    if compare_swap_u32(&record.state, 0, <uint32_t> (c.rank + 1) << 8 | 1):
        fault_point("report")
        strncpy(record.reason, reason, sizeof(record.reason) - 1)
        write_record(c, cause, about, round, mine, theirs)
    fault_point("reported")
    rouse_everyone(c)


cdef void report_late(circle_t *c, int what, int whom, uint64_t need, uint64_t mine) noexcept nogil:
    """The same, about whoever keeps this rank waiting."""
    cdef shmring_abort *record = record_of(c)
    cdef int about
    if compare_swap_u32(&record.state, 0, <uint32_t> (c.rank + 1) << 8 | 1):
        fault_point("report")
        about = find_late(c, what, whom, need, record.late)
        write_record(c, SHMRING_LATE, about, need, mine, call_of(c, about) if about >= 0 else 0)
    fault_point("reported")
    rouse_everyone(c)


cdef void write_record(circle_t *c, uint32_t cause, int about, uint64_t round, uint64_t mine,
                       uint64_t theirs) noexcept nogil:
    cdef shmring_abort *record = record_of(c)
    record.cause = cause
    record.by = c.rank
    record.about = about
    record.round = round
    record.mine = mine
    record.theirs = theirs
    store_release_u32(&record.state, 2)      # SYNC trouble (meets: in_trouble)


cdef bint is_elsewhere(circle_t *c, int j) noexcept nogil:
    """Whether rank ``j`` stands at the same round as we do, but in another call.

    Neither of two ranks that disagree need ever publish: each may take the other for the root. So this is looked at
    while nothing comes. `current` is cleared before `consumed` passes a call's last round (conclude in engine/eager.pyx, finish
    in engine/rounds.pyx), so with equal counts it is of this round or 0.
    """
    cdef uint64_t ours = c.outbox[c.rank].current, theirs
    cdef uint64_t round = load_relaxed_u64(&c.outbox[c.rank].consumed)
    # SYNC consumed (meets: finish in engine/rounds.pyx, conclude in engine/eager.pyx).
    if load_acquire_u64(&c.outbox[j].consumed) != round:
        return False
    fault_point("elsewhere")
    # SYNC current (meets: start_eager in engine/eager.pyx, begin_execution in engine/engine.pyx, take_part in
    # engine/thread_team.pyx). Since the load of its count that rank may have ended this round and begun another call:
    # if that call's signature is loaded here, the load of the count below returns the higher number.
    theirs = load_acquire_u64(&c.outbox[j].current)
    if theirs == 0 or theirs == ours or load_acquire_u64(&c.outbox[j].consumed) != round:
        return False
    report_trouble(c, SHMRING_MISMATCH, j, round, ours, theirs, b"")
    return True


cdef bint is_reported(circle_t *c) noexcept nogil:
    """Whether the record is there. One that its writer died over is completed: about that writer."""
    cdef shmring_abort *record = record_of(c)
    cdef uint32_t state = load_acquire_u32(&record.state)
    cdef int j
    if state != 0 and state != 2:
        j = <int> (state >> 8) - 1
        if 0 <= j < c.size and j != c.rank and life_state(c.life[j]) == DEAD:
            complete_report(c, SHMRING_LOST, j)
    return in_trouble(c)


cdef void complete_report(circle_t *c, uint32_t cause, int about) noexcept nogil:
    """Finish a record whose writer cannot. He may yet write into it: all that he and others write is valid."""
    cdef shmring_abort *record = record_of(c)
    record.cause = cause
    record.by = record.about = about
    memset(record.late, 0, sizeof(record.late))
    store_release_u32(&record.state, 2)      # SYNC trouble (meets: in_trouble)


cdef void insist_on_report(circle_t *c) noexcept nogil:
    """Wait for a record that is being written: for nanoseconds, or until its writer is dead, or a second.

    Who has stopped in the middle is late; where the word names no rank something has overwritten it.
    """
    cdef int64_t patience_until = now_ns() + REPORT_PATIENCE_NS
    cdef int j
    while not is_reported(c):
        cpu_pause()
        if now_ns() >= patience_until:
            j = <int> (load_acquire_u32(&record_of(c).state) >> 8) - 1
            complete_report(c, SHMRING_LATE, j if 0 <= j < c.size else c.rank)


cdef bint look_after_the_living(circle_t *c, int what, int whom, uint64_t need) noexcept nogil:
    """Report a rank that will never bring what we wait for. True if there is trouble.

    A dead rank matters also when we wait for another: that one may be waiting for the dead. It does not matter if it
    did all that is needed before it went.
    """
    cdef int j
    fault_point("look")
    if is_reported(c):
        return True
    for j in range(c.size):
        if has_reached(c, what, j, need):
            continue
        if is_elsewhere(c, j):
            return True
        # SYNC left (meets: mark_left in engine/engine.pyx). The counters of a rank that has left are final.
        if load_acquire_u32(&c.outbox[j].left):
            if (whom == j or whom == EVERYONE) and not has_reached(c, what, j, need):
                report_trouble(c, SHMRING_LEFT, j, need, c.outbox[c.rank].current, 0, b"")
                return True
        elif life_state(c.life[j]) == DEAD and not has_reached(c, what, j, need):
            report_trouble(c, SHMRING_LOST, j, need, c.outbox[c.rank].current, c.outbox[j].current, b"")
            return True
    return False


cdef uint64_t call_of(circle_t *c, int j) noexcept nogil:
    """The signature of what rank ``j`` is in: a collective, else a message it sleeps for, else 0."""
    cdef uint64_t current = load_acquire_u64(&c.outbox[j].current)
    return current if current else load_relaxed_u64(&c.outbox[j].awaiting)


cdef bint is_too_late(circle_t *c, int what, int whom, uint64_t need, patience_t *patience) noexcept nogil:
    if patience.timeout_ns < 0 or now_ns() < patience.deadline_ns:
        return False
    report_late(c, what, whom, need, c.outbox[c.rank].current)
    return True


# ---- the wait --------------------------------------------------------------------------------------------------------

cdef void sleep_a_tick(circle_t *c, int what, int whom, uint64_t need, patience_t *patience) noexcept nogil:
    cdef uint64_t *asleep = &c.outbox[c.rank].asleep
    cdef int64_t ns = patience.tick_ns
    if patience.timeout_ns >= 0:
        ns = max(0, min(ns, patience.deadline_ns - now_ns()))
    store_relaxed_u64(asleep, want_of(what, whom, need))
    # SYNC rank asleep (meets: wake_waiters, rouse_everyone).
    full_fence()
    fault_point("sleep")
    if not is_ready(c, what, whom, need) and not in_trouble(c):
        sleep_on(&c.outbox[c.rank].wake, ns)
    store_relaxed_u64(asleep, 0)
    patience.tick_ns = min(2 * patience.tick_ns, c.tick_ns)


cdef int wait_until(circle_t *c, int what, int whom, uint64_t need, patience_t *patience) noexcept nogil:
    """Wait for the counter ``what`` of ``whom`` (a rank or EVERYONE) to reach ``need``.

    Called without the GIL. READY, TROUBLE, or UNREADY after a tick or a signal: the caller then lets Python
    handle signals and calls again with the same patience.
    """
    cdef int64_t started, now, look_at_ns = 0
    cdef int _i
    if is_ready(c, what, whom, need):
        return READY
    if patience.stage == FRESH:
        started = now_ns()
        patience.stage = SPIN
        patience.spin_until_ns = started + c.spin_ns
        if patience.deadline_ns == 0 and patience.timeout_ns >= 0:
            patience.deadline_ns = started + min(patience.timeout_ns, INT64_MAX - started)
    while patience.stage == SPIN:
        for _i in range(LOOKS_PER_CLOCK):
            if is_ready(c, what, whom, need):
                patience.stage = FRESH
                return READY
            cpu_pause()
        if in_trouble(c):
            return TROUBLE
        now = now_ns()
        if look_at_ns == 0:
            look_at_ns = now + LONGEST_SPIN_NS
        if now >= patience.spin_until_ns:
            patience.stage = YIELD
        elif now >= look_at_ns:
            store_relaxed_u64(&c.outbox[c.rank].wants, want_of(what, whom, need))
            if look_after_the_living(c, what, whom, need) or is_too_late(c, what, whom, need, patience):
                return TROUBLE
            return UNREADY
        else:
            # The awaited rank may want this very processor. Where nobody does, it costs a fraction of the microsecond
            # that has been waited already.
            sched_yield()
    if patience.stage == YIELD:
        store_relaxed_u64(&c.outbox[c.rank].wants, want_of(what, whom, need))
        for _i in range(c.yields):
            sched_yield()
            if is_ready(c, what, whom, need):
                patience.stage = FRESH
                return READY
        if look_after_the_living(c, what, whom, need):
            return TROUBLE
        patience.stage = SLEEP
    while True:
        sleep_a_tick(c, what, whom, need, patience)
        if is_ready(c, what, whom, need):
            patience.stage = FRESH
            return READY
        if look_after_the_living(c, what, whom, need) or is_too_late(c, what, whom, need, patience):
            return TROUBLE
        return UNREADY
