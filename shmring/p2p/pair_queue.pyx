"""Pair queues: one SPSC queue for each ordered pair of ranks, for messages of any size.

A small message is one cell. A longer one is a sequence of pieces in the byte ring, with one cell for each, so both ends
copy at the same time, and a message may be longer than the queue. A cell is announced by a sequence number in its cache
line: one cache miss transfers the number and a small payload. The receiver publishes one counter, the cells it has
taken; the sender loads it only when the queue seems full.

This module moves bytes and waits. p2p/matching.pyx decides which request gets which message.
"""

from libc.string cimport memcpy

from shmring._c.atomics cimport (cpu_pause, load_acquire_u64, load_relaxed_u64, store_relaxed_u64,
                                 store_release_u64)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport (SHMRING_CELL_NBYTES, SHMRING_LINE, SHMRING_NWAYS, SHMRING_ORDINARY,
                                SHMRING_PAIR_QUEUE_NCELLS, SHMRING_PAIR_QUEUE_NTRIALS, SHMRING_STREAMING,
                                shmring_outbox)
from shmring.arrays.reduce cimport copy_bytes
from shmring.arrays.store_tuning cimport ON_TRIAL, decide, is_trial, least, next_call, note
from shmring.sync.abort cimport in_trouble
from shmring.sync.backoff cimport (LOOK_ROUND, LOOKS_PER_CLOCK, TICK, YIELDS, back_off, be_patient, before_wake,
                                   end_wait, now_ns, patience_t, sem_post, sleeper_t, take_sleeper)
from shmring.sync.group cimport READY, TROUBLE, UNREADY


cdef enum:
    LEAST_PIECE_NBYTES = 8192     # a piece costs a cell and a poll: a fifth of a microsecond
    MOST_PIECE_NBYTES = 32768     # longer pieces gain nothing and delay the start of the receiver's copy
    LEARNED_NBYTES = 256          # shorter pieces do not fill the lines stored past the cache, and gain nothing ahead


cdef inline uint64_t whole_lines(uint64_t nbytes) noexcept nogil:
    return (nbytes + SHMRING_LINE - 1) & ~<uint64_t> (SHMRING_LINE - 1)


