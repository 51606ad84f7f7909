"""Rounds: how a slot of an outbox is claimed, published, awaited and released.

Round r uses slot r % nslots of every rank's outbox. There are no states and no flags to reset: each rank has two
counters, which only grow. A rank writes its slot once all others have consumed what was in it (claim), then stores
`published` (publish); the others wait for that (await_round), read, and store `consumed` (release). In order, always.
"""

from libc.stdint cimport UINT64_MAX
from libc.stdio cimport snprintf

from shmring.core.c.atomics cimport load_relaxed_u64, store_relaxed_u64, store_release_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_LATE_NBYTES, SHMRING_MISMATCH, SHMRING_PLAN_TEXT_NBYTES, shmring_plan_note
from shmring.collectives.engine.signature cimport kept_signature, short_signature
from shmring.core.sync.abort cimport report_trouble
from shmring.core.sync.group cimport CONSUMED, EVERYONE, PUBLISHED, READY, TROUBLE
from shmring.core.sync.wait cimport wait_until, wake_waiters


cdef int claim(engine_t *e, uint64_t round, patience_t *patience) noexcept nogil:
    """Wait until the own slot of ``round`` may be written."""
    fault_point("claim")
    return await_consumed(e, round, patience)


cdef int await_consumed(engine_t *e, uint64_t round, patience_t *patience) noexcept nogil:
    """Wait until all others have consumed what was in the slot of ``round`` before it."""
    cdef int outcome
    if round < e.free_until:
        return READY
    outcome = wait_until(&e.group, CONSUMED, EVERYONE, round + 1 - e.nslots, patience)
    if outcome == READY:
        # Often the others are further than needed: then the next claims load no counter.
        e.free_until = least_consumed(e) + e.nslots
    return outcome


cdef uint64_t least_consumed(engine_t *e) noexcept nogil:
    cdef uint64_t least = UINT64_MAX - e.nslots
    cdef int j
    for j in range(e.group.size):
        least = min(least, e.group.seen[CONSUMED][j])
    return least


cdef void publish(engine_t *e, uint64_t round, uint64_t signature) noexcept nogil:
    cdef int slot = round & (e.nslots - 1)
    e.own.full_signature[slot] = signature
    e.own.history[slot] = e.history
    e.own.signature[slot] = short_signature(signature ^ e.history, round)
    fault_point("publish")
    # SYNC published (meets: has_reached in core/sync/wait.pyx). The slot and the signature before the counter.
    store_release_u64(&e.own.published, round + 1)
    fault_point("published")
    wake_waiters(&e.group)


cdef void release(engine_t *e, uint64_t round) noexcept nogil:
    fault_point("release")
    # SYNC consumed (meets: has_reached in core/sync/wait.pyx). This rank's loads before the counter that allows
    # overwriting.
    store_release_u64(&e.own.consumed, round + 1)
    fault_point("released")
    wake_waiters(&e.group)


cdef int await_release(engine_t *e, uint64_t round, patience_t *patience) noexcept nogil:
    """Wait until all others have released ``round``, in which they have replaced what this rank's slot held."""
    fault_point("await_release")
    return await_consumed(e, round + e.nslots, patience)


cdef void finish(engine_t *e, uint64_t end, uint64_t signature) noexcept nogil:
    """End a collective, whose rounds are all below ``end``: all are published and released, written or not.

    A rank that wrote nothing publishes its rounds all the same, so that a peer that waits for one of them, being in
    another collective, finds the signature of an older round there instead of waiting until its timeout.
    """
    fault_point("finish")
    if load_relaxed_u64(&e.own.published) < end:
        store_release_u64(&e.own.published, end)      # SYNC published (meets: has_reached in core/sync/wait.pyx)
    store_relaxed_u64(&e.own.current, 0)              # before the counter: is_elsewhere in core/sync/wait.pyx
    fault_point("finishing")
    store_release_u64(&e.own.consumed, end)           # SYNC consumed (meets: has_reached in core/sync/wait.pyx)
    fault_point("finished")
    wake_waiters(&e.group)
    if end == e.next_round:      # without rounds: nothing went to another rank
        mix_history(e, signature)
        return
    store_relaxed_u64(&e.next_round, end)
    remember_call(e, signature)


