"""Lanes: the rings that messages from one rank to one other execute in.

A message is one cell if it is small, else a row of pieces, each announced by a cell of its own; the two ends copy at
the same time, and nothing is ever longer than the lane. A cell announces itself by a number within its cache line, so
one miss brings the news and a small payload. What the receiver has taken it says in one counter, which the sender reads
only when it believes the lane full.

Here bytes move and ranks wait. Which message goes where is decided above, in p2p/matching.pyx.
"""

from libc.string cimport memcpy

from shmring._c.atomics cimport (cpu_pause, load_acquire_u32, load_acquire_u64, load_relaxed_u64, store_relaxed_u64,
                                 store_release_u64)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport (SHMRING_CELL_NBYTES, SHMRING_PAIR_QUEUE_NCELLS, SHMRING_PAIR_QUEUE_NTRIALS,
                                SHMRING_LEFT, SHMRING_LINE, SHMRING_LOST, shmring_outbox)
from shmring.sync.liveness cimport DEAD, life_state
from shmring.arrays.reduce cimport copy_bytes
from shmring.arrays.store_tuning cimport ON_TRIAL, decide, is_trial, least, next_call, note
from shmring.sync.abort cimport in_trouble, is_reported, report_trouble
from shmring.sync.backoff cimport (LOOK_ROUND, LOOKS_PER_CLOCK, TICK, YIELDS, back_off, be_patient, before_wake, end_wait,
                                   now_ns, patience_t, sem_post, sleeper_t, take_sleeper)
from shmring.sync.group cimport READY, TROUBLE, UNREADY


cdef enum:
    LONGEST_RUN_NS = 10000000     # then other threads of this process may take their turn
    LEAST_PIECE_NBYTES = 8192     # a piece costs a cell and a look at it: a fifth of a microsecond
    MOST_PIECE_NBYTES = 32768     # longer ones gain nothing, and nobody copies out before the first one is in
    STREAMING_NBYTES = 256        # less does not fill the lines that it would store past the cache


cdef inline uint64_t whole_lines(uint64_t nbytes) noexcept nogil:
    return (nbytes + SHMRING_LINE - 1) & ~<uint64_t> (SHMRING_LINE - 1)


