"""The executor of a communicator over several nodes: hands each checked call to `shmring.nodes.collectives`, with its
memory as arrays of bytes, and makes the parts of it within the node.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

from shmring.core.arrays.array_view cimport array_t, is_copy, source_array, target_array
from shmring.core.c.atomics cimport load_acquire_u32, load_relaxed_u64
from shmring.core.base.hashing cimport mix
from shmring.core.base.heap cimport Heap
from shmring.collectives.calls.local cimport LocalExecutor, copy_counts
from shmring.collectives.engine.call cimport (
    Executor, Prepared, call_t, check_call, is_in_place, ncounts, open_call, refuse_call, sign_call,
    without_arrays,
)
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport KIND, KIND_BARRIER, has_root, is_receiver, is_sender
from shmring.collectives.engine.rounds cimport count_call, mix_history
from shmring.collectives.engine.signature cimport NO_ROOT
from shmring.communicator cimport Communicator
from shmring.core.kernel.reduce cimport find_kernel, reduce_kernel
from shmring.core.sync.backoff cimport deadline_of, left_until
from shmring.core.sync.turn cimport Turn

from shmring.dtypes import DTYPE_CODES, DTYPES, OP_CODES, OPS
from shmring.errors import CollectiveTimeoutError
from shmring.collectives.engine.kinds import explain
from shmring.collectives.plan.kinds import COLLECTIVES, KINDS

cnp.import_array()

cdef enum:
    MOST_SETTLED = 1000
    MOST_TESTS = 128    # of what the wire does, before the wait lets others run

cdef int UINT8 = DTYPE_CODES["uint8"]
cdef tuple KIND_NAMES = tuple([kind and kind.name for kind in KINDS])

ABANDONED = []          # what a wire that failed may still read or write, to the end of the process


cdef class Persistent:
    """A collective of the wire on memory of its own, to and from which the arrays of each call are copied.

    ``request`` has the methods `Start`, `Test` and `Free`; the others are its arrays of bytes, None where this rank has
    none.
    """
    cdef object request, start, test, memory
    cdef array_t sent, given
    cdef bint is_under_way
    cdef void *out              # of the call under way

    def __init__(self, request, sent, given):
        self.request, self.start, self.test, self.memory = request, request.Start, request.Test, (sent, given)
        describe(&self.sent, sent, UINT8, 1)
        describe(&self.given, given, UINT8, 1)

    cdef int begin(self, const void *x, void *out) except -1:
        if x != NULL:
            memcpy(self.sent.data, x, self.sent.nbytes)
        self.out, self.is_under_way = out, True
        self.start()
        return 0

    cpdef bint Test(self) except -1:
        """Whether it is over, and its result in the array of the call."""
        if not self.test():
            return False
        if self.out != NULL:
            memcpy(self.out, self.given.data, self.given.nbytes)
        self.is_under_way = False
        return True

    def free(self):
        """Give it back, unless a thread is in a call: what is freed would be over for that one."""
        if not self.is_under_way:
            self.request.Free()


cdef class NodesExecutor(Executor):
    """Executes calls among the ranks of a `NodesGroup`, whose ranks of this node have the communicator ``local``."""
    cdef readonly uint64_t ncalls
    cdef readonly Turn turn        # of the thread in a call
    cdef LocalExecutor local
    cdef uint64_t began            # the calls among the ranks of this node up to the latest call, which counts, too
    cdef int ntests                # fewer where they were in vain: others need the processor
    cdef dict settled              # the way of calls with equal blocks, or what is `Persistent`, by their signature

    def __cinit__(self, group, Communicator local not None):
        self.engine, self.local, self.turn, self.settled = group, local.executor, Turn(group.name), {}
        self.rank, self.size, self.ntests = group.rank, group.size, MOST_TESTS

    cdef int run(self, call_t *call) except -1:
        self.enter()
        try:
            self.of(call).run()
        finally:
            self.leave()
        return 0

    cdef Prepared prepare(self, call_t *call):
        cdef NodesCall made = self.of(call)
        if call.counts != NULL:
            made.memory = Heap()
            made.call.counts = copy_counts(call, self.size, made.memory)
        return made

    cdef NodesCall of(self, call_t *call):
        cdef NodesCall made = NodesCall.__new__(NodesCall, self)
        made.signature, made.call = call.signature, call[0]
        return made

    def gone_rank(self):
        """A rank of this node that has closed before the latest call, by its number there; or -1."""
        cdef Engine e = self.local.local
        cdef int j
        with cython.critical_section(e):      # another thread may close
            for j in range(0 if e.is_closed else e.c.group.size):
                # SYNC left (meets: mark_left in collectives/engine/engine.pyx)
                if (load_acquire_u32(&e.c.group.outbox[j].left)
                        and load_relaxed_u64(&e.c.group.outbox[j].calls) < self.began):
                    return j
        return -1

    cdef int enter(self) except -1:
        if self.engine.has_backlog:
            self.engine.progress.drain()
        self.turn.take()
        return 0

    cdef void leave(self) noexcept:
        self.turn.give()


@cython.freelist(4)
cdef class NodesCall(Prepared):
    """A call over several nodes, to be made any number of times."""
    cdef NodesExecutor executor
    cdef Heap memory                        # of the counts of `call`
    cdef call_t call
    cdef int64_t deadline_ns                # of the call that is made
    # Filled in unless it is `Persistent`.
    cdef readonly str kind, op, dtype       # names; what is only moved has no `op`, and is bytes
    cdef readonly int root, itemsize        # no root: -1
    cdef readonly size_t nbytes             # of the array with all blocks, or else of one: equal on all ranks
    cdef readonly object x, out             # arrays of bytes that this rank reads, and writes; or None
    cdef readonly bint in_place             # one is the other, or this rank's block of it
    cdef readonly tuple counts              # elements of each block; of an all_to_all from each rank to each; or None

    def __cinit__(self, NodesExecutor executor not None):
        self.executor = executor

    cdef int fill(self) except -1:
        cdef call_t *c = &self.call
        cdef int rank = self.executor.rank, size = self.executor.size
        cdef int64_t i
        cdef bint sends = is_sender(c.kind, rank, c.root), receives = is_receiver(c.kind, rank, c.root)
        self.kind, self.root, self.itemsize = KIND_NAMES[c.kind], c.root if has_root(c.kind) else -1, c.x.itemsize
        self.dtype, self.nbytes = "uint8", c.x.nbytes
        if KIND[c.kind].takes_op:
            self.op, self.dtype = OPS[c.op], DTYPES[c.x.dtype].name
        if c.counts != NULL:
            self.counts = tuple([c.counts[i] for i in range(ncounts(c, size))])
            self.nbytes = sum(self.counts) * c.x.itemsize
        self.x = bytes_at(&c.x) if sends else None
        self.out = bytes_at(&c.out) if receives else None
        self.in_place = sends and receives and is_in_place(c, rank)
        return 0

    cdef int run(self) except -1:
        cdef NodesExecutor e = self.executor
        cdef call_t *c = &self.call
        e.engine.check_usable()
        e.ncalls += 1
        self.deadline_ns = deadline_of(c.timeout_ns)
        mix_history(&e.local.local.c, mix(self.signature, e.ncalls))     # ranks of a node compare it in their next part
        count_call(&e.local.local.c, 0)
        e.began = e.local.local.c.own.calls
        way = None if c.counts != NULL else e.settled.get(sign_call(c))
        try:
            if type(way) is Persistent:
                (<Persistent> way).begin(c.x.data if is_sender(c.kind, e.rank, c.root) else NULL,
                                         c.out.data if is_receiver(c.kind, e.rank, c.root) else NULL)
                for _ in range(e.ntests):
                    if (<Persistent> way).Test():
                        return 0
                self.wait(way, way)
                return 0
            if self.kind is None:
                self.fill()
            if way is not None:
                way(self)
            elif self.nbytes or c.kind == KIND_BARRIER:
                e.engine.collectives.make(self)
        except BaseException as error:
            e.engine.give_up(error, explain(self.signature))
            raise
        return 0

    def settle(self, way):
        """Make all calls like this one in that way; its blocks are equal."""
        if len(self.executor.settled) == MOST_SETTLED:
            self.executor.settled.clear()
        self.executor.settled[sign_call(&self.call)] = way

    def wait(self, work, memory):
        """Wait for what the wire has begun of the call; what it reads and writes is kept if that fails."""
        cdef NodesExecutor e = self.executor
        test = getattr(work, "Test", None)      # gloo has none
        try:
            if test is not None:
                for _ in range(e.ntests):
                    if test():
                        e.ntests = min(2 * e.ntests, <int> MOST_TESTS)
                        return
                e.ntests = max(e.ntests // 2, 1)
            deadline = None if self.call.timeout_ns < 0 else self.deadline_ns * 1e-9
            if not e.engine.await_wire(test or work, deadline, "ranks of other nodes"):
                raise CollectiveTimeoutError("ranks of other nodes did not come in time")
        except BaseException:
            held = <object> self.call.held if self.call.held != NULL else None
            kept = <object> self.call.kept if self.call.kept != NULL else None
            ABANDONED.append((work, memory, held, kept))
            raise

    def local(self, str kind not None, x=None, out=None, int root=NO_ROOT, counts=None):
        """Make a part of the call: a collective of the node's ranks, with the operation of the call if it reduces.

        ``x`` and ``out`` are arrays of bytes, None where a rank has none; ``counts`` the bytes of blocks.
        """
        cdef LocalExecutor local = self.executor.local
        cdef Heap memory = Heap()
        cdef int64_t *own
        cdef call_t c
        cdef int code = COLLECTIVES[kind].code, dtype = UINT8, itemsize = 1, mistake
        open_call(&c, code, root, left_until(self.deadline_ns, self.call.timeout_ns))
        without_arrays(&c)
        if KIND[code].takes_op:
            c.op = OP_CODES["sum" if self.op == "avg" else self.op]
            dtype, itemsize = self.call.x.dtype, self.itemsize
        describe(&c.x, out if x is None else x, dtype, itemsize)
        describe(&c.out, x if out is None else out, dtype, itemsize)
        if counts is not None and len(set(counts)) > 1:
            c.counts = own = <int64_t *> memory.allocate(local.size, sizeof(int64_t))
            for i, nbytes in enumerate(counts):
                own[i] = nbytes // itemsize
        mistake = check_call(&c, local.rank, local.size)
        if mistake:
            refuse_call(mistake, &c, local.rank, local.size)
        local.run(&c)

    def fold(self, out not None, rows not None):
        """Reduce arrays of bytes in their order by the operation of the call. ``out`` may be one of them."""
        cdef Heap memory = Heap()
        cdef const void **sources = <const void **> memory.allocate(len(rows), sizeof(void *))
        cdef reduce_kernel kernel = find_kernel(self.call.op, self.call.x.dtype)
        cdef array_t a
        cdef int n = len(rows)
        for i, row in enumerate(rows):
            describe(&a, row, UINT8, 1)
            sources[i] = a.data
        describe(&a, out, self.call.x.dtype, self.itemsize)
        if a.count:
            with nogil:
                kernel(a.data, sources, n, a.count)

    def describe(self):
        """The call in words."""
        return f"{explain(self.signature)}: {self.outline()}"

    def outline(self):
        """Between what it is made."""
        return f"over {len(self.executor.engine.places.nodes)} nodes"


def memory_of(x, bint is_written):
    """The memory of an array as an array of bytes, which keeps it; a copy of one that is read and not contiguous."""
    cdef array_t a
    owner = target_array(x, &a, True) if is_written else source_array(x, &a, True)
    if is_written and is_copy(owner):
        raise ValueError("between machines an array that receives must be contiguous")
    found = bytes_at(&a)
    cnp.set_array_base(found, owner)
    return found


cdef cnp.ndarray bytes_at(const array_t *a):
    """An array of bytes over this memory, which it does not keep. An empty one is elsewhere: MPI compares addresses."""
    cdef cnp.npy_intp nbytes = a.nbytes
    return cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, a.data if nbytes else NULL)


cdef int describe(array_t *a, x, int dtype, int itemsize) except -1:
    """The memory of an array of bytes as one of this dtype; None: nothing."""
    if x is None:
        memset(a, 0, sizeof(array_t))
    else:
        source_array(x, a, False)
    a.dtype, a.itemsize, a.count = dtype, itemsize, a.nbytes // itemsize
    return 0
