"""The executor of one machine: an eager exchange for a small payload, a compiled plan for a large one.

A request is an eager one-round exchange if the payload of a rank fits in one eager message, otherwise the execution of
a compiled plan. Both give the same bits, because both reduce in rank order. All ranks must choose alike, so the choice
depends on the size of the message alone. Nothing is sent yet, and a request can be run repeatedly. Only making a plan
needs the interpreter.

The caller has checked the arguments.
"""

from dataclasses import replace
from functools import partial

from libc.string cimport memcpy

from shmring.collectives.shared.registry cimport ANYWHERE, NOWHERE, place_t
from shmring.collectives.shared.zero_copy cimport Sharing, execute_shared
from shmring.core.c.layout cimport SHMRING_ORDINARY, SHMRING_STREAMING, SHMRING_STRING
from shmring.core.kernel.reduce cimport by_strings, find_carrier
from shmring.collectives.engine.call cimport block_place, message_nbytes, ncounts
from shmring.collectives.engine.eager cimport open_eager
from shmring.collectives.engine.kinds cimport (
    KIND, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST, KIND_NONE, OF_ROOT, nblocks_in, ranks_read,
    shmring_kind,
)
from shmring.dtypes import widening
from shmring.collectives.plan.choose import build_plan, ways
from shmring.collectives.plan.thread_shares import cut, spaced
from shmring.collectives.engine.kinds import explain
from shmring.collectives.plan.kinds import KINDS

cdef tuple KIND_NAMES = tuple([kind and kind.name for kind in KINDS])


# ---- eager exchanges -------------------------------------------------------------------------------------------------

cdef bint fill_eager(Engine e, call_t *c, eager_t *t) noexcept nogil:
    """Fill in the eager exchange of a call; False: its payload is too large, or it reads ranks apart: it needs a
    plan."""
    cdef const shmring_kind *kind = &KIND[c.kind]
    cdef int rank = e.c.group.rank, size = e.c.group.size
    cdef int first, last
    cdef bint is_root = rank == c.root
    if message_nbytes(c, size) > e.eager_limit or not ranks_read(c.kind, rank, c.root, size, &first, &last):
        return False
    open_eager(t, c.signature, payload_of(&c.x) if is_root or kind.inputs != OF_ROOT else NULL, c.x.nbytes)
    if (kind.outputs == OF_ROOT and not is_root) or (c.kind == KIND_BROADCAST and is_root):
        return True      # receives nothing
    t.first, t.last = first, last
    t.out, t.part_nbytes = <char *> c.out.data, c.x.nbytes
    if kind.blocks_in:
        t.part_nbytes = c.x.nbytes // nblocks_in(c.kind, size) if kind.blocks_out else c.out.nbytes
        t.offset = block_place(c, rank, t.part_nbytes)
    if kind.takes_op:
        t.kernel, t.count = c.kernel, c.out.count
    elif c.counts != NULL and kind.blocks_out:      # the parts of all messages differ in size
        t.counts, t.itemsize = c.counts, c.x.itemsize
        t.has_matrix = c.kind == KIND_ALL_TO_ALL
    return True


# ---- plans -----------------------------------------------------------------------------------------------------------

cdef size_t plan_nbytes(Engine e, call_t *c) noexcept nogil:
    """The bytes that a plan is made for: those of the vector, or of one block where there is one per rank."""
    return c.x.nbytes // nblocks_in(c.kind, e.c.group.size)


cdef object plan_sizes(Engine e, call_t *c):
    """`plan_nbytes`, or the bytes of each block where they differ: a tuple by rank, of an all-to-all by sender."""
    cdef int size = e.c.group.size, j, k
    if c.counts == NULL:
        return plan_nbytes(e, c)
    if c.kind != KIND_ALL_TO_ALL:
        return tuple([c.counts[j] * c.x.itemsize for j in range(size)])
    return tuple([tuple([c.counts[j * <int64_t> size + k] * c.x.itemsize for k in range(size)]) for j in range(size)])


cdef Program compiled(Engine e, str name, nbytes, object way, build):
    """The compiled plan that ``build`` gives for a number of bytes and limits; if the work of a rank is split, those of
    its threads, of which the first is returned."""
    cdef Program first
    limits = replace(e.limits if way.threads == 1 else e.team.limits, **way.limits)
    if way.threads == 1:
        return Program(build(nbytes, limits), limits, hierarchy=e.hierarchy)
    shares = cut(name, e.c.group.size, nbytes, way.threads, 0)
    first, last = [Program(spaced(build(n, limits), n, nbytes), limits, shares, way.threads, e.hierarchy)
                   for n in shares]
    first.add_share(last, shares.nbytes)
    return first


