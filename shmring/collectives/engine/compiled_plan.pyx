"""Compiled plans: plans as C structs, which are executed step by step in one loop, without the interpreter.

A plan is a few loops of steps with affine offsets, so a program is a few hundred bytes a step, whatever the size of the
message. Compiled once for each (collective, size), kept by the engine.
"""

import hashlib
from math import prod

from libc.string cimport memcpy

from shmring.core.c.atomics cimport store_release_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport (SHMRING_ABORTED, SHMRING_MOST_DIMENSIONS, SHMRING_ORDINARY,
                                    SHMRING_PLAN_TEXT_NBYTES)
from shmring.core.c.peer_memory cimport read_peer_memory
from shmring.core.base.learner cimport LEAST_TIMED, MOST_ALTERNATIVES, MOST_VARIANTS, alternative
from shmring.collectives.engine.kinds cimport KIND, OF_ALL, READS_ALL, READS_BEFORE, READS_ROOT, READS_THROUGH
from shmring.collectives.engine.rounds cimport await_release, await_round, claim, finish, publish, release, sign_plan
from shmring.core.kernel.reduce cimport copy_bytes, fold_t, reduce_into, whole_fold
from shmring.core.sync.abort cimport report_trouble
from shmring.core.sync.backoff cimport now_ns
from shmring.core.sync.group cimport READY, TROUBLE, UNREADY

from shmring.collectives.plan.choose import DIMENSIONS
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.collectives.plan.limits import LINE
from shmring.collectives.plan.steps import ALL, Await, AwaitRelease, Claim, Copy, Publish, Reduce, Release, Space


cdef enum:
    HOT_NBYTES = 8192      # a block of it and its sources stay in the first-level cache

CODES = {Claim: CLAIM, Publish: PUBLISH, Await: AWAIT, Release: RELEASE, AwaitRelease: AWAIT_RELEASE}


# ---- compiling -------------------------------------------------------------------------------------------------------

