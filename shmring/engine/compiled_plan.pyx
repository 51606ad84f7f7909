"""Compiled plans: plans as C structs.

A plan is a few loops of steps with affine offsets, so a program is a few hundred bytes a step, whatever the size of the
message. Compiled once for each (collective, size), kept by the engine.
"""

from shmring.base.learner cimport LEAST_TIMED
from shmring.engine.kinds cimport OF_ALL, KIND, KIND_EXSCAN, KIND_SCAN

from shmring.engine.kinds import COLLECTIVES
from shmring.plan.limits import LINE
from shmring.plan.steps import ALL, Await, AwaitRelease, Claim, Copy, Publish, Reduce, Release, Space


CODES = {Claim: CLAIM, Publish: PUBLISH, Await: AWAIT, Release: RELEASE, AwaitRelease: AWAIT_RELEASE}


cdef class Program:
    """A plan (`shmring.plan.steps.Plan`) in the form that `engine/executor.pyx` executes."""

    def __cinit__(self, plan, limits):
        cdef Py_ssize_t i, k
        self.plan = plan
        self.algorithm_name = plan.algorithm.encode()
        self.code.algorithm = self.algorithm_name
        self.variants = {0: self}
        self.heap = Heap()
        self.code.rounds = plan.rounds
        self.code.places, self.code.place_nbytes = places_in_slot(plan.used_nbytes, limits.slot_nbytes, plan.size)
        self.code.gathers_all = plan.kind == "barrier"
        self.code.schedules[0] = &self.code
        loops = [(loop.times, flatten(loop.steps)) for loop in plan.loops]
        self.code.nloops = len(loops)
        self.code.loops = <loop_t *> self.heap.allocate(len(loops), sizeof(loop_t))
        for i, (times, steps) in enumerate(loops):
            self.code.loops[i].times = times
            self.code.loops[i].nsteps = len(steps)
            self.code.loops[i].steps = <step_t *> self.heap.allocate(len(steps), sizeof(step_t))
            for k, step in enumerate(steps):
                self.compile_step(&self.code.loops[i].steps[k], step)

    cdef int compile_step(self, step_t *s, object step) except -1:
        operands = []
        if isinstance(step, Copy):
            s.code, s.nbytes, operands = COPY, step.nbytes, [step.dst, step.src]
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

    cdef int add_schedule(self, Program other, int number) except -1:
        """Add another way to make the same call."""
        self.variants[number] = other
        self.code.schedules[number] = &other.code
        if number < MOST_SCHEDULES and (self.plan.algorithm, other.plan.algorithm) == ("two_shot", "exchange"):
            self.code.exchange = number
        return 0

    cdef int plan_trials(self, int nslots) except -1:
        """Set how long trials are, and in how many calls of it the choice of one rank reaches all ranks."""
        cdef int kind = COLLECTIVES[self.plan.kind].code
        cdef uint64_t rounds = max(self.code.rounds, <uint64_t> 1)
        for other in self.variants.values():
            rounds = min(rounds, max((<Program> other).code.rounds, <uint64_t> 1))
        # Until all places have been written in one way, their lines are where the way before left them.
        self.code.window = LEAST_TIMED + (nslots * self.code.places + rounds - 1) // rounds
        # Where every rank loads from every other one, no rank is a whole call ahead; else by as many rounds as slots.
        self.code.lead = nslots + 2
        if KIND[kind].inputs == KIND[kind].outputs == OF_ALL and kind not in (KIND_SCAN, KIND_EXSCAN):
            self.code.lead = 2
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