cdef inline uint64_t piece_for(pair_queues_t *l, uint64_t nbytes) noexcept nogil:
    """Bytes in a piece of a message, 0 if it travels in its cell; both ends compute it from what the cell says.

    Eight pieces and more, so that both ends copy for most of the time, as far as pieces do not get too small for it.
    """
    cdef uint64_t piece = LEAST_PIECE_NBYTES
    if nbytes <= SHMRING_CELL_NBYTES:
        return 0
    while piece < MOST_PIECE_NBYTES and nbytes > 8 * piece:
        piece *= 2
    return min(piece, l.ring_nbytes // 8)


# ---- which peers a sleeping thread waits for ---------------------------------------------------------------------------------

# A sleeper's word: bit 0 set; bits 1..20 from whom it awaits cells, bits 21..40 who is to take some, each as rank + 2,
# with 1 for anybody and 0 for nobody.
cdef enum:
    ANYBODY = 1
    FIELD = 0xFFFFF


cdef inline void add_peer(uint64_t *field, int peer) noexcept nogil:
    field[0] = <uint64_t> (peer + 2) if field[0] == 0 else ANYBODY


cdef uint64_t sleep_word(pair_queues_t *l) noexcept nogil:
    cdef uint64_t cells = ANYBODY if l.nposted else 0, room = 0
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
    if word != 0 and (field == ANYBODY or field == <uint64_t> (l.group.rank + 2)):
        wake(l, peer, word)


# ---- sending ---------------------------------------------------------------------------------------------------------

cdef bint takes_whole(pair_queues_t *l, int peer, uint64_t nbytes) noexcept nogil:
    """Whether all of a message fits into the lane now. Then one `push` is enough."""
    cdef send_queue_t *o = &l.send[peer]
    cdef uint64_t piece = piece_for(l, nbytes)
    return has_room(l, o, 1 if piece == 0 else (nbytes + piece - 1) // piece, 0 if piece == 0 else whole_lines(nbytes))


cdef void start_message(pair_queues_t *l, int peer, const void *source, uint64_t nbytes, int tag, int dtype) noexcept nogil:
    cdef send_queue_t *o = &l.send[peer]
    o.is_busy = True
    o.source = <const char *> source
    o.nbytes = nbytes
    o.piece_nbytes = piece_for(l, nbytes)
    o.done = 0
    o.tag = tag
    o.dtype = dtype


cdef inline bint fits(pair_queues_t *l, send_queue_t *o, uint64_t ncells, uint64_t nbytes) noexcept nogil:
    return o.sent - o.taken + ncells <= SHMRING_PAIR_QUEUE_NCELLS and o.filled - o.drained + nbytes <= l.ring_nbytes


cdef bint has_room(pair_queues_t *l, send_queue_t *o, uint64_t ncells, uint64_t nbytes) noexcept nogil:
    """Whether so much fits; the peer's counter is looked at only if it does not as far as we know."""
    cdef uint64_t taken
    if fits(l, o, ncells, nbytes):
        return True
    # SYNC taken (meets: pull). The peer's reads of those cells and bytes are over, we may overwrite them.
    taken = load_acquire_u64(&o.peers.taken)
    if taken == o.taken or taken - o.taken > o.sent - o.taken:     # a counter that cannot be is not believed
        return False
    o.taken = taken
    o.drained = o.filled_by[(taken - 1) & (SHMRING_PAIR_QUEUE_NCELLS - 1)]
    return fits(l, o, ncells, nbytes)


# Through the cache or past it? Learned as in arrays/store_tuning.pyx, a lap round the ring of bytes being a call: until a lap is
# over, its lines lie where the one before has left them. What a way saves the writer it may cost the reader. So in laps
# on trial both take the time they spend copying; the cells tell the reader so, and it keeps its sums beside `taken`.

cdef void begin_lap(pair_queues_t *l, send_queue_t *o) noexcept nogil:
    cdef uint64_t lap = o.stores.calls, before = lap - 2
    cdef bint streams = False
    o.next_lap += l.ring_nbytes
    if not l.learns_stores:
        return
    # The lap before the last has been read to its end, or the last would not have found room: its sums are complete,
    # and came with the count that said so, which has_room acquired.
    if (lap >= 2 and is_trial(&o.stores, before)
            and note(&o.stores, before, o.spent_ns[(before + 1) % SHMRING_PAIR_QUEUE_NTRIALS]
                     + <int64_t> load_relaxed_u64(&o.peers.spent_ns[(before + 1) % SHMRING_PAIR_QUEUE_NTRIALS]))):
        decide(&o.stores, least(&o.stores, False), least(&o.stores, True))
    o.trial = 0
    if next_call(&o.stores, &streams) == ON_TRIAL:
        o.trial = lap + 1
        o.spent_ns[o.trial % SHMRING_PAIR_QUEUE_NTRIALS] = 0
    o.streams = streams


cdef inline void put_bytes(pair_queues_t *l, send_queue_t *o, uint64_t nbytes) noexcept nogil:
    cdef uint64_t index = o.filled & (l.ring_nbytes - 1)
    cdef uint64_t first = min(nbytes, l.ring_nbytes - index)
    cdef bint streaming
    cdef int64_t started = 0
    if o.filled >= o.next_lap:
        begin_lap(l, o)
    if o.trial:
        started = now_ns()
    streaming = o.streams and nbytes >= STREAMING_NBYTES
    copy_bytes(o.bytes + index, o.source + o.done, first, streaming)
    if nbytes > first:
        copy_bytes(o.bytes, o.source + o.done + first, nbytes - first, streaming)
    if o.trial:
        o.spent_ns[o.trial % SHMRING_PAIR_QUEUE_NTRIALS] += now_ns() - started
    o.filled += whole_lines(nbytes)


cdef int push(pair_queues_t *l, int peer) noexcept nogil:
    """Put in what fits of the message under way. MOVED or 0; ``is_busy`` tells whether there is more of it."""
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
    """The next cell from ``peer``, or NULL if it is not there yet."""
    cdef recv_queue_t *i = &l.recv[peer]
    cdef shmring_cell *cell
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in p2p/point_to_point.pyx). Before, the lane has no memory and may not even be read.
        if load_acquire_u64(&i.peers.opened) == 0:
            return NULL
        i.is_open = True
    cell = i.cells + (i.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1))
    # SYNC laid (meets: push).
    return cell if load_acquire_u64(&cell.seq) == i.taken + 1 else NULL


cdef void take_message(pair_queues_t *l, int peer, uint64_t nbytes, void *target) noexcept nogil:
    """Have the message that begins with the next cell go to ``target``, which has room for all ``nbytes`` of it.

    Its length is what the caller read in the cell and judged: the peer's word is not asked for a second time.
    """
    cdef recv_queue_t *i = &l.recv[peer]
    i.is_busy = True
    i.target = <char *> target
    i.nbytes = nbytes
    i.piece_nbytes = piece_for(l, nbytes)
    i.streams = nbytes >= l.past_cache_nbytes
    i.done = 0


cdef inline void get_bytes(pair_queues_t *l, recv_queue_t *i, uint64_t nbytes, uint64_t trial) noexcept nogil:
    cdef uint64_t index = i.drained & (l.ring_nbytes - 1)
    cdef uint64_t first = min(nbytes, l.ring_nbytes - index), spent_ns = 0
    cdef uint64_t *spent = &i.own.spent_ns[trial % SHMRING_PAIR_QUEUE_NTRIALS]
    cdef int64_t started = now_ns() if trial else 0
    copy_bytes(i.target + i.done, i.bytes + index, first, i.streams)
    if nbytes > first:
        copy_bytes(i.target + i.done + first, i.bytes, nbytes - first, i.streams)
    i.drained += whole_lines(nbytes)
    if trial:
        if trial == i.trial:
            spent_ns = spent[0]
        i.trial = trial
        store_relaxed_u64(spent, spent_ns + <uint64_t> (now_ns() - started))


