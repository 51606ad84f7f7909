"""Blocking at rings: wait until the counter of another end has reached a number, and wake the other end.

Before sleeping, an end stores the number it waits for in its waiter word. After advancing a counter, the peer loads
that word and wakes the end only if the number was reached. The liveness of the awaited end is checked after
spinning and at every tick of sleep, so a wait for a dead end returns.

A thread that waits at several rings at once stores a waiter word at each, and sleeps on these words. So a producer does
the same for one ring and for several, and one that is not awaited makes no system call.
"""


from shmring.core.c.atomics cimport cpu_pause, load_acquire_u32, load_acquire_u64, load_relaxed_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport sem_t
from shmring.core.base.signals cimport check_signals
from shmring.core.ring.prospects cimport can_be_taken
from shmring.core.ring.spsc cimport END_ABSENT, END_CLOSED, END_LOST, ROLE_DISCONNECTED, ring_end_state
from shmring.core.sync.backoff cimport (
    BRIEF_LOOKS, BROKEN, CHECK, FRESH, LOOK, SLEEPS, TICK, back_off, be_patient, before_wake, end_wait,
    is_past_deadline, learn_spin, sem_post, take_sleeper, wake_word,
)
from shmring.core.sync.group cimport READY, UNREADY
from shmring.core.sync.long_waits cimport is_note_due, notes_t, write_note
from shmring.core.sync.notifier cimport Notifier, disarm

from shmring.errors import SegmentError

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *descriptors, unsigned long n, int timeout_ms)


cdef inline bint has_come(awaited_t *a) noexcept nogil:
    # SYNC filled (meets: ring_commit in core/ring/spsc.pxd), SYNC drained (meets: ring_release in core/ring/spsc.pxd).
    # Every caller loads the counter again, by ring_ready or ring_free.
    return <int64_t> (load_acquire_u64(a.counter) - a.until) >= 0


