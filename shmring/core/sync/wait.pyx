"""Waiting for other ranks' counters: spin, yield, sleep; notice dead ranks, timeouts and aborts; wake waiting ranks.

A rank waits until a counter of one rank, or of all, has reached a number. It spins with pauses for tens of
microseconds, offering its processor to others every microsecond or two (next to no spinning where ranks outnumber
processors: the awaited rank needs this very core), yields a few times, then sleeps on its own semaphore in ticks, and
checks the others' liveness at each tick (core/c/backoff.h). A rank that moves a counter makes no system call unless a
waiter word shows that a rank sleeps until this counter moves.
"""

from shmring.core.c.atomics cimport load_acquire_u32, load_acquire_u64, load_relaxed_u64, store_relaxed_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_LEFT, SHMRING_LOST, SHMRING_MISMATCH, shmring_outbox
from shmring.core.sync.abort cimport in_trouble, is_reported, report_late, report_overwritten, report_trouble, wake_rank
from shmring.core.sync.backoff cimport (BROKEN, CHECK, FRESH, LOOK, SLEEPS, TICK, back_off, before_wake, end_wait,
                                   is_past_deadline, now_ns, sleeper_t)
from shmring.core.sync.group cimport EVERYONE, READY, TROUBLE, UNREADY, counter_of
from shmring.core.sync.liveness cimport DEAD, liveness_state
from shmring.core.sync.wait_graph cimport awaited_rank, lacks, wait_word


cdef inline bint has_reached(group_t *g, int counter, int rank, uint64_t need) noexcept nogil:
    if g.seen[counter][rank] < need:
        # SYNC published (meets: publish in collectives/engine/rounds.pyx, finish in collectives/engine/rounds.pyx): the
        # slots of all rounds below the count, and their signatures, are visible.
        # SYNC consumed (meets: release in collectives/engine/rounds.pyx, finish in collectives/engine/rounds.pyx,
        # conclude in collectives/engine/eager.pyx): that rank's reads of those slots are over, they may be overwritten.
        g.seen[counter][rank] = load_acquire_u64(counter_of(g, counter, rank))
    return g.seen[counter][rank] >= need


cdef bint is_ready(group_t *g, int counter, int rank, uint64_t need) noexcept nogil:
    cdef int j
    if rank != EVERYONE:
        return has_reached(g, counter, rank, need)
    for j in range(g.size):
        if not has_reached(g, counter, j, need):
            return False
    return True


# ---- waking ----------------------------------------------------------------------------------------------------------

cdef bint is_due(group_t *g, int waiter, uint64_t word) noexcept nogil:
    """Whether the wait of ``word`` is over, and this rank has completed it."""
    cdef int rank = awaited_rank(word), j
    if rank != EVERYONE:
        return rank == g.rank and not lacks(g, word, rank)
    for j in range(g.size):
        if j != waiter and lacks(g, word, j):
            return False     # that rank moves its counter later, sees ours, and wakes the waiter
    return True


cdef void wake_waiters(group_t *g) noexcept nogil:
    """Call after moving an own counter."""
    cdef int j
    cdef uint64_t word
    # Between two wakers this fence makes the later one see the earlier one's counter in is_due.
    before_wake()
    for j in range(g.size):
        word = load_relaxed_u64(&g.outbox[j].asleep)
        if word != 0 and j != g.rank and is_due(g, j, word):
            wake_rank(g, j, word)


# ---- checks ----------------------------------------------------------------------------------------------------------

cdef bint is_elsewhere(group_t *g, int rank) noexcept nogil:
    """Whether ``rank`` is at the same round as this rank, but in another call.

    Neither of two ranks that disagree need ever publish: each may believe that the other is the root. So this is
    checked while nothing comes. `current` is cleared before `consumed` passes a call's last round (conclude in
    collectives/engine/eager.pyx, finish in collectives/engine/rounds.pyx), so with equal counts it is of this round or
    0.
    """
    cdef uint64_t ours = g.outbox[g.rank].current, theirs
    cdef uint64_t round = load_relaxed_u64(&g.outbox[g.rank].consumed)
    # SYNC consumed (meets: finish in collectives/engine/rounds.pyx, conclude in collectives/engine/eager.pyx).
    if load_acquire_u64(&g.outbox[rank].consumed) != round:
        return False
    fault_point("elsewhere")
    # SYNC current (meets: start_eager in collectives/engine/eager.pyx, open_execution in
    # collectives/engine/compiled_plan.pyx). Since the load of its count that rank may have ended this round and begun
    # another call: if that call's signature is loaded here, the load of the count below returns the higher number.
    theirs = load_acquire_u64(&g.outbox[rank].current)
    if theirs == 0 or theirs == ours or load_acquire_u64(&g.outbox[rank].consumed) != round:
        return False
    report_trouble(g, SHMRING_MISMATCH, rank, round, ours, theirs, b"")
    return True


