"""Pair queues: one SPSC queue for each ordered pair of ranks, for messages of any size.

A small message is one cell. A longer one is a sequence of pieces in the byte ring, with one cell for each, so both ends
copy at the same time, and a message may be longer than the queue. A cell is announced by a sequence number in its cache
line: one cache miss transfers the number and a small payload. The receiver publishes one counter, the cells it has
taken; the sender loads it only when the queue seems full.

A rank moves what can be moved in all of its queues, spins, and sleeps until something arrives in any of them.
collectives/p2p/matching.pyx decides which request gets which message.
"""

from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from shmring.core.c.atomics cimport (
    load_acquire_u64, load_relaxed_u32, load_relaxed_u64, store_relaxed_u32, store_relaxed_u64, store_release_u64,
)
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport (SHMRING_CELL_NBYTES, SHMRING_LARGE, SHMRING_LINE, SHMRING_ORDINARY,
                                    SHMRING_PAIR_QUEUE_NCELLS, SHMRING_SMALL, SHMRING_STREAMING, shmring_outbox)
from shmring.core.ring.laps cimport advance_laps, read_in_lap, stores_of_reader, write_in_lap
from shmring.core.sync.abort cimport in_trouble, report_overwritten
from shmring.core.sync.backoff cimport (
    BROKEN, CHECK, FRESH, LOOK, LOOK_ROUND, LOOKS_PER_CLOCK, SLEEPS, TICK, back_off, before_wake, end_wait, learn_spin,
    now_ns, patience_t, sem_post, sleeper_t, take_sleeper,
)
from shmring.core.sync.group cimport READY, TROUBLE, UNREADY

cdef extern from "<sched.h>" nogil:
    int sched_getcpu()


cdef enum:
    LEAST_PIECE_NBYTES = 8192     # a piece costs a cell and a poll: a fifth of a microsecond
    MOST_PIECE_NBYTES = 32768     # longer pieces gain nothing and delay the start of the receiver's copy
    SMALL_NBYTES = 4 * MOST_PIECE_NBYTES     # of the small part: the pieces that both ends copy, and two more
    LEAST_DIVIDED_NBYTES = 4 * SMALL_NBYTES  # a byte ring of fewer bytes has no small part
    PIECE_NS = 20000              # a receiver that takes longer for a piece has stopped
    LEARNED_NBYTES = 256          # shorter pieces do not fill the lines stored past the cache, and gain nothing ahead


cdef inline uint64_t whole_lines(uint64_t nbytes) noexcept nogil:
    return (nbytes + SHMRING_LINE - 1) & ~<uint64_t> (SHMRING_LINE - 1)


cdef inline uint64_t skew_of(const void *address) noexcept nogil:
    """Bytes from the line in which ``address`` lies.

    A message lies in the byte ring as far from a line as in the sender's memory, and its first piece is that much
    shorter. So all others begin with a line at both places, and mostly at the receiver, too: allocators put long arrays
    at the same distance from a page.
    """
    return <uintptr_t> address & (SHMRING_LINE - 1)