cdef bint any_has_come(awaited_t *awaited, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        if has_come(&awaited[i]):
            return True
    return False


cdef bint hangs_up(int descriptor) noexcept nogil:
    cdef pollfd at = pollfd(fd=descriptor, events=0, revents=0)
    return descriptor == CLOSED_SOCKET or poll(&at, 1, 0) > 0


cdef bint is_vacant(watch_t *w) noexcept nogil:
    # The locks first, the state second: a process shows that it may take an end until it has taken it.
    return (ring_end_state(w.other) == END_ABSENT and not can_be_taken(w.prospects, w.awaited_end, w.waits_for_ever)
            and ring_end_state(w.other) == END_ABSENT)


cdef bint is_gone(watch_t *w) noexcept nogil:
    if w.peer_socket != NO_SOCKET:
        return hangs_up(w.peer_socket)
    cdef int state = ring_end_state(w.other)
    if state == END_CLOSED or state == END_LOST or load_acquire_u32(&w.own.closed) == ROLE_DISCONNECTED:
        return True
    return state == END_ABSENT and is_vacant(w)


cdef bint any_is_gone(awaited_t *awaited, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        if is_gone(awaited[i].watch):
            return True
    return False


# ---- waking ----------------------------------------------------------------------------------------------------------

cdef void post(uint64_t *at, sem_t *wake, uint64_t word) noexcept nogil:
    if take_sleeper(at, word):
        fault_point("ring_wake")
        if word & SLEEPS_ON_WORD:
            wake_word(at)
        else:
            sem_post(wake)


cdef void wake_sleeper(uint64_t *word, sem_t *wake, uint64_t value) noexcept nogil:
    cdef uint64_t found = load_relaxed_u64(word)
    if found and <int64_t> ((waiter_word(value) | SLEEPS_ON_WORD) - found) >= 0:
        post(word, wake, found)


cdef void wake_at_once(uint64_t *word, sem_t *wake) noexcept nogil:
    cdef uint64_t found = load_relaxed_u64(word)
    if found:
        post(word, wake, found)


cdef void wake_peer(watch_t *w, uint64_t value) noexcept nogil:
    before_wake()
    wake_sleeper(w.peer, w.wake, value)


# ---- waiting ---------------------------------------------------------------------------------------------------------

cdef int await_briefly(awaited_t *awaited, int n) noexcept nogil:
    cdef int _i
    if awaited[0].watch.spin_ns:
        for _i in range(BRIEF_LOOKS):
            if any_has_come(awaited, n):
                return READY
            cpu_pause()
    return UNREADY


cdef int look_once(awaited_t *awaited, int n) noexcept nogil:
    # The other end's state first, its counter second: what it did before it went is not lost.
    cdef bint is_over = any_is_gone(awaited, n)
    return READY if any_has_come(awaited, n) else GONE if is_over else LATE


# The semaphore that the other ends of all these post; NULL: they have none in common.
cdef sem_t *common_bed(awaited_t *awaited, int n) noexcept nogil:
    cdef int i
    for i in range(1, n):
        if awaited[i].watch.bed != awaited[0].watch.bed:
            return NULL
    return awaited[0].watch.bed


# `bed`: the semaphore; NULL: it sleeps on the waiter word.
cdef sleeper_t sleeper_of(awaited_t *a, sem_t *bed) noexcept nogil:
    # Two ends that may use only one processor, the same one, need it for each other: they do not spin.
    cdef watch_t *w = a.watch
    return sleeper_t(word=w.word, what=waiter_word(a.wake_at) | (0 if bed != NULL else SLEEPS_ON_WORD),
                     wake=bed, next=NULL,
                     spin_ns=0 if w.own.only and w.own.only == w.other.only else w.spin_ns, yields=w.yields,
                     tick_ns=w.tick_ns, spin=&w.spin, looks=0)


cdef sleeper_t shared_sleeper(uint64_t *word, int64_t tick_ns) noexcept nogil:
    return sleeper_t(word=word, what=1 | SLEEPS_ON_WORD, wake=NULL, next=NULL, spin_ns=0, yields=0, tick_ns=tick_ns,
                     spin=NULL, looks=0)


cdef int await_any(awaited_t *awaited, int n, patience_t *patience) noexcept nogil:
    cdef shmring_ring_counts *counts = awaited[0].watch.counts
    cdef int i, step = LOOK, outcome = READY
    cdef sem_t *bed = common_bed(awaited, n)
    for i in range(n):
        awaited[i].sleeper = sleeper_of(&awaited[i], bed)
        awaited[i].sleeper.next = &awaited[i + 1].sleeper if i + 1 < n else NULL
        if patience.stage == FRESH and awaited[i].watch.notice != NULL:
            disarm(awaited[i].watch.notice)        # a waiter word has room for one waiter
    if patience.stage == FRESH:
        counts.waits += 1
    while not any_has_come(awaited, n):
        if step >= CHECK:
            outcome = look_once(awaited, n)
            if outcome != LATE or is_past_deadline(patience):
                break
            if step == TICK:
                return UNREADY
        step = back_off(patience, &awaited[0].sleeper)
        if step == BROKEN:
            outcome = CORRUPT
            break
        if patience.stage == SLEEPS and step != CHECK:
            if step == TICK:
                counts.sleeps += 1
            else:
                fault_point("ring_sleep")
    else:
        outcome = READY
    if outcome != GONE and outcome != CORRUPT:
        learn_spin(&awaited[0].sleeper, patience, outcome == READY)
    end_wait(patience, &awaited[0].sleeper)
    return outcome


cdef int arm(Notifier notifier, const awaited_t *awaited) except -1:
    cdef awaited_t *known = <awaited_t *>notifier.memory
    if notifier.is_armed() and known.counter == awaited.counter and known.until == awaited.until:
        return 0
    disarm(&notifier.notice)
    known[0] = awaited[0]
    known.wake_at = known.until
    known.sleeper = sleeper_of(known, NULL)
    return notifier.arm(&known.sleeper, is_over)


cdef bint is_over(void *what) noexcept nogil:
    return look_once(<awaited_t *>what, 1) != LATE


cdef int await_step(object end, void *what, patience_t *patience) noexcept nogil:
    cdef wait_t *wait = <wait_t *>what
    return await_any(wait.awaited, wait.n, patience)


cdef int drive(step_t step, object end, void *what, int64_t timeout_ns, bint *is_busy, bint writes_notes) except? -9:
    cdef patience_t patience
    cdef notes_t notes = notes_t(0, 0)
    cdef int outcome
    be_patient(&patience, timeout_ns)
    is_busy[0] = True
    try:
        while True:
            with nogil:
                outcome = step(end, what, &patience)
            if outcome == CORRUPT:
                raise SegmentError(f"{end!r} is corrupted: a process has overwritten the semaphore of its waiters")
            if outcome != UNREADY:
                return outcome
            check_signals()
            # A stream pauses for signals without having waited, too: such a patience has no beginning.
            if writes_notes and patience.stage != FRESH and is_note_due(&notes, patience.began_ns):
                write_note(f"{end!r} waits", patience.began_ns)
    finally:
        is_busy[0] = False
