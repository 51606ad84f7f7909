"""The abort record: the first rank that notices a failure writes it, and wakes all ranks that sleep.

The state word of the record: 0 nothing; (rank + 1) << 8 | 1 while that rank writes it; 2 written. Several ranks may
notice a failure at once: a swap of the state decides which one writes.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset, strncpy

from shmring.core.c.atomics cimport (compare_swap_u32, cpu_pause, load_acquire_u32, load_acquire_u64, load_relaxed_u64,
                                 store_release_u32)
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_ABORTED, SHMRING_LATE, SHMRING_LOST, shmring_abort
from shmring.core.sync.backoff cimport before_wake, now_ns, sem_post, take_sleeper
from shmring.core.sync.liveness cimport DEAD, liveness_state
from shmring.core.sync.wait_graph cimport find_late

cdef enum:
    REPORT_PATIENCE_NS = 1000000000


# ---- waking ----------------------------------------------------------------------------------------------------------

cdef void wake_rank(group_t *g, int rank, uint64_t word) noexcept nogil:
    """Wake a rank; ``word`` is what was loaded of its waiter word."""
    if take_sleeper(&g.outbox[rank].asleep, word):
        fault_point("wake")
        sem_post(&g.outbox[rank].wake)


cdef void wake_all(group_t *g) noexcept nogil:
    """Wake every rank that sleeps, whatever it waits for. Call after storing what all have to look at."""
    cdef uint64_t word
    cdef int j
    before_wake()
    g = g.first
    while g != NULL:
        for j in range(g.size):      # the own rank, too: another of its threads may sleep
            word = load_relaxed_u64(&g.outbox[j].asleep)
            if word != 0:
                wake_rank(g, j, word)
            word = load_relaxed_u64(&g.outbox[j].pair_queues_asleep)
            if word != 0 and take_sleeper(&g.outbox[j].pair_queues_asleep, word):
                sem_post(&g.outbox[j].pair_queues_wake)
        g = g.next


# ---- the record ------------------------------------------------------------------------------------------------------

cdef bint in_trouble(group_t *g) noexcept nogil:
    # SYNC trouble (meets: write_record, complete_report): the whole record is visible.
    return load_acquire_u32(&g.record.state) == WRITTEN


cdef inline bint start_report(group_t *g) noexcept nogil:
    return compare_swap_u32(&g.record.state, 0, <uint32_t> (g.rank + 1) << 8 | 1)


cdef void report_trouble(group_t *g, uint32_t cause, int about, uint64_t round, uint64_t mine, uint64_t theirs,
                         const char *reason) noexcept nogil:
    """Write the record, unless another rank was first, and wake all ranks."""
    if start_report(g):
        fault_point("report")
        strncpy(g.record.reason, reason, sizeof(g.record.reason) - 1)
        write_record(g, cause, about, round, mine, theirs)
    fault_point("reported")
    wake_all(g)


cdef void report_late(group_t *g, int counter, int rank, uint64_t need, uint64_t mine) noexcept nogil:
    """`report_trouble` for a timeout of this rank, about the ranks that cause it."""
    cdef int about
    if start_report(g):
        fault_point("report")
        about = find_late(g, counter, rank, need, g.record.late)
        write_record(g, SHMRING_LATE, about, need, mine, call_of(g, about) if about >= 0 else 0)
    fault_point("reported")
    wake_all(g)


cdef void report_overwritten(group_t *g) noexcept nogil:
    """Report that this rank cannot sleep: a process has stored something else in the place of its semaphore."""
    report_trouble(g, SHMRING_ABORTED, g.rank, load_relaxed_u64(&g.outbox[g.rank].consumed), 0, 0,
                   b"shared memory is corrupted: the semaphore on which this rank waits was overwritten")


cdef void write_record(group_t *g, uint32_t cause, int about, uint64_t round, uint64_t mine,
                       uint64_t theirs) noexcept nogil:
    cdef shmring_abort *record = g.record
    record.cause = cause
    record.by = g.rank
    record.about = about
    record.round = round
    record.mine = mine
    record.theirs = theirs
    store_release_u32(&record.state, WRITTEN)      # SYNC trouble (meets: in_trouble)


cdef uint64_t call_of(group_t *g, int rank) noexcept nogil:
    """The signature of the call that ``rank`` is in: a collective, else a message it sleeps for, else 0."""
    cdef uint64_t current = load_acquire_u64(&g.outbox[rank].current)
    return current if current else load_relaxed_u64(&g.outbox[rank].awaiting)


# ---- a writer that dies or stops over the record ---------------------------------------------------------------------

cdef inline int writer_of(uint32_t state) noexcept nogil:
    return <int> (state >> 8) - 1


cdef bint is_reported(group_t *g) noexcept nogil:
    """Whether the record is written. If its writer died over it, it is completed, and is about that writer."""
    cdef uint32_t state = load_acquire_u32(&g.record.state)
    cdef int j = writer_of(state)
    if state != 0 and state != WRITTEN and 0 <= j < g.size and j != g.rank and liveness_state(g.liveness[j]) == DEAD:
        complete_report(g, SHMRING_LOST, j)
    return in_trouble(g)


cdef void complete_report(group_t *g, uint32_t cause, int about) noexcept nogil:
    """Finish a record in place of its writer, which may still store to it: all that both store is valid."""
    cdef shmring_abort *record = g.record
    record.cause = cause
    record.by = record.about = about
    memset(record.late, 0, sizeof(record.late))
    store_release_u32(&record.state, WRITTEN)      # SYNC trouble (meets: in_trouble)


cdef void insist_on_report(group_t *g) noexcept nogil:
    """Wait for a record that is being written: for nanoseconds, or until its writer is dead, or one second.

    A writer that has stopped is reported as late; if the state names no rank, it was overwritten.
    """
    cdef int64_t patience_until = now_ns() + REPORT_PATIENCE_NS
    cdef int j
    while not is_reported(g):
        cpu_pause()
        if now_ns() >= patience_until:
            j = writer_of(load_acquire_u32(&g.record.state))
            complete_report(g, SHMRING_LATE, j if 0 <= j < g.size else g.rank)