cdef inline uint64_t piece_for(pair_queues_t *l, uint64_t nbytes) noexcept nogil:
    """Bytes in a piece of a message; 0 if it fits its cell. Both ends compute it from the message's length.

    At least four pieces, so that both ends copy most of the time, unless pieces would become too small.
    """
    cdef uint64_t piece = LEAST_PIECE_NBYTES
    if nbytes <= SHMRING_CELL_NBYTES:
        return 0
    while piece < MOST_PIECE_NBYTES and nbytes > 4 * piece:
        piece *= 2
    return min(piece, l.ring_nbytes // 8)


cdef inline uint64_t next_piece(uint64_t left, uint64_t piece, uint64_t skew) noexcept nogil:
    """Bytes of the next piece of a message of which ``left`` are left. What exceeds the last one by less than a line is
    part of it."""
    return 0 if piece == 0 else left if left + skew < piece + SHMRING_LINE else piece - skew


# ---- the parts of the byte ring --------------------------------------------------------------------------------------

cdef void divide_ring(part_t *parts, char *bytes, uint64_t nbytes) noexcept nogil:
    """Divide a byte ring. Pieces go to the part that is quicker, and to the other one when that is full."""
    cdef uint64_t small = SMALL_NBYTES if nbytes >= LEAST_DIVIDED_NBYTES else 0
    parts[SHMRING_SMALL] = part_t(bytes=bytes, nbytes=small, filled=0, drained=0)
    parts[SHMRING_LARGE] = part_t(bytes=bytes + small, nbytes=nbytes - small, filled=0, drained=0)


cdef inline bint leads(const pair_queues_t *l, int peer) noexcept nogil:
    """Whether this rank learns which part is quicker; the peer answers in the part in which it has received. Of two
    queues through whose parts messages go to and fro, both must be small to stay in the caches."""
    return l.group.rank < peer


cdef inline bint has_parts(const part_t *parts) noexcept nogil:
    return parts[SHMRING_SMALL].nbytes != 0


cdef inline uint64_t room_in(const part_t *part) noexcept nogil:
    return part.nbytes - (part.filled - part.drained)


cdef uint64_t written(const send_queue_t *o) noexcept nogil:
    """Bytes ever stored in the byte ring, in whole lines."""
    return o.parts[SHMRING_LARGE].filled + o.parts[SHMRING_SMALL].filled


# ---- waking the peer ------------------------------------------------------------------------------------------------

cdef inline void wake(pair_queues_t *l, int peer, uint64_t word) noexcept nogil:
    if take_sleeper(&l.group.outbox[peer].pair_queues_asleep, word):
        sem_post(&l.group.outbox[peer].pair_queues_wake)


cdef inline void wake_if_asleep(pair_queues_t *l, int peer, int shift) noexcept nogil:
    """Wake ``peer`` if it is known to sleep for what this rank has just announced to it. It may have begun to unseen:
    `wake_peer` follows after the last announcement."""
    cdef uint64_t field, word = load_relaxed_u64(&l.group.outbox[peer].pair_queues_asleep)
    field = word >> shift & FIELD
    if word != 0 and (field == ANY_PEER or field == <uint64_t> (l.group.rank + 2)):
        wake(l, peer, word)


cdef inline void wake_peer(pair_queues_t *l, int peer, int shift) noexcept nogil:
    """Wake ``peer`` if it sleeps for what this rank has announced to it."""
    before_wake()
    wake_if_asleep(l, peer, shift)


# ---- sending ---------------------------------------------------------------------------------------------------------

cdef inline bint has_cells(const send_queue_t *o, uint64_t n) noexcept nogil:
    return o.sent - o.taken + n <= SHMRING_PAIR_QUEUE_NCELLS


cdef bint takes_whole(pair_queues_t *l, int peer, const void *source, uint64_t nbytes) noexcept nogil:
    """Whether all of a message fits the queue now, so that one `push` is enough."""
    cdef send_queue_t *o = &l.send[peer]
    cdef uint64_t piece = piece_for(l, nbytes), end = skew_of(source) + nbytes
    if not holds(o, piece, end):
        note_taken(o)
        return holds(o, piece, end)
    return True


cdef inline bint holds(const send_queue_t *o, uint64_t piece, uint64_t end) noexcept nogil:
    """Whether a message fits by the last value loaded; its pieces, if it has any, end ``end`` bytes behind a line."""
    cdef uint64_t ncells, nbytes, large, small
    if piece == 0:
        return has_cells(o, 1)
    ncells, nbytes = (end + piece - 1) // piece, whole_lines(end)
    large, small = room_in(&o.parts[SHMRING_LARGE]), room_in(&o.parts[SHMRING_SMALL])
    # In two parts the last piece of each, which may be longer by a line, may find too little room.
    return has_cells(o, ncells) and (
        nbytes <= max(large, small) or nbytes + 2 * (piece + SHMRING_LINE) <= large + small)


cdef void start_message(pair_queues_t *l, int peer, const void *source, uint64_t nbytes, int tag,
                        int dtype) noexcept nogil:
    cdef send_queue_t *o = &l.send[peer]
    if not leads(l, peer):
        o.laps.part = l.recv[peer].part
    o.is_busy = True
    o.number = o.sent + 1
    o.source = <const char *> source
    o.nbytes = nbytes
    o.piece_nbytes = piece_for(l, nbytes)
    o.skew = skew_of(source) if o.piece_nbytes else 0
    o.done = 0
    o.has_stopped = False
    o.tag = tag
    o.dtype = dtype


cdef inline int other_part(int part) noexcept nogil:
    return SHMRING_LARGE if part == SHMRING_SMALL else SHMRING_SMALL


cdef inline bint fits(const send_queue_t *o, int part, uint64_t nbytes) noexcept nogil:
    return has_cells(o, 1) and nbytes <= room_in(&o.parts[part])


cdef int part_for(pair_queues_t *l, send_queue_t *o, uint64_t nbytes) noexcept nogil:
    """The part for the next piece, of so many bytes in whole lines; -1: there is no room. The peer's counter is loaded
    only if the part to fill first seems full by the last value loaded."""
    cdef int part = o.laps.part
    if fits(o, part, nbytes):
        return part
    note_taken(o)
    if fits(o, part, nbytes) or (is_receiving(l, o) and await_room(o, part, nbytes)):
        return part
    part = other_part(part)
    return part if fits(o, part, nbytes) else -1


cdef inline bint is_receiving(const pair_queues_t *l, const send_queue_t *o) noexcept nogil:
    """Whether the peer has a processor of its own, and has begun to take the message under way."""
    return has_parts(o.parts) and l.group.message_looks == 0 and not o.has_stopped and o.taken >= o.number


cdef bint await_room(send_queue_t *o, int part, uint64_t nbytes) noexcept nogil:
    """Wait for room in a part from which the peer is taking pieces: a moment, which is less than it costs to fetch the
    lines of the other part into a cache. False: the peer has stopped."""
    cdef int64_t started = now_ns()
    while now_ns() - started < PIECE_NS:
        note_taken(o)
        if fits(o, part, nbytes):
            return True
    o.has_stopped = True
    return False


cdef void note_taken(send_queue_t *o) noexcept nogil:
    """Load the peer's counter, and conclude what is free."""
    cdef uint64_t filled
    # SYNC taken (meets: pull). The peer has finished reading those cells and bytes; they may be overwritten.
    cdef uint64_t taken = load_acquire_u64(&o.peers.taken)
    if taken - o.taken > o.sent - o.taken:     # an impossible value is ignored
        return
    while o.taken != taken:
        filled = o.filled_by[o.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1)]
        o.parts[filled & 1].drained = filled & ~<uint64_t> 1
        o.taken += 1


