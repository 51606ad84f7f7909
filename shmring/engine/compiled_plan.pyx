"""Compiled plans: plans as C structs.

A plan is a few loops of steps with affine offsets, so a program is some hundred bytes a step, whatever the size of the
message. Compiled once for each (collective, size), kept by the engine.
"""

from shmring._c.layout cimport SHMRING_EXCHANGE, SHMRING_ORDINARY
from shmring.arrays.store_tuning cimport trials_us

from shmring.kernel.reduce import WAYS
from shmring.plan.limits import LINE
from shmring.plan.steps import ALL, Await, AwaitRelease, Claim, Copy, Publish, Reduce, Release, Space


CODES = {Claim: CLAIM, Publish: PUBLISH, Await: AWAIT, Release: RELEASE, AwaitRelease: AWAIT_RELEASE}


cdef class Program:
    """A plan (`shmring.plan.steps.Plan`) in the form that `engine/executor.pyx` executes."""

    def __cinit__(self, plan, limits, bint is_exchange=False):
        cdef Py_ssize_t i, k
        self.plan = plan
        self.algorithm_name = plan.algorithm.encode()
        self.algorithm = self.algorithm_name
        self.heap = Heap()
        self.code.rounds = plan.rounds
        self.code.places, self.code.place_nbytes = places_in_slot(plan.used_nbytes, limits.slot_nbytes, plan.size)
        self.gathers_all = plan.kind == "barrier"
        self.learns = plan.size > 1 and not plan.zero_copy and plan.used_nbytes > 0
        loops = [(loop.times, flatten(loop.steps)) for loop in plan.loops]
        if plan.exchange is not None:
            self.exchange = Program(plan.exchange, limits, True)
            self.code.exchange = &self.exchange.code
        if is_exchange or plan.exchange is not None:
            first = loops[0][1]
            first.insert([isinstance(step, Await) for step in first].index(True) + 1, None)
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
        elif step is None:
            s.code = FOLLOW
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

    def stats(self, nbytes, nthreads, learns_stores, outbox_stores):
        """What was chosen for the calls of ``nbytes`` bytes that execute it; see `Communicator.stats`."""
        cdef int way = self.stores.way if self.learns and learns_stores else outbox_stores
        cdef Program made = self
        if way == SHMRING_EXCHANGE:
            if self.exchange is None:
                way = SHMRING_ORDINARY
            else:
                made = self.exchange
        return {
            "kind": self.plan.kind,
            "algorithm": self.plan.algorithm,
            "nbytes": nbytes,
            "rounds": made.code.rounds,
            "threads": 1 if self.last is None else nthreads,
            "calls": self.stores.calls if self.learns else None,
            "stores": WAYS[way],
            "trial_us": trials_us(&self.stores) if self.learns else None,
        }


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
