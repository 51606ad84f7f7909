"""Talks: small collectives in one round of whispers.

Every rank that has something to say whispers all of it; every rank that needs something listens to those it needs, in
rank order, and folds or places what it hears. One round, one cache miss a peer, no second synchronisation: reading
more than the minimum costs less than waiting twice.
"""

from libc.string cimport memcpy

from shmring._c.atomics cimport cpu_pause, load_acquire_u64, store_relaxed_u64, store_release_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_WHISPER_NBYTES, shmring_whisper
from shmring.engine.rounds cimport claim, disagree, finish, publish, remember_call
from shmring.sync.wait cimport PUBLISHED, READY, TROUBLE, UNREADY, wait_until, wake_waiters
from shmring.engine.whisper cimport has_arrived, read_whisper, write_whisper


cdef inline shmring_whisper *slot_of(engine_t *e, int who, uint64_t round) noexcept nogil:
    return e.whisper[who] + (round & (e.nslots - 1))


cdef inline void speak(engine_t *e, talk_t *t) noexcept nogil:
    fault_point("speak")
    write_whisper(slot_of(e, e.circle.rank, t.round), t.round, t.signature ^ e.history, t.words, t.nbytes)
    fault_point("whispered")
    publish(e, t.round, t.signature)
    t.spoken = True


cdef inline int hear(engine_t *e, talk_t *t, int who) noexcept nogil:
    """Look once. READY: the wanted part of that rank's words is in e.sources[who]."""
    cdef shmring_whisper *slot
    cdef size_t offset = t.offset, nbytes = t.part_nbytes
    if t.parts != NULL:
        offset, nbytes = t.parts[who].offset, t.parts[who].nbytes
    if who == e.circle.rank:
        e.sources[who] = t.words + offset
        return READY
    slot = slot_of(e, who, t.round)
    if not has_arrived(slot, t.round):
        return UNREADY
    if slot.first.signature != t.signature ^ e.history:
        # SYNC published (meets: publish). A line may arrive before the word that tells what it is about.
        if load_acquire_u64(&e.circle.outbox[who].published) <= t.round:
            return UNREADY
        disagree(e, who, t.round, t.signature)
        return TROUBLE
    e.sources[who] = read_whisper(slot, t.round, offset, nbytes, e.scratch + who * SHMRING_WHISPER_NBYTES)
    return READY if e.sources[who] != NULL else UNREADY


cdef int listen(engine_t *e, talk_t *t, int looks) noexcept nogil:
    """Hear the rest of those this rank needs; give up after ``looks`` looks at a silent one."""
    cdef int outcome, look = 0
    while t.heard < t.last:
        outcome = hear(e, t, t.heard)
        if outcome == TROUBLE:
            return TROUBLE
        if outcome == READY:
            fault_point("heard")
            t.heard += 1
            look = 0
            continue
        look += 1
        if look >= looks:
            return UNREADY
        cpu_pause()
    return READY


cdef void conclude(engine_t *e, talk_t *t) noexcept nogil:
    cdef int j
    cdef char *place
    cdef size_t nbytes = t.part_nbytes
    fault_point("conclude")
    if t.kernel != NULL:
        if t.last > t.first:
            t.kernel(t.out, e.sources + t.first, t.last - t.first, t.count)
    else:
        for j in range(t.first, t.last):
            place = t.out + (j - t.first) * t.stride
            if t.parts != NULL:
                place, nbytes = t.out + t.parts[j].place, t.parts[j].nbytes
            if place != e.sources[j] and nbytes:
                memcpy(place, e.sources[j], nbytes)
    if not t.spoken or t.last - t.first < e.circle.size:
        finish(e, t.round + 1, t.signature)
        return
    # We have heard everyone's word of this round, so everyone is through with all rounds before it: their slots are
    # free. And hardly anybody sleeps for our count to pass this round: that takes having heard our word and being
    # nslots - 1 rounds further, as a root that waits for nobody. So the count goes without a fence. Who sleeps for it
    # all the same, since we were interrupted just here, looks up by itself after a tick.
    e.free_until = t.round + e.nslots
    store_relaxed_u64(&e.own.current, 0)                 # before the count: is_elsewhere in sync/wait.pyx
    fault_point("concluding")
    store_release_u64(&e.own.consumed, t.round + 1)      # SYNC consumed (meets: has_reached in sync/wait.pyx)
    e.next_round = t.round + 1
    remember_call(e, t.signature)
    fault_point("concluded")


cdef int start_talk(engine_t *e, talk_t *t) noexcept nogil:
    """As far as one gets without waiting long; may be called with the GIL. UNREADY: go_on_talking."""
    t.round = e.next_round
    t.heard = t.first
    t.spoken = False
    store_release_u64(&e.own.current, t.signature)       # SYNC current (meets: is_elsewhere in sync/wait.pyx)
    fault_point("start")
    if t.words != NULL:
        if t.round >= e.free_until:
            return UNREADY
        speak(e, t)
    if listen(e, t, e.brief_looks) != READY:
        return UNREADY      # trouble, too, is met again where it can be waited for
    conclude(e, t)
    return READY


cdef int go_on_talking(engine_t *e, talk_t *t, patience_t *patience) noexcept nogil:
    """The rest of a talk. Waits; call without the GIL, again and again while UNREADY."""
    cdef int outcome
    if t.words != NULL and not t.spoken:
        outcome = claim(e, t.round, patience)
        if outcome != READY:
            return outcome
        speak(e, t)
    while t.heard < t.last:
        outcome = hear(e, t, t.heard)
        if outcome == TROUBLE:
            return TROUBLE
        if outcome == UNREADY:
            # The counter is published after the lines: once it has passed this round, a line that is not there will
            # never come, because that rank said something else.
            outcome = wait_until(&e.circle, PUBLISHED, t.heard, t.round + 1, patience)
            if outcome != READY:
                return outcome
            if hear(e, t, t.heard) != READY:
                disagree(e, t.heard, t.round, t.signature)
                return TROUBLE
        fault_point("heard")
        t.heard += 1
    conclude(e, t)
    # While we waited a root had time to run ahead and to fall asleep for the count that has just moved unannounced.
    wake_waiters(&e.circle)
    return READY