cdef Program program_for(Engine e, str name, nbytes, int itemsize, int root, int wide):
    """The compiled plans of a call for this rank, of which the first is returned."""
    cdef dict domains = {}
    cdef tuple threads = (1,)
    cdef int rank = e.c.group.rank, size = e.c.group.size
    if e.hierarchy is not None:
        domains = {"hierarchy": e.hierarchy, "wide": wide}
    if e.team is not None and isinstance(nbytes, int):
        is_split, is_split_later = [cut(name, size, nbytes, e.team.nthreads(), limit) is not None
                                    for limit in (e.team.split_nbytes, e.team.split_nbytes / e.limits.slack)]
        if is_split_later:
            threads = (1, e.team.nthreads())[::-1 if is_split else 1]
    limits = e.limits if len(threads) == 1 else e.team.limits
    names, rows = ways(name, size, nbytes, limits, **domains, threads=threads)
    plans = [compiled(e, name, nbytes, way, partial(built, name, way.schedule, rank, size, itemsize, root, domains))
             for way in rows]
    (<Program> plans[0]).set_plans(plans, names)
    return plans[0]


def built(name, schedule, rank, size, itemsize, root, domains, nbytes, limits):
    """The plan of one schedule for a number of bytes."""
    return build_plan(name, schedule, rank, size, nbytes, itemsize, root, limits, **domains)


cdef Program find_program(Engine e, call_t *c):
    """The compiled plan of a call, which is made once."""
    cdef str name = KIND_NAMES[c.kind]
    cdef int wide = 1, itemsize = c.x.itemsize if c.x.dtype >= 0 else 1
    nbytes = plan_sizes(e, c)
    key = (name, nbytes, itemsize, c.root)
    if e.hierarchy is not None:
        wide = widening(c.op, c.x.dtype)
        key = (name, nbytes, itemsize, c.root, wide)
    found = e.programs.get(key)
    if found is None:
        found = e.keep_program(key, program_for(e, name, nbytes, itemsize, max(c.root, 0), wide))
    return found


cdef void fill_execution(Engine e, call_t *c, execution_t *j) noexcept nogil:
    """Fill in the execution of the plan of a call."""
    cdef array_t *x = &c.x
    cdef array_t *out = &c.out
    cdef bint is_in_place = x.data <= out.data < <void *> (<char *> x.data + x.nbytes)
    cdef bint is_read = is_in_place and c.kind != KIND_BROADCAST      # a broadcast stores into lines it has not read
    # A barrier has no arrays that may be shared; blocks of different sizes are always staged.
    j.kind = KIND_NONE if c.kind == KIND_BARRIER or c.counts != NULL else c.kind
    j.root = c.root
    j.nbytes = plan_nbytes(e, c)
    j.signature = c.signature
    j.direct = NULL
    j.reads_private = False
    j.is_odd = False
    j.carrier = find_carrier(c.op, x.dtype) if e.hierarchy is not None else NULL
    j.passed_nbytes = x.nbytes
    j.in_base = <char *> x.data
    j.out_base = <char *> out.data
    j.kernel = c.kernel
    j.itemsize = x.itemsize
    if outgrows_cache(e, x.nbytes if is_in_place else x.nbytes + out.nbytes, out.nbytes, is_read):
        j.usual_stores = SHMRING_STREAMING
    else:
        # No lines that have just been read: ordinary stores to these are quick.
        j.usual_stores = SHMRING_ORDINARY if is_read else SHMRING_STRING


cdef bint outgrows_cache(Engine e, size_t arrays, size_t out_nbytes, bint is_read) noexcept nogil:
    """Whether the output is better stored past the cache; the ``arrays`` of this rank have so many bytes together.

    Lines that have just been read (``is_read``) are in the cache, unless the array is larger than it. Otherwise the
    arrays and outboxes of all ranks must fit. An ordinary store to a line that is not in the cache fetches it from
    memory first, so with such stores they count twice: eviction depends on addresses, and other processes use the
    cache, too.
    """
    if is_read:
        return out_nbytes >= e.c.output_streaming_nbytes
    return ((1 if by_strings else 2) * (e.c.group.size * arrays + 2 * e.c.nslots * e.c.slot_nbytes)
            >= e.c.output_streaming_nbytes)


