"""The executor of a communicator over several nodes: each call is a program, made once for all calls that agree."""

from collections import OrderedDict

from libc.stdint cimport int64_t, uint64_t

from shmring.base.heap cimport Heap
from shmring.collective.local cimport LocalExecutor, copy_counts
from shmring.engine.call cimport Executor, Prepared, call_t, ncounts
from shmring.engine.kinds cimport KIND, KIND_BARRIER, KIND_EXSCAN, KIND_SCAN
from shmring.nodes.program cimport Program, form_of, form_t, is_in_place, make_program
from shmring.nodes.transfers cimport Transfers, Trials
from shmring.sync.backoff cimport deadline_of
from shmring.sync.turn cimport Turn

from shmring.dtypes import OPS
from shmring.engine.kinds import KINDS, explain
from shmring.errors import AbortedError, ShmringError
from shmring.nodes.plan.call import is_merged, keeps_bits, plan_of
from shmring.nodes.transfers import NAMES
from shmring.nodes.wire import WireError

cdef enum:
    NRECENT_BITS = 6
    MOST_PROGRAMS = 64
    MOST_TRIALS = 4096
    MOST_KEPT_NBYTES = 64 << 20     # of the memory of programs: the next call uses it again, without page faults


cdef class NodesExecutor(Executor):
    """Executes calls among the ranks of several nodes.

    Parameters
    ----------
    group : NodesGroup
    local : LocalExecutor
        The executor of this node's ranks.
    reproducible : bool
        Whether reductions have the bits of one machine.
    """
    cdef readonly uint64_t ncalls
    cdef public bint is_stopped    # the group is closed, inherited or broken
    cdef readonly Turn turn        # of the thread in a call
    cdef object layout
    cdef LocalExecutor local
    cdef Transfers transfers
    cdef bint reproducible
    cdef list recent               # programs of calls without counts, by their signatures
    cdef object programs           # all, by what their plans depend on; the latest used last
    cdef size_t nbytes             # of their memory
    cdef readonly dict trials      # by the call in words; apart, as all ranks must keep those of the same calls

    def __cinit__(self, group, LocalExecutor local not None, bint reproducible):
        self.engine, self.local, self.reproducible = group, local, reproducible
        self.rank, self.size, self.layout = group.rank, group.size, group.layout
        self.transfers, self.turn = group.wire.transfers, Turn(group.name)
        self.recent, self.programs, self.trials = [None] * (1 << NRECENT_BITS), OrderedDict(), {}

    cdef int run(self, call_t *call) except -1:
        self.enter()
        try:
            self.execute(call)
        finally:
            self.leave()
        return 0

    cdef Prepared prepare(self, call_t *call):
        cdef NodesCall made = NodesCall(self)
        made.signature, made.call = call.signature, call[0]
        if call.counts != NULL:
            made.memory = Heap()
            made.call.counts = copy_counts(call, self.size, made.memory)
        return made

    cdef int enter(self) except -1:
        if self.engine.has_backlog:
            self.engine.progress.drain()
        self.turn.take()
        return 0

    cdef void leave(self) noexcept:
        self.turn.give()

    cdef int execute(self, call_t *call) except -1:
        """Make a call, in the turn. Any failure breaks the group."""
        cdef Program program
        cdef int64_t deadline_ns
        if self.is_stopped:
            self.engine.check_usable()
        program = self.find(call)
        self.ncalls += 1
        deadline_ns = call.timeout_ns if call.timeout_ns < 0 else deadline_of(call.timeout_ns)
        try:
            if self.local.size > 1:     # so that the node's ranks compare the whole call
                self.local.local.remember(program.digest ^ self.ncalls << 32)
            program.run(self.ncalls, call, deadline_ns)
        except (ShmringError, WireError) as error:
            raise self.engine.fail(error, f"call {self.ncalls}: {program.what}") from error
        except BaseException as error:
            what = f"{type(error).__name__} in call {self.ncalls}: {program.what}"
            self.engine.fail(AbortedError(what, self.local.rank))
            raise
        return 0

    # ---- programs ----

    cdef Program find(self, call_t *call):
        """The program of a call."""
        cdef Program program
        cdef form_t form
        cdef size_t slot
        if call.counts != NULL:     # of which the signature has a digest only
            return self.find_by_key(call)
        slot = call.signature * <uint64_t> 0x9E3779B97F4A7C15 >> (64 - NRECENT_BITS)
        program = self.recent[slot]
        if program is not None and not program.is_retired and program.signature == call.signature:
            form = form_of(call, self.size)
            if are_alike(&program.form, &form) and program.in_place == is_in_place(call):
                return program
        program = self.recent[slot] = self.find_by_key(call)
        return program

    cdef Program find_by_key(self, call_t *call):
        cdef Program program, oldest
        cdef int64_t i
        counts = None
        if call.counts != NULL:
            counts = tuple([call.counts[i] for i in range(ncounts(call, self.size))])
        key = (call.signature, call.kind, call.root, call.op, call.x.dtype, call.x.itemsize, call.x.count,
               is_in_place(call), counts)
        program = self.programs.get(key)
        if program is not None:
            self.programs.move_to_end(key)
            return program
        program = self.programs[key] = self.make(call, counts)
        self.nbytes += program.nbytes
        while len(self.programs) > MOST_PROGRAMS or (self.nbytes > MOST_KEPT_NBYTES and len(self.programs) > 1):
            oldest = self.programs.popitem(last=False)[1]
            oldest.retire()             # `recent` may refer to it
            self.nbytes -= oldest.nbytes
        return program

    cdef Program make(self, call_t *call, counts):
        cdef Program program
        cdef int kind = call.kind
        cdef bint merged = False, has_wire = counts is None and kind not in (KIND_BARRIER, KIND_SCAN, KIND_EXSCAN)
        if KIND[kind].takes_op:
            merged = is_merged(OPS[call.op], call.x.dtype, self.reproducible)
            has_wire = has_wire and keeps_bits(OPS[call.op], call.x.dtype, merged)
        plan = plan_of(self.layout, self.rank, KINDS[kind].name, call.root, merged, call.x.count,
                       max(1, call.x.itemsize), counts, is_in_place(call))
        program = make_program(plan, call, explain(call.signature), self.transfers, self.local)
        if has_wire:
            program.collective = self.transfers.collective(&program.form)
        if program.collective is not None:
            program.trials = self.trials_of(program.what)
        return program

    cdef Trials trials_of(self, str what):
        if what not in self.trials and len(self.trials) >= MOST_TRIALS:
            del self.trials[next(iter(self.trials))]
        return self.trials.setdefault(what, Trials())

    def stats(self):
        """For each call that can be made by the wire's own collective: its way, and the time of each."""
        return [{"call": what, "way": NAMES[trials.best], "us": dict(zip(NAMES, trials.us, strict=True))}
                for what, trials in self.trials.items()]


cdef class NodesCall(Prepared):
    """A call over several nodes that can be made any number of times."""
    cdef NodesExecutor executor
    cdef Heap memory             # of the counts; None: it has none
    cdef call_t call

    def __cinit__(self, NodesExecutor executor not None):
        self.executor = executor

    cdef int run(self) except -1:
        return self.executor.execute(&self.call)

    def describe(self):
        """The steps of this rank, in readable lines."""
        cdef Program program = self.executor.find(&self.call)
        return f"{program.what}: {self.outline()}, algorithm {program.algorithm}"

    def outline(self):
        """The steps of this rank, in a few words."""
        return f"over {len(self.executor.layout)} nodes"


cdef inline bint are_alike(const form_t *a, const form_t *b) noexcept:
    return (a.kind == b.kind and a.root == b.root and a.op == b.op and a.dtype == b.dtype
            and a.itemsize == b.itemsize and a.count == b.count)