cdef inline void put_bytes(pair_queues_t *l, int peer, part_t *part, uint64_t skew, uint64_t nbytes) noexcept nogil:
    cdef send_queue_t *o = &l.send[peer]
    cdef uint64_t index = part.filled % part.nbytes + skew, first = min(nbytes, part.nbytes - index)
    cdef int kind
    if l.learns_stores:
        # The times are visible since note_taken acquired `taken`; the peer looks for news in the next cell.
        advance_laps(&o.laps, written(o), l.ring_nbytes, o.peers.read_ns,
                     o.peers.ended_ns if has_parts(o.parts) and leads(l, peer) else NULL,
                     &o.cells[o.sent & (SHMRING_PAIR_QUEUE_NCELLS - 1)].seq)
    kind = o.laps.kind if nbytes >= LEARNED_NBYTES else SHMRING_ORDINARY
    write_in_lap(&o.laps, part.bytes + index, o.source + o.done, first, kind)
    if nbytes > first:
        write_in_lap(&o.laps, part.bytes, o.source + o.done + first, nbytes - first, kind)
    part.filled += whole_lines(skew + nbytes)


cdef int push(pair_queues_t *l, int peer) noexcept nogil:
    """Store what fits of the message under way. MOVED or 0; ``is_busy``: there is more of it."""
    cdef send_queue_t *o = &l.send[peer]
    cdef shmring_cell *cell
    cdef uint64_t nbytes, skew
    cdef int moved = 0, part
    while o.is_busy:
        skew = o.skew if o.done == 0 else 0
        nbytes = next_piece(o.nbytes - o.done, o.piece_nbytes, skew)
        part = part_for(l, o, whole_lines(skew + nbytes))
        if part < 0:
            break
        fault_point("push")
        cell = o.cells + (o.sent & (SHMRING_PAIR_QUEUE_NCELLS - 1))
        if nbytes:
            put_bytes(l, peer, &o.parts[part], skew, nbytes)
            cell.timed = o.laps.timed
            cell.kind = o.laps.kind
            cell.skew = skew
            cell.part = part
            o.done += nbytes
        else:
            memcpy(cell.payload, o.source, o.nbytes)
            o.done = o.nbytes
        cell.nbytes = o.nbytes
        cell.tag = o.tag
        cell.dtype = o.dtype
        o.filled_by[o.sent & (SHMRING_PAIR_QUEUE_NCELLS - 1)] = o.parts[part].filled | <uint64_t> part
        o.sent += 1
        o.is_busy = o.done < o.nbytes
        fault_point("lay")
        # SYNC laid (meets: next_cell). The cell and its piece are written.
        store_release_u64(&cell.seq, o.sent)
        fault_point("laid")
        if o.is_busy:
            wake_if_asleep(l, peer, 1)      # a fence after each piece would wait for all of its stores
        moved = MOVED
    if moved:
        wake_peer(l, peer, 1)
    return moved


