"""Eager exchange: a small collective in one round of messages whose cache lines carry data and readiness together.

Line format (NCCL: LL128; UCX: inline). The first line of a message holds the signature and 48 bytes, each further line
56 bytes. Every line ends in its tag, the number of its round plus one, stored last: one cache miss brings the data and
the tag that marks it as complete. No counter is read. A slot is written again only after every rank has consumed its
last round (`claim` in collectives/engine/rounds.pyx).

In an exchange each rank writes at most one message; each reader reads the messages it needs in rank order, and reduces
or places their payloads. Reading more than the minimum costs less than a second synchronisation.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from shmring.core.c.atomics cimport cpu_pause, load_acquire_u64, store_relaxed_u64, store_release_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport (SHMRING_EAGER_NBYTES, SHMRING_FIRST_NBYTES, SHMRING_REST_NBYTES, shmring_eager_line,
                                 shmring_rest_line)
from shmring.collectives.engine.rounds cimport claim, count_call, disagree, finish, publish, remember_call
from shmring.core.sync.group cimport PUBLISHED, READY, TROUBLE, UNREADY
from shmring.core.sync.wait cimport wait_until, wake_waiters


# ---- the line format -------------------------------------------------------------------------------------------------

cdef inline void write_eager(shmring_eager_line *slot, uint64_t round, uint64_t signature, const char *data,
                      size_t nbytes) noexcept nogil:
    cdef shmring_rest_line *line = slot.rest
    slot.first.signature = signature
    memcpy(slot.first.payload, data, min(nbytes, <size_t> SHMRING_FIRST_NBYTES))
    # SYNC eager (meets: has_arrived, read_eager). Line by line: the payload before the tag that marks it as complete.
    store_release_u64(&slot.first.tag, round + 1)
    if nbytes <= SHMRING_FIRST_NBYTES:
        return
    fault_point("line")
    data += SHMRING_FIRST_NBYTES
    nbytes -= SHMRING_FIRST_NBYTES
    while nbytes > SHMRING_REST_NBYTES:      # whole lines: a constant size makes the copy a few moves, no call
        memcpy(line.payload, data, SHMRING_REST_NBYTES)
        store_release_u64(&line.tag, round + 1)
        data += SHMRING_REST_NBYTES
        nbytes -= SHMRING_REST_NBYTES
        line += 1
    memcpy(line.payload, data, nbytes)
    store_release_u64(&line.tag, round + 1)


cdef inline bint has_arrived(shmring_eager_line *slot, uint64_t round) noexcept nogil:
    """Whether the first line is complete; its signature may then be compared."""
    # SYNC eager (meets: write_eager).
    return load_acquire_u64(&slot.first.tag) == round + 1


cdef const char *read_eager(shmring_eager_line *slot, uint64_t round, size_t offset, size_t nbytes,
                            char *scratch) noexcept nogil:
    """Where bytes ``offset`` to ``offset + nbytes`` of a message lie, NULL if one of their lines is not complete yet.

    The first line must be complete. A range within it is read in place; a longer one is gathered in ``scratch``.
    """
    cdef char *into = scratch
    cdef shmring_rest_line *line
    cdef size_t n
    if offset + nbytes <= SHMRING_FIRST_NBYTES:
        return <const char *> slot.first.payload + offset
    if nbytes == 0:
        return scratch      # nothing, at the end of a message: the line behind it is never written
    if offset < SHMRING_FIRST_NBYTES:
        n = SHMRING_FIRST_NBYTES - offset
        memcpy(into, slot.first.payload + offset, n)
        into += n
        nbytes -= n
        offset = 0
    else:
        offset -= SHMRING_FIRST_NBYTES
    line = slot.rest + offset // SHMRING_REST_NBYTES
    offset %= SHMRING_REST_NBYTES
    while nbytes > SHMRING_REST_NBYTES - offset:      # all but the last line
        # SYNC eager (meets: write_eager).
        if load_acquire_u64(&line.tag) != round + 1:
            return NULL
        if offset == 0:
            memcpy(into, line.payload, SHMRING_REST_NBYTES)      # a constant size: no call
        else:
            memcpy(into, line.payload + offset, SHMRING_REST_NBYTES - offset)
        into += SHMRING_REST_NBYTES - offset
        nbytes -= SHMRING_REST_NBYTES - offset
        offset = 0
        line += 1
    if load_acquire_u64(&line.tag) != round + 1:      # SYNC eager (meets: write_eager).
        return NULL
    memcpy(into, line.payload + offset, nbytes)
    return scratch


# ---- the exchange ----------------------------------------------------------------------------------------------------

cdef inline shmring_eager_line *slot_of(engine_t *e, int rank, uint64_t round) noexcept nogil:
    return e.eager[rank] + (round & (e.nslots - 1))


cdef inline void write_own(engine_t *e, eager_t *t) noexcept nogil:
    fault_point("write")
    write_eager(slot_of(e, e.group.rank, t.round), t.round, t.signature ^ e.history, t.payload, t.nbytes)
    fault_point("eager")
    publish(e, t.round, t.signature)
    t.is_written = True


cdef inline size_t part_offset(engine_t *e, eager_t *t, int sender) noexcept nogil:
    """Where the part that this rank wants begins in a sender's message."""
    cdef const int64_t *row
    cdef size_t count = 0
    cdef int j
    if t.counts == NULL:
        return t.offset
    if t.has_matrix:
        row = t.counts + sender * <int64_t> e.group.size
        for j in range(e.group.rank):
            count += row[j]
    return count * t.itemsize