cdef int pull(pair_queues_t *l, int peer) noexcept nogil:
    """Take what has come of the message under way. MOVED or 0; ``is_busy`` tells whether more is to come."""
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
        # SYNC taken (meets: has_room). Our reads are over.
        store_release_u64(&i.own.taken, i.taken)
        fault_point("taken")
        wake_peer(l, peer, 21)
        moved = MOVED
    return moved


# ---- all lanes: move, wait, sleep ------------------------------------------------------------------------------------

cdef inline bint is_wanted(pair_queues_t *l, recv_queue_t *i) noexcept nogil:
    return i.nposted > 0 or l.nposted > 0


cdef int pump(pair_queues_t *l) noexcept nogil:
    """Move whatever is under way, once. MOVED and ATTENTION, or 0."""
    cdef int j, news = 0
    for j in range(l.group.size):
        if l.send[j].is_busy:
            news |= push(l, j)
            if not l.send[j].is_busy:
                news |= ATTENTION
        if l.recv[j].is_busy:
            news |= pull(l, j)
            if not l.recv[j].is_busy:
                news |= ATTENTION
        elif is_wanted(l, &l.recv[j]) and next_cell(l, j) != NULL:
            news |= ATTENTION
    return news


cdef int spin(pair_queues_t *l) noexcept nogil:
    """Move what is under way, spinning for more. READY: the interpreter is wanted; UNREADY: better sleep; TROUBLE.

    The caller has the turn.
    """
    cdef int64_t started = 0, idle_since = 0, now
    cdef int _look, news
    while True:
        for _look in range(LOOKS_PER_CLOCK):
            news = pump(l)
            if news & ATTENTION:
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
    """Whether ``pump`` would find something to do with that peer. Changes nothing, so it needs no turn."""
    cdef send_queue_t *o = &l.send[j]
    cdef recv_queue_t *i = &l.recv[j]
    if o.is_busy and load_acquire_u64(&o.peers.taken) != o.taken:      # SYNC taken (meets: pull)
        return True
    if not i.is_busy and not is_wanted(l, i):
        return False
    if not i.is_open:
        return load_acquire_u64(&i.peers.opened) != 0                  # SYNC opened (meets: open_pair_queue in p2p/point_to_point.pyx)
    # SYNC laid (meets: push).
    return load_acquire_u64(&i.cells[i.taken & (SHMRING_PAIR_QUEUE_NCELLS - 1)].seq) == i.taken + 1


cdef bint have_news(pair_queues_t *l) noexcept nogil:
    cdef int j
    for j in range(l.group.size):
        if has_news(l, j):
            return True
    return False


cdef int sleep_until_news(pair_queues_t *l, int64_t tick_ns, uint64_t changes) noexcept nogil:
    """Yield, then sleep until something comes or for ``tick_ns``. READY if there is something to do, else UNREADY.

    One thread of the process at a time; it need not have the turn. ``changes`` is the value that it read before it gave
    the turn away: if another thread has been busy since, the waiter word must be computed again.
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
    while not have_news(l):
        step = back_off(&patience, &sleeper)
        if step == LOOK_ROUND:
            fault_point("p2p_sleep")
        if step == TICK or (step == LOOK_ROUND and (in_trouble(l.group) or load_relaxed_u64(&l.changes) != changes)):
            break
    end_wait(&patience, &sleeper)
    return READY if have_news(l) else UNREADY


cdef void wake_self(pair_queues_t *l) noexcept nogil:
    """Wake the thread of this process that sleeps for messages: another thread awaits something else by now."""
    cdef uint64_t word
    store_relaxed_u64(&l.changes, l.changes + 1)
    before_wake()
    word = load_relaxed_u64(&l.group.outbox[l.group.rank].pair_queues_asleep)
    if word != 0:
        wake(l, l.group.rank, word)


cdef bint has_lost_somebody(pair_queues_t *l, bint only_dead) noexcept nogil:
    """Report a peer that will never bring what is awaited of it. True if there is trouble.

    Only those matter that are awaited here: if they in turn wait for a dead one, they will report that themselves. Of
    anybody's messages one more may come as long as anybody stays; but a death among them is not passed over. Who merely
    looks whether a message is there needs nobody who closed (``only_dead``).
    """
    cdef group_t *c = l.group
    cdef int j, ngone = 0, last = -1
    cdef bint awaited, has_left
    if is_reported(c):
        return True
    for j in range(c.size):
        awaited = l.recv[j].is_busy or l.recv[j].nposted > 0 or l.send[j].is_busy
        if j == c.rank or not (awaited or l.nposted):
            continue
        has_left = load_acquire_u32(&c.outbox[j].left)      # SYNC left (meets: mark_left in engine/engine.pyx)
        if only_dead if has_left else life_state(c.life[j]) != DEAD:
            continue
        if has_news(l, j):      # what it had said before it went
            return False
        if not has_left or awaited:
            report_trouble(c, SHMRING_LEFT if has_left else SHMRING_LOST, j, 0, 0, 0, b"")
            return True
        ngone += 1
        last = j
    if l.nposted and last >= 0 and ngone == c.size - 1:
        report_trouble(c, SHMRING_LEFT, last, 0, 0, 0, b"")
        return True
    return False