cdef inline uint64_t piece_for(pair_queues_t *l, uint64_t nbytes) noexcept nogil:
    """Bytes in a piece of a message; 0 if it fits its cell. Both ends compute it from the message's length.

    At least eight pieces, so that both ends copy most of the time, unless pieces would become too small.
    """
    cdef uint64_t piece = LEAST_PIECE_NBYTES
    if nbytes <= SHMRING_CELL_NBYTES:
        return 0
    while piece < MOST_PIECE_NBYTES and nbytes > 8 * piece:
        piece *= 2
    return min(piece, l.ring_nbytes // 8)


# ---- which peers a sleeping thread waits for -------------------------------------------------------------------------

# The waiter word of a sleeping thread: bit 0 is set; bits 1..20: the rank from which it awaits cells; bits 21..40: the
# rank that is to take cells. Each field is rank + 2, ANY_PEER for more than one rank, or 0 for none.
cdef enum:
    ANY_PEER = 1
    FIELD = 0xFFFFF


cdef inline void add_peer(uint64_t *field, int peer) noexcept nogil:
    field[0] = <uint64_t> (peer + 2) if field[0] == 0 else ANY_PEER


cdef uint64_t sleep_word(pair_queues_t *l) noexcept nogil:
    cdef uint64_t cells = ANY_PEER if l.nposted else 0, room = 0
    cdef int j
    for j in range(l.group.size):
        if l.recv[j].is_busy or l.recv[j].nposted:
            add_peer(&cells, j)
        if l.send[j].is_busy:
            add_peer(&room, j)
    return cells << 1 | room << 21 | 1


cdef inline void wake(pair_queues_t *l, int peer, uint64_t word) noexcept nogil:
    if take_sleeper(&l.group.outbox[peer].pair_queues_asleep, word):
        sem_post(&l.group.outbox[peer].pair_queues_wake)


cdef inline void wake_peer(pair_queues_t *l, int peer, int shift) noexcept nogil:
    """Wake ``peer`` if it sleeps for what this rank has just announced to it."""
    cdef uint64_t word, field
    before_wake()
    word = load_relaxed_u64(&l.group.outbox[peer].pair_queues_asleep)
    field = word >> shift & FIELD
    if word != 0 and (field == ANY_PEER or field == <uint64_t> (l.group.rank + 2)):
        wake(l, peer, word)


# ---- sending ---------------------------------------------------------------------------------------------------------

cdef bint takes_whole(pair_queues_t *l, int peer, uint64_t nbytes) noexcept nogil:
    """Whether all of a message fits the queue now, so that one `push` is enough."""
    cdef send_queue_t *o = &l.send[peer]
    cdef uint64_t piece = piece_for(l, nbytes)
    return has_room(l, o, 1 if piece == 0 else (nbytes + piece - 1) // piece, 0 if piece == 0 else whole_lines(nbytes))


cdef void start_message(pair_queues_t *l, int peer, const void *source, uint64_t nbytes, int tag,
                        int dtype) noexcept nogil:
    cdef send_queue_t *o = &l.send[peer]
    o.is_busy = True
    o.number = o.sent + 1
    o.source = <const char *> source
    o.nbytes = nbytes
    o.piece_nbytes = piece_for(l, nbytes)
    o.done = 0
    o.tag = tag
    o.dtype = dtype


cdef inline bint fits(pair_queues_t *l, send_queue_t *o, uint64_t ncells, uint64_t nbytes) noexcept nogil:
    return o.sent - o.taken + ncells <= SHMRING_PAIR_QUEUE_NCELLS and o.filled - o.drained + nbytes <= l.ring_nbytes


cdef bint has_room(pair_queues_t *l, send_queue_t *o, uint64_t ncells, uint64_t nbytes) noexcept nogil:
    """Whether so much fits; the peer's counter is loaded only if it does not by the last value loaded."""
    cdef uint64_t taken
    if fits(l, o, ncells, nbytes):
        return True
    # SYNC taken (meets: pull). The peer has finished reading those cells and bytes; they may be overwritten.
    taken = load_acquire_u64(&o.peers.taken)
    if taken == o.taken or taken - o.taken > o.sent - o.taken:     # an impossible value is ignored
        return False
    o.taken = taken
    o.drained = o.filled_by[(taken - 1) & (SHMRING_PAIR_QUEUE_NCELLS - 1)]
    return fits(l, o, ncells, nbytes)


# The kind of stores: tuned as in arrays/store_tuning.pyx, with one lap round the byte ring as a call, since it
# determines where the next lap finds its lines. What a kind saves the writer it may cost the reader, so in a trial lap
# both measure their copying. The cells carry the trial's number; the reader keeps its sums beside `taken`.

cdef void begin_lap(pair_queues_t *l, send_queue_t *o) noexcept nogil:
    cdef uint64_t lap = o.stores.calls, before = lap - 2
    cdef int kind
    cdef int64_t cost_ns[SHMRING_NWAYS]
    o.next_lap += l.ring_nbytes
    if not l.learns_stores:
        return
    # The lap before the last has been read completely, or the last would not have found room. So its sums are complete,
    # and visible since has_room acquired `taken`.
    if (lap >= 2 and is_trial(&o.stores, before)
            and note(&o.stores, before, o.spent_ns[(before + 1) % SHMRING_PAIR_QUEUE_NTRIALS]
                     + <int64_t> load_relaxed_u64(&o.peers.spent_ns[(before + 1) % SHMRING_PAIR_QUEUE_NTRIALS]))):
        for kind in range(o.stores.nways):
            cost_ns[kind] = least(&o.stores, kind)
        decide(&o.stores, cost_ns)
    o.trial = 0
    if next_call(&o.stores, &o.kind) == ON_TRIAL:
        o.trial = lap + 1
        o.spent_ns[o.trial % SHMRING_PAIR_QUEUE_NTRIALS] = 0


cdef inline void put_bytes(pair_queues_t *l, send_queue_t *o, uint64_t nbytes) noexcept nogil:
    cdef uint64_t index = o.filled & (l.ring_nbytes - 1)
    cdef uint64_t first = min(nbytes, l.ring_nbytes - index)
    cdef int kind
    cdef int64_t started = 0
    if o.filled >= o.next_lap:
        begin_lap(l, o)
    if o.trial:
        started = now_ns()
    kind = o.kind if nbytes >= LEARNED_NBYTES else SHMRING_ORDINARY
    copy_bytes(o.bytes + index, o.source + o.done, first, kind)
    if nbytes > first:
        copy_bytes(o.bytes, o.source + o.done + first, nbytes - first, kind)
    if o.trial:
        o.spent_ns[o.trial % SHMRING_PAIR_QUEUE_NTRIALS] += now_ns() - started
    o.filled += whole_lines(nbytes)


cdef int push(pair_queues_t *l, int peer) noexcept nogil:
    """Store what fits of the message under way. MOVED or 0; ``is_busy``: there is more of it."""
    cdef send_queue_t *o = &l.send[peer]
    cdef shmring_cell *cell
    cdef uint64_t nbytes
    cdef int moved = 0
    while o.is_busy:
        nbytes = min(o.nbytes - o.done, o.piece_nbytes)
        if not has_room(l, o, 1, whole_lines(nbytes)):
            break
        fault_point("push")
        cell = o.cells + (o.sent & (SHMRING_PAIR_QUEUE_NCELLS - 1))
        if nbytes:
            put_bytes(l, o, nbytes)
            cell.trial = o.trial
            o.done += nbytes
        else:
            memcpy(cell.payload, o.source, o.nbytes)
            o.done = o.nbytes
        cell.nbytes = o.nbytes
        cell.tag = o.tag
        cell.dtype = o.dtype
        o.filled_by[o.sent & (SHMRING_PAIR_QUEUE_NCELLS - 1)] = o.filled
        o.sent += 1
        o.is_busy = o.done < o.nbytes
        fault_point("lay")
        # SYNC laid (meets: next_cell). The cell and its piece are written.
        store_release_u64(&cell.seq, o.sent)
        fault_point("laid")
        wake_peer(l, peer, 1)
        moved = MOVED
    return moved


# ---- receiving -------------------------------------------------------------------------------------------------------

cdef shmring_cell *next_cell(pair_queues_t *l, int peer) noexcept nogil:
    """The next cell from ``peer``, or NULL if it has not been published."""
    cdef recv_queue_t *i = &l.recv[peer]
    cdef shmring_cell *cell
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in p2p/point_to_point.pyx). Before, the queue has no memory: reading it
        # would fault.
        if load_acquire_u64(&i.peers.opened) == 0:
            return NULL
        i.is_open = True
    cell = i.cells + (i.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1))
    # SYNC laid (meets: push).
    return cell if load_acquire_u64(&cell.seq) == i.taken + 1 else NULL


