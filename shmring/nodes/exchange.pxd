# The messages of one call (nodes/exchange.pyx).

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.nodes.transfers cimport Transfers, work_t

# One message of a plan. Before it is sent or received all but the works is set.
ctypedef struct message_t:
    int peer
    uint32_t stream
    bint is_first           # of the call, from or to this rank: it has a header
    char *room              # for the header, and content that is short
    const char *text        # of the header
    work_t header, content

cdef class Exchange:
    cdef readonly Transfers transfers
    cdef object wire
    cdef dict rooms
    cdef size_t short_nbytes

    cdef char *find_room(self, int peer, bint is_sent) except NULL
    # ``number`` is that of the call, ``tag`` a number made of it and its description.
    cdef int send(self, message_t *m, const char *data, size_t nbytes, object owner, uint64_t number,
                  uint32_t tag) except -1
    cdef int recv(self, message_t *m, char *data, size_t nbytes, object owner, uint32_t tag) except -1
    cdef int await_received(self, message_t *m, char *data, size_t nbytes, uint64_t number,
                            int64_t deadline_ns) except -1
    cdef object mismatch(self, message_t *m, uint64_t number)
