# Messages between nodes, for compiled code (nodes/transfers.pyx).

from libc.stdint cimport uint32_t, uint64_t

from shmring.nodes.history cimport History

ctypedef struct work_t:
    uint64_t handle     # of MPI: room for its request
    bint is_pending
    bint is_python      # the wire's own object, kept by `Transfers`

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
    # Wait for what is pending; ``deadline`` is that of the call.
    cdef int wait(self, work_t *work, int peer, object deadline) except -1

    # The wire's own collective for a call of that form; None if it has none.
    cdef Collective collective(self, object form)
    # The largest number of all ranks, of each of two.
    cdef list find_most(self, list numbers, object deadline)


cdef class Collective:
    cdef int run(self, const void *x, void *out, object deadline) except -1


cdef object bytes_at(const void *data, size_t nbytes, object owner)