cdef void take_message(pair_queues_t *l, int peer, uint64_t nbytes, void *target) noexcept nogil:
    """Receive the message that begins with the next cell into ``target``, which has room for ``nbytes`` bytes.

    ``nbytes`` is the length that the caller loaded from the cell and checked. It is not loaded again, as the peer could
    change it.
    """
    cdef recv_queue_t *i = &l.recv[peer]
    i.is_busy = True
    i.number = i.taken + 1
    i.target = <char *> target
    i.nbytes = nbytes
    i.piece_nbytes = piece_for(l, nbytes)
    i.kind = SHMRING_STREAMING if nbytes >= l.past_cache_nbytes else SHMRING_ORDINARY
    i.done = 0


cdef inline void get_bytes(pair_queues_t *l, recv_queue_t *i, uint64_t nbytes, uint64_t trial) noexcept nogil:
    cdef uint64_t index = i.drained & (l.ring_nbytes - 1)
    cdef uint64_t first = min(nbytes, l.ring_nbytes - index), spent_ns = 0
    cdef uint64_t *spent = &i.own.spent_ns[trial % SHMRING_PAIR_QUEUE_NTRIALS]
    cdef int64_t started = now_ns() if trial else 0
    copy_bytes(i.target + i.done, i.bytes + index, first, i.kind)
    if nbytes > first:
        copy_bytes(i.target + i.done + first, i.bytes, nbytes - first, i.kind)
    i.drained += whole_lines(nbytes)
    if trial:
        if trial == i.trial:
            spent_ns = spent[0]
        i.trial = trial
        store_relaxed_u64(spent, spent_ns + <uint64_t> (now_ns() - started))


cdef int pull(pair_queues_t *l, int peer) noexcept nogil:
    """Copy what has arrived of the message under way. MOVED or 0; ``is_busy``: more is to come."""
    cdef recv_queue_t *i = &l.recv[peer]
    cdef shmring_cell *cell
    cdef uint64_t nbytes
    cdef int moved = 0
    while i.is_busy:
        cell = next_cell(l, peer)
        if cell == NULL:
            break
        fault_point("pull")
        nbytes = min(i.nbytes - i.done, i.piece_nbytes)
        if nbytes:
            get_bytes(l, i, nbytes, cell.trial)
            i.done += nbytes
        else:
            memcpy(i.target, cell.payload, i.nbytes)
            i.done = i.nbytes
        i.taken += 1
        i.is_busy = i.done < i.nbytes
        # SYNC taken (meets: has_room). The reads of the cells and bytes are over.
        store_release_u64(&i.own.taken, i.taken)
        fault_point("taken")
        wake_peer(l, peer, 21)
        moved = MOVED
    return moved