# ---- receiving -------------------------------------------------------------------------------------------------------

cdef shmring_cell *next_cell(pair_queues_t *l, int peer) noexcept nogil:
    """The next cell from ``peer``, or NULL if it has not been published."""
    cdef recv_queue_t *i = &l.recv[peer]
    cdef shmring_cell *cell
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in collectives/p2p/point_to_point.pyx). Before, the queue has no memory:
        # reading it would fault.
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
    i.is_past_cache = nbytes >= l.past_cache_nbytes
    i.done = 0


cdef inline void get_bytes(pair_queues_t *l, recv_queue_t *i, uint64_t skew, uint64_t nbytes,
                           const shmring_cell *cell) noexcept nogil:
    # What a peer stored is one of the parts that there are.
    cdef int number = SHMRING_SMALL if cell.part == SHMRING_SMALL and has_parts(i.parts) else SHMRING_LARGE
    cdef part_t *part = &i.parts[number]
    cdef uint64_t index = part.drained % part.nbytes + skew, first = min(nbytes, part.nbytes - index)
    cdef uint64_t timed = cell.timed
    cdef int kind = stores_of_reader(cell.kind) if nbytes >= LEARNED_NBYTES else SHMRING_ORDINARY
    if i.is_past_cache:
        kind = SHMRING_STREAMING
    read_in_lap(timed, i.own.read_ns, i.target + i.done, part.bytes + index, first, kind)
    if nbytes > first:
        read_in_lap(timed, i.own.read_ns, i.target + i.done + first, part.bytes, nbytes - first, kind)
    if timed:
        store_relaxed_u64(&i.own.ended_ns[timed - 1 & 1], <uint64_t> now_ns())
    part.drained += whole_lines(skew + nbytes)
    i.part = number


cdef int pull(pair_queues_t *l, int peer) noexcept nogil:
    """Copy the part of the message under way that has arrived. MOVED or 0; ``is_busy``: a part is missing."""
    cdef recv_queue_t *i = &l.recv[peer]
    cdef shmring_cell *cell
    cdef uint64_t nbytes, skew
    cdef int moved = 0
    while i.is_busy:
        cell = next_cell(l, peer)
        if cell == NULL:
            break
        fault_point("pull")
        skew = cell.skew & (SHMRING_LINE - 1) if i.piece_nbytes and i.done == 0 else 0
        nbytes = next_piece(i.nbytes - i.done, i.piece_nbytes, skew)
        if nbytes:
            get_bytes(l, i, skew, nbytes, cell)
            i.done += nbytes
        else:
            memcpy(i.target, cell.payload, i.nbytes)
            i.done = i.nbytes
        i.taken += 1
        i.is_busy = i.done < i.nbytes
        # SYNC taken (meets: note_taken). The reads of the cells and bytes are over.
        store_release_u64(&i.own.taken, i.taken)
        fault_point("taken")
        if i.is_busy:
            wake_if_asleep(l, peer, 21)
        moved = MOVED
    if moved:
        wake_peer(l, peer, 21)
    return moved


# ---- all queues of a rank --------------------------------------------------------------------------------------------

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


cdef int spin(pair_queues_t *l, patience_t *patience) noexcept nogil:
    """Pump while spinning and yielding. READY: matching is needed; UNREADY: time to sleep; TROUBLE: the communicator
    is broken. The caller has the turn. What moves begins the wait anew. After a sleep in vain it pumps once.
    """
    cdef sleeper_t sleeper = sleeper_of(l, l.group.spin_ns)
    cdef int64_t started_ns = 0
    cdef int news, step, nmoves = 0
    while True:
        news = pump(l)
        if news:
            learn_spin(&sleeper, patience, True)
            patience.stage = FRESH
            if news & NEEDS_MATCHING:
                return READY
            nmoves += 1
            if nmoves % LOOKS_PER_CLOCK == 0:
                if in_trouble(l.group):
                    return TROUBLE
                if started_ns == 0:
                    started_ns = now_ns()
                elif now_ns() - started_ns > LONGEST_RUN_NS:
                    return UNREADY
            continue
        if patience.stage == SLEEPS:
            return TROUBLE if in_trouble(l.group) else UNREADY
        if patience.stage == FRESH and sleeper.looks != 0:
            sleeper.looks = looks_before_yield(l)
        step = back_off(patience, &sleeper)
        if step != LOOK and in_trouble(l.group):
            return TROUBLE
        if step >= CHECK:
            return UNREADY


