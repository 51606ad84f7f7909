"""All pair queues of a rank: moves what can be moved, spins, sleeps until something arrives."""

from libc.stdint cimport int64_t

from shmring._c.atomics cimport load_acquire_u64, load_relaxed_u64, store_relaxed_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_PAIR_QUEUE_NCELLS, shmring_outbox
from shmring.p2p.pair_queue cimport ANY_PEER, next_cell, pull, push, recv_queue_t, send_queue_t, wake
from shmring.sync.abort cimport in_trouble
from shmring.sync.backoff cimport (CHECK, FRESH, LOOK, LOOK_ROUND, LOOKS_PER_CLOCK, TICK, YIELDS, back_off, before_wake,
                                   end_wait, learn_spin, now_ns, patience_t, sleeper_t)
from shmring.sync.group cimport READY, TROUBLE, UNREADY


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
    """Pump while spinning. READY: matching is needed; UNREADY: time to sleep; TROUBLE: the communicator is broken.

    The caller has the turn. What moves begins the wait anew. After a sleep in vain it pumps once and does not spin.
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
        if patience.stage >= YIELDS:
            return TROUBLE if in_trouble(l.group) else UNREADY
        step = back_off(patience, &sleeper)
        if step != LOOK and in_trouble(l.group):
            return TROUBLE
        if step >= CHECK:
            return UNREADY


cdef inline sleeper_t sleeper_of(pair_queues_t *l, int64_t spin_ns) noexcept nogil:
    cdef shmring_outbox *own = l.group.outbox[l.group.rank]
    return sleeper_t(word=&own.pair_queues_asleep, what=0, wake=&own.pair_queues_wake, next=NULL, spin_ns=spin_ns,
                     yields=l.group.yields, tick_ns=l.group.tick_ns, spin=&l.spin)


cdef bint has_news(pair_queues_t *l, int j) noexcept nogil:
    """Whether `pump` would find something to do for that peer. Stores nothing, so it needs no turn."""
    cdef send_queue_t *o = &l.send[j]
    cdef recv_queue_t *i = &l.recv[j]
    if o.is_busy and load_acquire_u64(&o.peers.taken) != o.taken:      # SYNC taken (meets: pull in p2p/pair_queue.pyx)
        return True
    if not i.is_busy and not is_posted(l, i):
        return False
    if not i.is_open:
        # SYNC opened (meets: open_pair_queue in p2p/point_to_point.pyx).
        return load_acquire_u64(&i.peers.opened) != 0
    # SYNC laid (meets: push in p2p/pair_queue.pyx).
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
    """Yield, then sleep until something arrives or for one tick. READY if there is something to do, else UNREADY.

    One thread of the process at a time; it need not have the turn. ``changes`` is the value that it read before it gave
    the turn away: if another thread has changed it since, the waiter word must be computed again.
    """
    cdef sleeper_t sleeper = sleeper_of(l, 0)      # `spin` has spun
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
