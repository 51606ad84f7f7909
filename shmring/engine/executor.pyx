"""Executes a compiled plan, step by step in one loop, without the interpreter."""

from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_ORDINARY
from shmring.engine.compiled_plan cimport (AWAIT, CLAIM, COPY, IN, PUBLISH, REDUCE, RELEASE, SLOT, loop_t, operand_t,
                                           program_t, step_t)
from shmring.kernel.reduce cimport copy_bytes, fold_t, reduce_into, whole_fold
from shmring.engine.rounds cimport await_release, await_round, claim, finish, publish, release
from shmring.sync.backoff cimport now_ns
from shmring.sync.group cimport READY


cdef enum:
    HOT_NBYTES = 8192      # a block of it and its sources stay in the first-level cache


cdef inline char *address(engine_t *e, execution_t *x, operand_t *o) noexcept nogil:
    cdef int64_t offset = o.offset + x.iteration * o.offset_step
    cdef uint64_t round
    if o.space == SLOT:
        round = x.base + <uint64_t> (o.round + x.iteration * o.round_step)
        return (e.slots[o.rank] + (round & (e.nslots - 1)) * e.slot_nbytes
                + (round >> e.nslots_bits & (x.places - 1)) * x.place_nbytes + offset)
    if o.rank != e.group.rank:     # in a zero-copy plan
        return (x.ins if o.space == IN else x.outs)[o.rank] + offset
    return (x.in_base if o.space == IN else x.out_base) + offset


cdef inline int stores(engine_t *e, execution_t *x, operand_t *o) noexcept nogil:
    return x.outbox_stores if o.space == SLOT else x.out_stores


cdef void copy(engine_t *e, execution_t *x, step_t *s) noexcept nogil:
    cdef char *dst = address(e, x, &s.operands[0])
    cdef char *src = address(e, x, &s.operands[1])
    if dst != src:      # equal if an in-place operation copies a block to its own place
        copy_bytes(dst, src, s.nbytes, stores(e, x, &s.operands[0]))


cdef inline fold_t fold_of(engine_t *e, execution_t *x, step_t *s) noexcept nogil:
    cdef fold_t f = whole_fold(x.kernel, x.itemsize)
    if (s.opens and s.closes) or x.carrier == NULL:
        return f
    if s.closes:
        f.kernel, f.closes, f.total = NULL, x.carrier.closes, e.group.size
    else:
        f.kernel = x.carrier.opens if s.opens else x.carrier.carries
        f.dst_itemsize *= s.wide
    if not s.opens:
        f.first_itemsize *= s.wide
    return f


cdef void fold(engine_t *e, execution_t *x, step_t *s) noexcept nogil:
    cdef fold_t f = fold_of(e, x, s)
    cdef operand_t *also = s.operands + 1
    cdef operand_t *sources = also + s.nalso
    cdef char *dst = address(e, x, &s.operands[0])
    cdef int dst_stores = stores(e, x, &s.operands[0])
    cdef int64_t done = 0, part = s.nbytes
    cdef int i
    if s.nalso > 1:
        part = HOT_NBYTES      # several further destinations (none of a prefix): block by block, from the cache
    while done < s.nbytes:
        part = min(part, s.nbytes - done)
        for i in range(s.nsources):
            e.sources[i] = address(e, x, &sources[i]) + done
        if s.nalso == 1:
            reduce_into(&f, dst + done, address(e, x, also) + done, e.sources, s.nsources, part // x.itemsize,
                        dst_stores, stores(e, x, also))
        else:
            reduce_into(&f, dst + done, NULL, e.sources, s.nsources, part // x.itemsize,
                        dst_stores if s.nalso == 0 else SHMRING_ORDINARY, SHMRING_ORDINARY)
            for i in range(s.nalso):
                copy_bytes(address(e, x, &also[i]) + done, dst + done, part, stores(e, x, &also[i]))
        done += part


cdef int await_others(engine_t *e, execution_t *x, step_t *s, uint64_t round, patience_t *patience) noexcept nogil:
    cdef int64_t started
    cdef int outcome
    # In the first round a rank waits for others to begin the call; later waits are part of the plan.
    if not x.is_timed or round != x.base:
        return await_round(e, s.rank, round, x.base, x.signature, patience)
    started = now_ns()
    outcome = await_round(e, s.rank, round, x.base, x.signature, patience)
    x.late_ns += now_ns() - started
    return outcome


cdef int take(engine_t *e, execution_t *x, step_t *s, patience_t *patience) noexcept nogil:
    cdef uint64_t round = x.base + <uint64_t> (s.round + x.iteration * s.round_step)
    if s.code == COPY:
        fault_point("copy")
        copy(e, x, s)
    elif s.code == REDUCE:
        fault_point("fold")
        fold(e, x, s)
    elif s.code == CLAIM:
        return claim(e, round, patience)
    elif s.code == PUBLISH:
        publish(e, round, x.signature)
    elif s.code == AWAIT:
        return await_others(e, x, s, round, patience)
    elif s.code == RELEASE:
        release(e, round)
    else:
        return await_release(e, round, patience)
    return READY


cdef int execute(engine_t *e, execution_t *x, patience_t *patience) noexcept nogil:
    """Execute the program of ``x`` from the step that it has reached. Waits; call again while UNREADY: a step that
    waits changes nothing until it is READY, so it is taken again."""
    cdef program_t *program = x.program
    cdef loop_t *loop
    cdef int outcome
    while x.loop < program.nloops:
        loop = &program.loops[x.loop]
        while x.iteration < loop.times:
            while x.step < loop.nsteps:
                outcome = take(e, x, &loop.steps[x.step], patience)
                if outcome != READY:
                    return outcome
                x.step += 1
            x.step = 0
            x.iteration += 1
        x.iteration = 0
        x.loop += 1
    finish(e, x.base + program.rounds, x.signature)
    return READY
