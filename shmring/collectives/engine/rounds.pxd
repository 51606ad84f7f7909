# Rounds: claim, publish, await, release. One discipline for all collectives, small and large.
from libc.stdint cimport uint64_t

from shmring.core.c.atomics cimport store_relaxed_u64
from shmring.core.c.layout cimport shmring_eager_line, shmring_outbox, shmring_plan_note
from shmring.core.sync.backoff cimport patience_t
from shmring.core.sync.group cimport group_t

# What one process needs to take part in the rounds of one communicator.
ctypedef struct engine_t:
    group_t group
    shmring_outbox *own            # group.outbox[rank]
    shmring_eager_line **eager      # by rank: its first eager slot
    char **slots                   # by rank: its first slot
    int nslots                     # a power of two
    int nslots_bits                # of which one
    size_t slot_nbytes
    uint64_t next_round            # other threads load it in `Engine.rounds`
    uint64_t history               # of all collectives and plans so far, mixed into each signature
    uint64_t *ended                # by slot: the round with which a collective ended, plus one, ...
    uint64_t *did                  # ... and what it was; only to explain a mismatch
    uint64_t free_until            # rounds below it may be written without loading any `consumed` counter
    uint64_t *agreed               # by rank: first round + 1 of the last collective whose signature was compared
    char *scratch                  # by rank: room for one eager message, to gather payloads
    const void **sources           # room for one pointer per rank
    int brief_looks                # polls before the GIL is let go
    size_t output_streaming_nbytes # larger outputs go past the cache by rule: collectives/calls/local.pyx


cdef int claim(engine_t *e, uint64_t round, patience_t *patience) noexcept nogil
cdef void publish(engine_t *e, uint64_t round, uint64_t signature) noexcept nogil
cdef int await_round(engine_t *e, int rank, uint64_t round, uint64_t base, uint64_t signature,
                     patience_t *patience) noexcept nogil
cdef void release(engine_t *e, uint64_t round) noexcept nogil
cdef int await_release(engine_t *e, uint64_t round, patience_t *patience) noexcept nogil
cdef void finish(engine_t *e, uint64_t end, uint64_t signature) noexcept nogil
cdef void disagree(engine_t *e, int peer, uint64_t round, uint64_t base, uint64_t mine, uint64_t plan) noexcept nogil
cdef bint find_disagreement(engine_t *e, uint64_t end) noexcept nogil


cdef inline void mix_history(engine_t *e, uint64_t signature) noexcept nogil:
    # Times an odd number, so that two histories which differ once stay different.
    e.history = (e.history ^ signature) * <uint64_t> 0xff51afd7ed558ccd


cdef inline void sign_plan(engine_t *e, const shmring_plan_note *plan, uint64_t signature) noexcept nogil:
    # Of the call that begins: ranks that make it by different plans disagree, as those with different calls do.
    e.own.plan = plan[0]
    e.own.plan.call = signature
    e.own.plan.base = e.next_round
    e.history ^= plan.digest


cdef inline void count_call(engine_t *e, uint64_t nbytes) noexcept nogil:
    # On the line of `current`, which is stored next.
    store_relaxed_u64(&e.own.calls, e.own.calls + 1)
    store_relaxed_u64(&e.own.nbytes, e.own.nbytes + nbytes)


cdef inline void remember_call(engine_t *e, uint64_t signature) noexcept nogil:
    # The collective that ended with the round before `next_round`.
    cdef int slot = (e.next_round - 1) & (e.nslots - 1)
    e.ended[slot] = e.next_round
    e.did[slot] = signature
    mix_history(e, signature)