cdef inline size_t part_nbytes(engine_t *e, eager_t *t, int sender) noexcept nogil:
    """The size of that part."""
    if t.counts == NULL:
        return t.part_nbytes
    if t.has_matrix:
        return <size_t> t.counts[sender * <int64_t> e.group.size + e.group.rank] * t.itemsize
    return <size_t> t.counts[sender] * t.itemsize


cdef inline int try_read(engine_t *e, eager_t *t, int rank) noexcept nogil:
    """Look once. READY: e.sources[rank] points to the wanted part of that rank's message."""
    cdef shmring_eager_line *slot
    if rank == e.group.rank:
        e.sources[rank] = t.payload + part_offset(e, t, rank)
        return READY
    slot = slot_of(e, rank, t.round)
    if not has_arrived(slot, t.round):
        return UNREADY
    if slot.first.signature != t.signature ^ e.history:
        # SYNC published (meets: publish in collectives/engine/rounds.pyx). The line is stored before the signature
        # that explains it.
        if load_acquire_u64(&e.group.outbox[rank].published) <= t.round:
            return UNREADY
        disagree(e, rank, t.round, t.round, t.signature, 0)
        return TROUBLE
    e.sources[rank] = read_eager(slot, t.round, part_offset(e, t, rank), part_nbytes(e, t, rank),
                                 e.scratch + rank * SHMRING_EAGER_NBYTES)
    return READY if e.sources[rank] != NULL else UNREADY


cdef int read_rest(engine_t *e, eager_t *t, int looks) noexcept nogil:
    """Read the remaining messages; return UNREADY after ``looks`` looks at one that is not there."""
    cdef int outcome, look = 0
    while t.next_rank < t.last:
        outcome = try_read(e, t, t.next_rank)
        if outcome == TROUBLE:
            return TROUBLE
        if outcome == READY:
            fault_point("read")
            t.next_rank += 1
            look = 0
            continue
        look += 1
        if look >= looks:
            return UNREADY
        cpu_pause()
    return READY


cdef void conclude(engine_t *e, eager_t *t) noexcept nogil:
    cdef int j
    cdef char *place = t.out
    cdef size_t nbytes
    fault_point("conclude")
    if t.kernel != NULL:
        if t.last > t.first:
            t.kernel(t.out, e.sources + t.first, t.last - t.first, t.count)
    else:
        for j in range(t.first, t.last):
            nbytes = part_nbytes(e, t, j)
            if place != e.sources[j] and nbytes:
                memcpy(place, e.sources[j], nbytes)
            place += nbytes
    if not t.is_written or t.last - t.first < e.group.size:
        finish(e, t.round + 1, t.signature)
        return
    # This rank has read the message of every rank in this round, so all ranks have consumed all rounds before it: those
    # slots are free. A rank sleeps for this counter to pass this round only if it is nslots - 1 rounds ahead, as a root
    # that waits for no other rank may be. That is rare, so the counter is stored without a fence and without a look for
    # sleepers; a rank that sleeps for it all the same looks again after a tick.
    e.free_until = t.round + e.nslots
    store_relaxed_u64(&e.own.current, 0)                 # before the count: is_elsewhere in core/sync/wait.pyx
    fault_point("concluding")
    store_release_u64(&e.own.consumed, t.round + 1)      # SYNC consumed (meets: has_reached in core/sync/wait.pyx)
    store_relaxed_u64(&e.next_round, t.round + 1)
    remember_call(e, t.signature)
    fault_point("concluded")


cdef int start_eager(engine_t *e, eager_t *t) noexcept nogil:
    """Exchange without a long wait; may be called with the GIL. After UNREADY call `advance_eager`."""
    t.round = e.next_round
    t.next_rank = t.first
    t.is_written = False
    count_call(e, t.nbytes)
    store_release_u64(&e.own.current, t.signature)       # SYNC current (meets: is_elsewhere in core/sync/wait.pyx)
    fault_point("start")
    if t.payload != NULL:
        if t.round >= e.free_until:
            return UNREADY
        write_own(e, t)
    if read_rest(e, t, e.brief_looks) != READY:
        return UNREADY      # after TROUBLE, too: advance_eager finds it again
    conclude(e, t)
    return READY


cdef int advance_eager(engine_t *e, eager_t *t, patience_t *patience) noexcept nogil:
    """The rest of an exchange. Waits; call without the GIL, again while UNREADY."""
    cdef int outcome
    if t.payload != NULL and not t.is_written:
        outcome = claim(e, t.round, patience)
        if outcome != READY:
            return outcome
        write_own(e, t)
    while t.next_rank < t.last:
        outcome = try_read(e, t, t.next_rank)
        if outcome == TROUBLE:
            return TROUBLE
        if outcome == UNREADY:
            # The counter is stored after the lines: once it has passed this round, a line that is not there will
            # never be written, because that rank is in another call.
            outcome = wait_until(&e.group, PUBLISHED, t.next_rank, t.round + 1, patience)
            if outcome != READY:
                return outcome
            if try_read(e, t, t.next_rank) != READY:
                disagree(e, t.next_rank, t.round, t.round, t.signature, 0)
                return TROUBLE
        fault_point("read")
        t.next_rank += 1
    conclude(e, t)
    # While this rank waited, a root may have run ahead and gone to sleep for the counter stored without a fence.
    wake_waiters(&e.group)
    return READY
