# Messages between nodes, for compiled code (nodes/transfers.pyx).

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.nodes.history cimport History
from shmring.sync.backoff cimport now_ns

ctypedef struct work_t:
    uint64_t handle     # of MPI: room for its request
    bint is_pending
    bint is_python      # the wire's own object, kept by `Transfers`

# What the ranks of a call with equal blocks agree on.
ctypedef struct form_t:
    int kind            # engine/kinds.h
    int root            # NO_ROOT: none
    int op              # NO_OP: it moves data
    int dtype           # position in dtypes.DTYPES; -1: opaque bytes
    size_t itemsize
    size_t count        # elements of a block

cdef class Transfers:
    cdef readonly object wire
    cdef readonly History history
    cdef public bint is_cut        # nothing more can be sent or received
    cdef public bint is_disturbed  # a collective of the wire would not end: a rank has failed, left, or disagrees
    cdef dict works

    cdef int _keep(self, object made, work_t *work) except -1

    # Begin; ``owner`` keeps the memory.
    cdef int send(self, const void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1
    cdef int recv(self, void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1
    # Wait for what is pending; the call times out at ``deadline_ns``, < 0: never.
    cdef int wait(self, work_t *work, int peer, int64_t deadline_ns) except -1

    # The wire's own collective for calls of that form; None if it has none.
    cdef Collective collective(self, const form_t *form)
    # The largest number of all ranks, of each of two.
    cdef list find_most(self, list numbers, int64_t deadline_ns)


cdef class Collective:
    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1


cdef object bytes_at(const void *data, size_t nbytes, object owner)


cdef inline object left_s(int64_t deadline_ns, double grace_s):
    """Seconds until a call times out, and these; None: no limit."""
    return None if deadline_ns < 0 else max(0.0, 1e-9 * <double> (deadline_ns - now_ns()) + grace_s)