cdef int await_round(engine_t *e, int rank, uint64_t round, uint64_t base, uint64_t signature,
                     patience_t *patience) noexcept nogil:
    """Wait until ``rank`` (or EVERYONE) has published ``round`` of the collective that began at round ``base``."""
    cdef int outcome, j
    fault_point("await")
    outcome = wait_until(&e.group, PUBLISHED, rank, round + 1, patience)
    if outcome != READY:
        return outcome
    for j in range(e.group.size):
        if (rank != EVERYONE and rank != j) or j == e.group.rank or e.agreed[j] == base + 1:
            continue
        # Once per collective and peer: all later rounds follow from the same signature, which shares the cache line of
        # the counter just loaded.
        if kept_signature(e.group.outbox[j], round & (e.nslots - 1)) != short_signature(signature ^ e.history, round):
            disagree(e, j, round, base, signature, e.own.plan.digest)
            return TROUBLE
        e.agreed[j] = base + 1
    if rank == EVERYONE and e.free_until < base + e.nslots:
        # All ranks are in this collective, hence have consumed all rounds before it: no need to load a counter.
        e.free_until = base + e.nslots
    fault_point("awaited")
    return READY


cdef uint64_t signature_of(engine_t *e, int rank, uint64_t round) noexcept nogil:
    """The signature of that rank's ``round``; 0 if it wrote nothing then, or has overwritten it by now."""
    cdef int slot = round & (e.nslots - 1)
    cdef shmring_outbox *box = e.group.outbox[rank]
    cdef uint64_t signature = box.full_signature[slot]
    return signature if kept_signature(box, slot) == short_signature(signature ^ box.history[slot], round) else 0


cdef uint64_t own_signature(engine_t *e, uint64_t round) noexcept nogil:
    """The signature of this rank's ``round``, also where it wrote nothing; 0 if it is not kept any more."""
    cdef int slot = round & (e.nslots - 1)
    return e.did[slot] if e.ended[slot] == round + 1 else signature_of(e, e.group.rank, round)


cdef inline const char *name_of(const shmring_plan_note *plan) noexcept nogil:
    return <const char *> b"an eager exchange" if plan == NULL else <const char *> plan.text


cdef bint are_by_other_plans(engine_t *e, int peer, uint64_t base, uint64_t mine, uint64_t plan,
                             char *text) noexcept nogil:
    """Whether ``peer`` makes this call, too, but by another plan; ``text``: by which ones."""
    cdef shmring_plan_note ours = e.own.plan, theirs = e.group.outbox[peer].plan
    cdef bint is_planned = theirs.digest != 0 and theirs.call == mine and theirs.base == base
    if is_planned and theirs.digest == plan:
        return False
    if not is_planned and (plan == 0 or signature_of(e, peer, base) != mine
                           or e.group.outbox[peer].history[base & (e.nslots - 1)] != e.history ^ plan):
        return False
    snprintf(text, SHMRING_LATE_NBYTES, b"rank %d makes it by %.*s, rank %d by %.*s", e.group.rank,
             <int> SHMRING_PLAN_TEXT_NBYTES, name_of(&ours if plan else NULL), peer, <int> SHMRING_PLAN_TEXT_NBYTES,
             name_of(&theirs if is_planned else NULL))
    return True


cdef void disagree(engine_t *e, int peer, uint64_t round, uint64_t base, uint64_t mine, uint64_t plan) noexcept nogil:
    """Report that ``peer`` made another call in ``round``, which this rank has not consumed, or in an earlier round.

    ``base``: the first round of this rank's call; ``plan``: the digest of its plan, 0: it is an eager exchange.

    A root does not wait for other ranks. So two ranks that are each the root of their own call go on, and the
    mismatch is found later by the histories, possibly by a third rank. So the rounds that are kept are compared with
    all ranks'.
    """
    cdef uint64_t theirs = signature_of(e, peer, round)
    cdef char text[SHMRING_LATE_NBYTES]
    if theirs in (0, mine) and are_by_other_plans(e, peer, base, mine, plan, text):
        report_trouble(&e.group, SHMRING_MISMATCH, peer, round, mine, mine, text)
    elif theirs != mine:
        report_trouble(&e.group, SHMRING_MISMATCH, peer, round, mine, theirs, b"")
    elif not find_disagreement(e, round):
        report_trouble(&e.group, SHMRING_MISMATCH, peer, round, mine, mine, b"not about this call, but an earlier one")


cdef bint find_disagreement(engine_t *e, uint64_t end) noexcept nogil:
    """Look for a rank that made another call in the last rounds before ``end``; report it."""
    cdef uint64_t theirs, ours, at = end
    cdef int j
    while at > 0 and end - at < <uint64_t> e.nslots - 1:
        at -= 1
        ours = own_signature(e, at)
        for j in range(e.group.size):
            theirs = signature_of(e, j, at)
            if j != e.group.rank and ours != 0 and theirs != 0 and ours != theirs:
                report_trouble(&e.group, SHMRING_MISMATCH, j, at, ours, theirs, b"")
                return True
    return False
