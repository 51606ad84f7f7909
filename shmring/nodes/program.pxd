# A plan, ready to be executed (nodes/program.pyx).

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.base.heap cimport Heap
from shmring.engine.call cimport Executor, call_t
from shmring.engine.kinds cimport KIND, KIND_ALL_TO_ALL
from shmring.kernel.reduce cimport carrier_t, reduce_kernel
from shmring.nodes.transfers cimport Collective, Transfers, Trials, form_t, work_t

ctypedef struct place_t:
    int buffer              # 0: none, 1: X, 2: OUT, 3: the plan's own memory
    size_t start
    size_t nbytes

ctypedef struct step_t:
    int kind
    int index               # of a message, of a call within the node, or of the first source
    int n                   # of sources, or of messages
    int total
    bint is_after           # of a call within the node: see `shmring.nodes.plan.steps.Local`
    place_t out             # what is written or read
    place_t source          # of a copy or call; of a fold the partial result before

# One message of a plan. Before it is sent or received all but the works is set.
ctypedef struct message_t:
    int peer
    uint32_t stream
    bint is_first           # of the call, from or to this rank: it has a header
    char *room              # for the header, and content that is short
    const char *text        # of the header
    work_t header, content

ctypedef struct operation_t:
    reduce_kernel kernel
    const carrier_t *carrier
    size_t itemsize
    size_t wide             # bytes of an element of a partial result

cdef class Program:
    cdef form_t form
    cdef bint in_place          # the plan is for an output that is the input
    cdef uint64_t signature     # of the call
    cdef readonly str what      # the call in words, as far as all ranks must agree
    cdef readonly str algorithm
    cdef readonly uint32_t digest
    cdef readonly size_t nbytes
    cdef readonly bint is_retired
    cdef Transfers transfers
    cdef Executor local
    cdef Collective collective  # the wire's own for this call; None: it has none, or its bits would differ
    cdef Trials trials
    cdef object memory
    cdef Heap heap              # of what the pointers below point to
    cdef list texts
    cdef operation_t operation
    cdef bint is_passive
    cdef int rank
    cdef int nsteps, nsent, nsettled
    cdef step_t *steps
    cdef message_t *sends
    cdef message_t *recvs
    cdef call_t *locals         # the calls within the node
    cdef place_t *sources
    cdef const void **pointers

    cdef int run(self, uint64_t number, call_t *c, int64_t deadline_ns) except -1
    cdef int choose(self, uint64_t number, tuple arrays, char **buffers, int64_t deadline_ns) except -1
    cdef int perform(self, uint64_t number, tuple arrays, char **buffers, int64_t deadline_ns) except -1
    cdef int settle(self, int n, int64_t deadline_ns) except -1
    cdef int finish(self, int64_t deadline_ns) except -1
    # ``number`` is that of the call, ``tag`` a number made of it and its description.
    cdef int send(self, message_t *m, const char *data, size_t nbytes, object owner, uint64_t number,
                  uint32_t tag) except -1
    cdef int recv(self, message_t *m, char *data, size_t nbytes, object owner, uint32_t tag) except -1
    cdef int await_received(self, message_t *m, char *data, size_t nbytes, uint64_t number,
                            int64_t deadline_ns) except -1
    cdef object mismatch(self, message_t *m, uint64_t number)
    cdef int call_local(self, step_t *step, char **buffers, int64_t deadline_ns) except -1
    cdef int add_up(self, step_t *step, char **buffers) except -1

# ``what`` has at most 140 ASCII characters, ``local`` executes the calls of the node's ranks.
cdef Program make_program(plan, call_t *c, str what, Transfers transfers, Executor local)


cdef inline form_t form_of(call_t *c, size_t size) noexcept nogil:
    cdef form_t form
    form.kind, form.root, form.op, form.dtype, form.itemsize = c.kind, c.root, c.op, c.x.dtype, c.x.itemsize
    form.count = c.x.count // size if KIND[c.kind].blocks_in else c.x.count
    return form


cdef inline bint is_in_place(call_t *c) noexcept nogil:
    """Whether the plan must be made for it: blocks that arrive would overwrite those that are still to be sent."""
    return c.kind == KIND_ALL_TO_ALL and c.x.data == c.out.data