cdef class Program:
    """A plan in the form that `execute` takes.

    Parameters
    ----------
    plan : Plan
    limits : Limits
        That it fits into.
    shares : ThreadShares, optional
        Of the threads of each rank, if it is the plan of one of them.
    nthreads : int
        How many there are.
    hierarchy : Hierarchy, optional
        The domains of a hierarchical plan.
    """

    def __cinit__(self, plan, limits, shares=None, int nthreads=1, hierarchy=None):
        cdef Py_ssize_t i, k
        self.plan = plan
        self.algorithm_name = plan.algorithm.encode()
        self.code.algorithm = self.algorithm_name
        self.heap = Heap()
        self.code.rounds = plan.rounds
        self.code.places, self.code.place_nbytes = places_in_slot(plan.used_nbytes, limits.slot_nbytes, plan.size)
        self.code.gathers_all = plan.kind == "barrier"
        level = hierarchy.level if plan.algorithm == "hierarchical" else None
        self.sign((shares, level), plan, limits, nthreads)
        loops = [(loop.times, flatten(loop.steps)) for loop in plan.loops]
        self.code.nloops = len(loops)
        self.code.loops = <loop_t *> self.heap.allocate(len(loops), sizeof(loop_t))
        for i, (times, steps) in enumerate(loops):
            self.code.loops[i].times = times
            self.code.loops[i].nsteps = len(steps)
            self.code.loops[i].steps = <step_t *> self.heap.allocate(len(steps), sizeof(step_t))
            for k, step in enumerate(steps):
                self.compile_step(&self.code.loops[i].steps[k], step)
        self.set_plans([self], {})

    cdef int sign(self, tuple basis, plan, limits, int nthreads) except -1:
        """Set the digest of all that must be equal on all ranks, and the text that names the plan."""
        threads = "" if nthreads == 1 else f", {nthreads} threads"
        rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds} rounds"
        text = f"{plan.algorithm}, {rounds} of {limits.capacity} bytes{threads}"
        code = (limits.nslots, limits.slot_nbytes, self.code.places, self.code.place_nbytes)
        digest = hashlib.blake2b(repr((text, code, basis)).encode(), digest_size=8).digest()
        self.code.note.digest = int.from_bytes(digest, "little") | 1      # 0 is no plan
        encoded = text.encode()[:SHMRING_PLAN_TEXT_NBYTES - 1]
        memcpy(self.code.note.text, <const char *> encoded, len(encoded))
        return 0

    cdef int compile_step(self, step_t *s, object step) except -1:
        operands = []
        if isinstance(step, Copy):
            s.code, s.nbytes, operands = COPY, step.nbytes, [step.dst, step.src]
            if step.src.space == Space.IN and step.src.rank != self.plan.rank:
                s.code = READ
        elif isinstance(step, Reduce):
            s.code, s.nbytes, s.nsources, s.nalso = REDUCE, step.nbytes, len(step.sources), len(step.also)
            s.opens, s.closes, s.wide = step.opens, step.closes, step.wide
            operands = [step.dst, *step.also, *step.sources]
        else:
            s.code = CODES[type(step)]
            s.round, s.round_step = step.round
            s.rank = step.ranks if s.code == AWAIT else 0
        s.operands = <operand_t *> self.heap.allocate(len(operands), sizeof(operand_t))
        for i, operand in enumerate(operands):
            s.operands[i].space = {Space.IN: IN, Space.OUT: OUT, Space.SLOT: SLOT}[operand.space]
            s.operands[i].rank = operand.rank
            s.operands[i].offset, s.operands[i].offset_step = operand.offset
            s.operands[i].round, s.operands[i].round_step = operand.round
        return 0

    cdef void add_share(self, Program last, size_t nbytes) noexcept:
        """Of a share of a call: ``last`` executes the last thread's, and shares are ``nbytes`` apart."""
        self.last = last
        self.code.last = &last.code
        self.code.share_nbytes = nbytes

    cdef int set_plans(self, list plans, dict names) except -1:
        """Set the plans of the same call, of which this is the first one: one for each combination of the values of the
        dimensions in ``names``, of which the first one changes fastest."""
        cdef dimensions_t *d = &self.code.dimensions
        counts = [len(one.values or names.get(one.name, ("",))) for one in DIMENSIONS]
        if len(counts) > SHMRING_MOST_DIMENSIONS or sum(counts) > MOST_ALTERNATIVES or prod(counts) > MOST_VARIANTS:
            raise ValueError(f"variants of {self.plan.kind}: {counts} values of the dimensions are too many")
        if prod(counts[PLANS:]) != len(plans):
            raise ValueError(f"{len(plans)} plans for {counts[PLANS:]} values")
        self.plans, self.names = plans, names
        self.code.nplans = len(plans)
        self.code.plans = <program_t **> self.heap.allocate(len(plans), sizeof(program_t *))
        for i, plan in enumerate(plans):
            self.code.plans[i] = &(<Program?> plan).code
        for i, count in enumerate(counts):
            d.nvalues[i] = count
        d.of_stores = 1 << STORES | 1 << OUTPUT
        d.whole = 1 << PATH | 1 << OUTPUT
        d.within = alternative(d.nvalues, PATH, 1)
        schedules = list(names.get("schedule", ()))
        self.code.exchange = schedules.index("exchange") if "exchange" in schedules else 0
        d.ordinary = alternative(d.nvalues, SCHEDULE, self.code.exchange) if self.code.exchange else -1
        return 0

    cdef int plan_trials(self, int nslots) except -1:
        """Set how long trials are, and in how many calls of it the choice of one rank reaches all ranks."""
        cdef int kind = COLLECTIVES[self.plan.kind].code
        cdef uint64_t rounds
        cdef Program other
        # Until all places have been written in one way, their lines are where the way before left them.
        self.code.fewest_rounds = max(1, min([other.code.rounds for other in self.plans]))
        for other in self.plans:
            rounds = max(other.code.rounds, <uint64_t> 1)
            self.code.window = max(self.code.window, LEAST_TIMED + (nslots * other.code.places + rounds - 1) // rounds)
        # Where every rank loads from every other one, no rank is a whole call ahead; else by as many rounds as slots.
        self.code.lead = nslots + 2
        if KIND[kind].reads == READS_ALL and KIND[kind].outputs == OF_ALL:
            self.code.lead = LEAD_OF_ALL
        # A rank that others wait for may be ahead of them, and its times hide theirs. So one decides that waits.
        if KIND[kind].reads == READS_ROOT:
            self.code.decider = 1
        elif KIND[kind].reads in (READS_BEFORE, READS_THROUGH):
            self.code.decider = -1
        return 0


def places_in_slot(used_nbytes, slot_nbytes, size):
    """How many places of a slot the rounds that use it take in turn, a power of two, and their distance.

    To rewrite a line that another core's private cache still holds takes an exchange with that core. So small rounds,
    too, use most of the outboxes, which together are larger than a core's private caches: a line that is rewritten has
    left them for the cache that the cores share. With more ranks, fewer places do.
    """
    used_nbytes = max(-(-used_nbytes // LINE), 1) * LINE
    places = 1
    while 2 * places * used_nbytes * max(size, 2) <= 2 * slot_nbytes:
        places *= 2
    return places, slot_nbytes // places // LINE * LINE


def flatten(steps):
    """The steps, with one `Await` per rank for an `Await` of several ranks, and rank -1 (EVERYONE) for all."""
    flat = []
    for step in steps:
        if not isinstance(step, Await):
            flat.append(step)
        elif step.ranks is ALL:
            flat.append(step._replace(ranks=-1))
        else:
            flat.extend([step._replace(ranks=rank) for rank in step.ranks])
    return flat


# ---- executing -------------------------------------------------------------------------------------------------------

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


cdef inline int stores(execution_t *x, operand_t *o) noexcept nogil:
    return x.outbox_stores if o.space == SLOT else x.out_stores


cdef void copy(engine_t *e, execution_t *x, step_t *s) noexcept nogil:
    cdef char *dst = address(e, x, &s.operands[0])
    cdef char *src = address(e, x, &s.operands[1])
    if dst != src:      # equal if an in-place operation copies a block to its own place
        copy_bytes(dst, src, s.nbytes, stores(x, &s.operands[0]))


cdef int read(engine_t *e, execution_t *x, step_t *s, patience_t *patience) noexcept nogil:
    """Copy from the array of another rank: of this process, or of another one, whose memory the kernel reads."""
    cdef int outcome, rank = s.operands[1].rank
    if x.readable[rank] == 0:
        copy(e, x, s)
        return READY
    if read_peer_memory(x.readable[rank], address(e, x, &s.operands[0]), address(e, x, &s.operands[1]), s.nbytes):
        return READY
    # A rank that dies loses its memory before it is seen to be dead. One that lives gets as far as its last round.
    outcome = await_round(e, rank, x.base + x.program.rounds - 1, x.base, x.signature, patience)
    if outcome == READY:
        report_trouble(&e.group, SHMRING_ABORTED, rank, x.base, x.signature, x.signature,
                       b"the kernel did not let this rank read a part of a peer's array, which it could read before")
        outcome = TROUBLE
    return outcome


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
    cdef int dst_stores = stores(x, &s.operands[0])
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
                        dst_stores, stores(x, also))
        else:
            reduce_into(&f, dst + done, NULL, e.sources, s.nsources, part // x.itemsize,
                        dst_stores if s.nalso == 0 else SHMRING_ORDINARY, SHMRING_ORDINARY)
            for i in range(s.nalso):
                copy_bytes(address(e, x, &also[i]) + done, dst + done, part, stores(x, &also[i]))
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
    elif s.code == AWAIT_RELEASE:
        return await_release(e, round, patience)
    else:
        fault_point("copy")
        return read(e, x, s, patience)
    return READY


cdef void open_execution(engine_t *e, execution_t *x) noexcept nogil:
    """Begin to execute the program of ``x``, from its first step on."""
    x.base = e.next_round
    x.places, x.place_nbytes = x.program.places, x.program.place_nbytes
    x.loop = x.step = 0
    x.iteration = 0
    x.outcome = UNREADY
    sign_plan(e, &x.program.note, x.signature)
    # SYNC current (meets: is_elsewhere in core/sync/wait.pyx)
    store_release_u64(&e.own.current, x.signature)


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