# ---- all queues: move, wait, sleep -----------------------------------------------------------------------------------

cdef inline bint is_posted(pair_queues_t *l, recv_queue_t *i) noexcept nogil:
    return i.nposted > 0 or l.nposted > 0


cdef int pump(pair_queues_t *l) noexcept nogil:
    """Push and pull all messages under way once. MOVED and NEEDS_MATCHING, or 0."""
    cdef int j, news = 0
    for j in range(l.group.size):
        if l.send[j].is_busy:
            news |= push(l, j)
            if not l.send[j].is_busy:
                news |= NEEDS_MATCHING
        if l.recv[j].is_busy:
            news |= pull(l, j)
            if not l.recv[j].is_busy:
                news |= NEEDS_MATCHING
        elif is_posted(l, &l.recv[j]) and next_cell(l, j) != NULL:
            news |= NEEDS_MATCHING
    return news


cdef int spin(pair_queues_t *l) noexcept nogil:
    """Pump while spinning. READY: matching is needed; UNREADY: time to sleep; TROUBLE: the communicator is broken.

    The caller has the turn.
    """
    cdef int64_t started = 0, idle_since = 0, now
    cdef int _look, news
    while True:
        for _look in range(LOOKS_PER_CLOCK):
            news = pump(l)
            if news & NEEDS_MATCHING:
                return READY
            if news:
                idle_since = 0
            else:
                cpu_pause()
        if in_trouble(l.group):
            return TROUBLE
        now = now_ns()
        if idle_since == 0:
            idle_since = now
        if started == 0:
            started = now
        if now - idle_since >= l.group.spin_ns or now - started > LONGEST_RUN_NS:
            return UNREADY


cdef bint has_news(pair_queues_t *l, int j) noexcept nogil:
    """Whether `pump` would find something to do for that peer. Stores nothing, so it needs no turn."""
    cdef send_queue_t *o = &l.send[j]
    cdef recv_queue_t *i = &l.recv[j]
    if o.is_busy and load_acquire_u64(&o.peers.taken) != o.taken:      # SYNC taken (meets: pull)
        return True
    if not i.is_busy and not is_posted(l, i):
        return False
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in p2p/point_to_point.pyx).
        return load_acquire_u64(&i.peers.opened) != 0
    # SYNC laid (meets: push).
    return load_acquire_u64(&i.cells[i.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1)].seq) == i.taken + 1


cdef bint any_news(pair_queues_t *l) noexcept nogil:
    cdef int j
    for j in range(l.group.size):
        if has_news(l, j):
            return True
    return False


cdef int sleep_until_news(pair_queues_t *l, int64_t tick_ns, uint64_t changes) noexcept nogil:
    """Yield, then sleep until something arrives or for ``tick_ns``. READY if there is something to do, else UNREADY.

    One thread of the process at a time; it need not have the turn. ``changes`` is the value that it read before it gave
    the turn away: if another thread has changed it since, the waiter word must be computed again.
    """
    cdef shmring_outbox *own = l.group.outbox[l.group.rank]
    cdef sleeper_t sleeper = sleeper_t(word=&own.pair_queues_asleep, what=sleep_word(l), wake=&own.pair_queues_wake,
                                       next=NULL, spin_ns=0, yields=0, tick_ns=tick_ns)
    cdef patience_t patience
    cdef int step
    be_patient(&patience, -1)
    patience.stage = YIELDS                # `spin` has spun
    patience.looks = l.group.yields
    patience.tick_ns = tick_ns
    while not any_news(l):
        step = back_off(&patience, &sleeper)
        if step == LOOK_ROUND:
            fault_point("p2p_sleep")
        if step == TICK or (step == LOOK_ROUND and (in_trouble(l.group) or load_relaxed_u64(&l.changes) != changes)):
            break
    end_wait(&patience, &sleeper)
    return READY if any_news(l) else UNREADY


cdef void wake_self(pair_queues_t *l) noexcept nogil:
    """Wake the thread of this process that sleeps for messages: the requests that it sleeps for have changed."""
    cdef uint64_t word
    store_relaxed_u64(&l.changes, l.changes + 1)
    before_wake()
    word = load_relaxed_u64(&l.group.outbox[l.group.rank].pair_queues_asleep)
    if word != 0:
        wake(l, l.group.rank, word)