cdef int refuse_result(Sharing s, array_t *x) except -1:
    """Raise if ``x``, reduced in place, is a shared result: one rank would read what another has written."""
    cdef place_t place = s.registry.place_of(x.data, x.nbytes)
    if place.allocation not in (NOWHERE, ANYWHERE) and s.registry.allocation_of(place.allocation).is_result:
        raise ValueError("x lies in a shared result, which all ranks write: pass it as out, and another array as x")
    return 0


cdef const int64_t *copy_counts(call_t *c, int size, Heap memory) except NULL:
    cdef int64_t *own = <int64_t *> memory.allocate(ncounts(c, size), sizeof(int64_t))
    memcpy(own, c.counts, ncounts(c, size) * sizeof(int64_t))
    return own


# ---- any collective --------------------------------------------------------------------------------------------------

cdef inline int check_result(Engine e, call_t *c) except -1:
    if (c.kind == KIND_ALL_REDUCE and c.x.data == c.out.data and e.sharing is not None
            and (<Sharing> e.sharing).nresults):
        refuse_result(e.sharing, &c.x)
    return 0


cdef inline int run_program(Engine e, Program program, execution_t *x, int64_t timeout_ns) except -1:
    if e.sharing is not None and x.kind != KIND_NONE:
        return execute_shared(e, program, x, timeout_ns)
    return e.run(NULL, &program.code, x, timeout_ns)


cdef Program prepare_request(Engine e, call_t *c, request_t *request):
    """The request of a checked call: the program to execute, or None."""
    check_result(e, c)
    if fill_eager(e, c, &request.eager):
        return None
    fill_execution(e, c, &request.execution)
    return find_program(e, c)


cdef int run_request(Engine e, Program program, request_t *request, int64_t timeout_ns) except -1:
    """Run a request. The caller has entered the engine."""
    if program is None:
        return e.run(&request.eager, NULL, NULL, timeout_ns)
    return run_program(e, program, &request.execution, timeout_ns)


# ---- the executor ----------------------------------------------------------------------------------------------------

cdef class LocalExecutor(Executor):
    """Executes calls among ranks that map each other's memory.

    Parameters
    ----------
    engine : Engine
    """

    def __cinit__(self, Engine engine not None):
        self.engine = self.local = engine
        self.rank = engine.c.group.rank
        self.size = engine.c.group.size

    cdef int run(self, call_t *call) except -1:
        cdef request_t request
        cdef Engine e = self.local
        e.enter()
        e.under_way = call
        try:
            check_result(e, call)
            if fill_eager(e, call, &request.eager):
                e.run(&request.eager, NULL, NULL, call.timeout_ns)
            else:
                fill_execution(e, call, &request.execution)
                run_program(e, find_program(e, call), &request.execution, call.timeout_ns)
        finally:
            e.under_way = NULL
            e.leave()
        return 0

    cdef Prepared prepare(self, call_t *call):
        cdef LocalCall made = LocalCall.__new__(LocalCall)
        cdef call_t own = call[0]
        made.engine = self.local
        made.signature = call.signature
        if call.counts != NULL:
            made.memory = Heap()
            own.counts = copy_counts(call, self.size, made.memory)
        made.call = own
        made.program = prepare_request(self.local, &own, &made.request)
        return made

    cdef int enter(self) except -1:
        return self.local.enter()

    cdef void leave(self) noexcept:
        self.local.leave()


cdef class LocalCall(Prepared):
    """A call whose request is filled in."""

    cdef int run(self) except -1:
        self.engine.under_way = &self.call
        try:
            return run_request(self.engine, self.program, &self.request, self.call.timeout_ns)
        finally:
            self.engine.under_way = NULL

    def describe(self):
        """The schedule of this rank, in readable lines."""
        t = &self.request.eager
        if self.program is not None:
            if self.program.code.last == NULL:
                return str(self.program.plan)
            return f"{self.engine.team.nthreads()} threads, each with its share; the first:\n{self.program.plan}"
        group = &self.engine.c.group
        lines = [f"{explain(self.signature)}, one round of eager messages: rank {group.rank} of {group.size}"]
        if t.payload != NULL:
            lines.append(f"  send  {t.nbytes} bytes")
        if t.last > t.first:
            verb = "reduce" if t.kernel != NULL else "copy"
            part = f"{t.part_nbytes} bytes of each, from byte {t.offset}" if t.counts == NULL else "the block of each"
            lines.append(f"  receive  from ranks {t.first}..{t.last - 1}, {verb} {part}")
        return "\n".join(lines)

    def outline(self):
        """The algorithm, in a few words."""
        if self.program is None:
            return "eager"
        return f"{self.program.plan.algorithm}, {self.program.code.rounds} rounds"
