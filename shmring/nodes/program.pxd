# A plan, ready to be executed (nodes/program.pyx).

from libc.stdint cimport uint32_t, uint64_t

from shmring.nodes.exchange cimport Exchange, message_t
from shmring.nodes.flat cimport operation_t
from shmring.nodes.transfers cimport Collective
from shmring.nodes.trials cimport Trials

ctypedef struct place_t:
    int buffer              # 0: none, 1: X, 2: OUT, 3: the plan's own memory
    size_t start
    size_t nbytes

ctypedef struct step_t:
    int kind
    int index               # of a message, of a call within the node, or of the first source
    int n                   # of sources, or of messages
    int total
    place_t out             # what is written or read
    place_t source          # of a copy; of a fold the partial result before

cdef class Program:
    cdef readonly str what
    cdef readonly uint32_t digest
    cdef readonly size_t nbytes
    cdef readonly bint is_retired
    cdef Exchange exchange
    cdef Collective collective  # the wire's own for this call; None: it has none, or its bits would differ
    cdef Trials trials
    cdef object memory
    cdef list texts, locals
    cdef operation_t operation
    cdef bint is_passive
    cdef int nsteps, nsends, nrecvs, nsent, nsettled
    cdef step_t *steps
    cdef message_t *sends
    cdef message_t *recvs
    cdef place_t *sources
    cdef const void **pointers

    cdef int choose(self, uint64_t number, list owners, char **buffers, object deadline) except -1
    cdef int perform(self, uint64_t number, list owners, char **buffers, object deadline) except -1
    cdef int settle(self, int n, object deadline) except -1
    cdef int finish(self, object deadline) except -1
    cdef int call_local(self, step_t *step, list owners, char **buffers, object deadline) except -1
    cdef int add_up(self, step_t *step, char **buffers) except -1