cdef inline sleeper_t sleeper_of(pair_queues_t *l, int64_t spin_ns) noexcept nogil:
    cdef shmring_outbox *own = l.group.outbox[l.group.rank]
    return sleeper_t(word=&own.pair_queues_asleep, what=0, wake=&own.pair_queues_wake, next=NULL, spin_ns=spin_ns,
                     yields=l.group.yields, tick_ns=l.group.tick_ns, spin=&l.spin, looks=l.group.message_looks)


cdef int looks_before_yield(pair_queues_t *l) noexcept nogil:
    """The looks of a wait that begins, where ranks outnumber the processors: many if an awaited rank may answer
    meanwhile. One that last waited on this processor does not run; one whose last message had several pieces needs
    longer for the next."""
    cdef shmring_outbox *own = l.group.outbox[l.group.rank]
    cdef uint32_t here = <uint32_t> (sched_getcpu() + 1)
    cdef int j
    if own.processor != here:
        store_relaxed_u32(&own.processor, here)
    for j in range(l.group.size):
        if ((awaits(l, j) or l.nposted) and not l.send[j].is_busy and l.recv[j].nbytes <= LEAST_PIECE_NBYTES
                and load_relaxed_u32(&l.group.outbox[j].processor) != here):
            return l.group.message_looks
    return l.group.looks


cdef bint has_news(pair_queues_t *l, int j) noexcept nogil:
    """Whether `pump` would find something to do for that peer. Stores nothing, so it needs no turn."""
    cdef send_queue_t *o = &l.send[j]
    cdef recv_queue_t *i = &l.recv[j]
    if o.is_busy and load_acquire_u64(&o.peers.taken) != o.taken:      # SYNC taken (meets: pull)
        return True
    if not i.is_busy and not is_posted(l, i):
        return False
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in collectives/p2p/point_to_point.pyx).
        return load_acquire_u64(&i.peers.opened) != 0
    # SYNC laid (meets: push).
    return load_acquire_u64(&i.cells[i.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1)].seq) == i.taken + 1


cdef bint any_news(pair_queues_t *l) noexcept nogil:
    cdef int j
    for j in range(l.group.size):
        if has_news(l, j):
            return True
    return False


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


cdef int sleep_until_news(pair_queues_t *l, patience_t *patience, uint64_t changes) noexcept nogil:
    """Sleep until something arrives or for one tick. READY if there is something to do, else UNREADY.

    One thread of the process at a time; it need not have the turn. ``changes`` is the value that it read before it gave
    the turn away: if another thread has changed it since, the waiter word must be computed again.
    """
    cdef sleeper_t sleeper = sleeper_of(l, 0)      # `spin` has spun and yielded
    cdef int step = LOOK
    cdef bint is_there
    sleeper.what = sleep_word(l)
    while not any_news(l):
        if step == TICK:
            return UNREADY
        if step == LOOK_ROUND:
            fault_point("p2p_sleep")
            if in_trouble(l.group) or load_relaxed_u64(&l.changes) != changes:
                break
        step = back_off(patience, &sleeper)
        if step == BROKEN:
            report_overwritten(l.group)
            break
    is_there = any_news(l)
    if is_there:
        sleeper.spin_ns = l.group.spin_ns
        learn_spin(&sleeper, patience, True)
    end_wait(patience, &sleeper)
    return READY if is_there else UNREADY


cdef void wake_self(pair_queues_t *l) noexcept nogil:
    """Wake the thread of this process that sleeps for messages: the requests that it sleeps for have changed."""
    cdef uint64_t word
    store_relaxed_u64(&l.changes, l.changes + 1)
    before_wake()
    word = load_relaxed_u64(&l.group.outbox[l.group.rank].pair_queues_asleep)
    if word != 0:
        wake(l, l.group.rank, word)