cdef bint check_ranks(group_t *g, int counter, int rank, uint64_t need) noexcept nogil:
    """Report a rank that will never bring what is awaited. True if there is trouble.

    A dead rank matters also while another one is awaited, which may be waiting for the dead one. It does not matter if
    its counter had reached ``need`` before it died.
    """
    cdef int j
    fault_point("look")
    if is_reported(g):
        return True
    for j in range(g.size):
        if has_reached(g, counter, j, need):
            continue
        if is_elsewhere(g, j):
            return True
        # SYNC left (meets: mark_left in collectives/engine/engine.pyx). The counters of a rank that has left are final.
        if load_acquire_u32(&g.outbox[j].left):
            if (rank == j or rank == EVERYONE) and not has_reached(g, counter, j, need):
                report_trouble(g, SHMRING_LEFT, j, need, g.outbox[g.rank].current, 0, b"")
                return True
        elif liveness_state(g.liveness[j]) == DEAD and not has_reached(g, counter, j, need):
            report_trouble(g, SHMRING_LOST, j, need, g.outbox[g.rank].current, g.outbox[j].current, b"")
            return True
    return False


# ---- the wait --------------------------------------------------------------------------------------------------------

cdef inline void count_wait(group_t *g, shmring_outbox *own, patience_t *patience) noexcept nogil:
    if patience.stage != FRESH:
        if g.first_wait_ns == 0:
            g.first_wait_ns = patience.began_ns
        store_relaxed_u64(&own.waited_ns, own.waited_ns + <uint64_t> (now_ns() - patience.began_ns))


cdef int wait_until(group_t *g, int counter, int rank, uint64_t need, patience_t *patience) noexcept nogil:
    """Wait until ``counter`` of ``rank`` (or of EVERYONE) has reached ``need``.

    Called without the GIL. READY, TROUBLE, or UNREADY after a tick or a signal: the caller then lets Python
    handle signals and calls again with the same patience.
    """
    cdef shmring_outbox *own = g.outbox[g.rank]
    cdef sleeper_t sleeper
    cdef int step = LOOK
    if is_ready(g, counter, rank, need):
        if patience.stage != FRESH:      # since the last call, which returned UNREADY
            count_wait(g, own, patience)
            end_wait(patience, NULL)      # no sleep is announced between two calls
        return READY
    sleeper = sleeper_t(word=&own.asleep, what=wait_word(counter, rank, need), wake=&own.wake, next=NULL,
                        spin_ns=g.spin_ns, yields=g.yields, tick_ns=g.tick_ns, spin=NULL, looks=g.looks)
    while True:
        if step >= CHECK:
            store_relaxed_u64(&own.waiting_since, <uint64_t> patience.began_ns)
            store_relaxed_u64(&own.last_wait, sleeper.what)
            if check_ranks(g, counter, rank, need):
                break
            if is_past_deadline(patience):
                report_late(g, counter, rank, need, own.current)
                break
            if step == TICK:
                return UNREADY
        elif step != LOOK and in_trouble(g):
            break
        step = back_off(patience, &sleeper)
        if step == BROKEN:
            report_overwritten(g)
            break
        if patience.stage == SLEEPS and step < CHECK:
            fault_point("sleep")
        if is_ready(g, counter, rank, need):
            count_wait(g, own, patience)
            end_wait(patience, &sleeper)
            return READY
    end_wait(patience, &sleeper)
    # What another rank has reported may have come after the awaited counter, since the last look at that.
    if in_trouble(g) and g.record.by != g.rank and is_ready(g, counter, rank, need):
        return READY
    return TROUBLE
