"""Executes a compiled plan, step by step in one loop, without the interpreter."""

from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_ORDINARY, SHMRING_STRING
from shmring.engine.compiled_plan cimport (AWAIT, AWAIT_RELEASE, CLAIM, COPY, FOLLOW, IN, PUBLISH, REDUCE, RELEASE,
                                           SLOT, loop_t, operand_t, program_t, step_t)
from shmring.kernel.reduce cimport copy_bytes, fold_t, reduce_into, whole_fold
from shmring.engine.rounds cimport await_release, await_round, claim, finish, publish, rank_0_exchanges, release
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
    if o.space == SLOT:
        return x.outbox_stores
    return SHMRING_ORDINARY if x.out_stores == SHMRING_STRING != x.outbox_stores else x.out_stores


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


cdef void follow(engine_t *e, execution_t *x) noexcept nogil:
    """Go on with the plan that rank 0 has chosen; the first rounds of both are alike."""
    x.exchanges = x.wants_exchange if e.group.rank == 0 else rank_0_exchanges(e, x.base)
    if x.exchanges != x.wants_exchange:
        x.on_trial = False
    if x.on_trial:
        x.met_ns = now_ns()


cdef int take(engine_t *e, execution_t *x, step_t *s, patience_t *patience) noexcept nogil:
    cdef uint64_t round = x.base + <uint64_t> (s.round + x.iteration * s.round_step)
    cdef int64_t started
    cdef bint timed = x.on_trial and x.met_ns == 0
    if s.code == COPY or s.code == REDUCE:
        fault_point("copy" if s.code == COPY else "fold")
        started = now_ns() if timed else 0
        if s.code == COPY:
            copy(e, x, s)
        else:
            fold(e, x, s)
        if timed:
            x.busy_ns += now_ns() - started
    elif s.code == CLAIM:
        return claim(e, round, patience)
    elif s.code == PUBLISH:
        publish(e, round, x.signature, x.wants_exchange)
    elif s.code == AWAIT:
        return await_round(e, s.rank, round, x.base, x.signature, patience)
    elif s.code == RELEASE:
        release(e, round)
    elif s.code == AWAIT_RELEASE:
        return await_release(e, round, patience)
    else:
        follow(e, x)
    return READY


cdef int execute(engine_t *e, program_t *program, execution_t *x, patience_t *patience) noexcept nogil:
    """Execute ``program`` from the step that ``x`` has reached. Waits; call again while UNREADY: a step that waits
    changes nothing until it is READY, so it is taken again."""
    cdef loop_t *loop
    cdef int outcome
    if x.exchanges:
        program = program.exchange
    while x.loop < program.nloops:
        loop = &program.loops[x.loop]
        while x.iteration < loop.times:
            while x.step < loop.nsteps:
                outcome = take(e, x, &loop.steps[x.step], patience)
                if outcome != READY:
                    return outcome
                x.step += 1
                if loop.steps[x.step - 1].code == FOLLOW and x.exchanges:
                    program = program.exchange
                    loop = &program.loops[x.loop]
            x.step = 0
            x.iteration += 1
        x.iteration = 0
        x.loop += 1
    finish(e, x.base + program.rounds, x.signature)
    return READY
