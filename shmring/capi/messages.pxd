# Messages without the GIL.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.capi cimport shmring_message
from shmring.capi.handles cimport comm_t

# What a `shmring_request *` points to.
ctypedef struct pending_t:
    comm_t *comm                   # holds the handle, if there is a request
    PyObject *request              # holds a reference; NULL: it is over, and `message` is what it has received
    shmring_message message


cdef int check_peers(comm_t *h, int dst, int tag, int src, int out_tag) noexcept nogil
cdef int send(comm_t *h, array_t *a, int dst, int tag, int64_t timeout_ns) noexcept nogil
cdef int recv(comm_t *h, array_t *a, int src, int tag, int64_t timeout_ns, shmring_message *m) noexcept nogil
cdef int sendrecv(comm_t *h, array_t *a, int dst, int tag, array_t *b, int src, int out_tag, int64_t timeout_ns,
                  shmring_message *m) noexcept nogil
cdef int isend(comm_t *h, array_t *a, int dst, int tag, pending_t **made) noexcept nogil
cdef int irecv(comm_t *h, array_t *a, int src, int tag, pending_t **made) noexcept nogil
cdef int test(pending_t **pending, int *is_over, shmring_message *m) noexcept nogil
cdef int wait(pending_t **pending, int64_t timeout_ns, shmring_message *m) noexcept nogil
