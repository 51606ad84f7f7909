# Messages without the GIL: functions of the table.
from libc.stdint cimport int64_t

from shmring.capi cimport shmring_comm, shmring_message, shmring_request


cdef int send(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
              int64_t timeout_ns) noexcept nogil
cdef int recv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, int64_t timeout_ns,
              shmring_message *m) noexcept nogil
cdef int sendrecv(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, void *out,
                  int64_t out_count, int out_dtype, int src, int out_tag, int64_t timeout_ns,
                  shmring_message *m) noexcept nogil
cdef int isend(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
               shmring_request **made) noexcept nogil
cdef int irecv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag,
               shmring_request **made) noexcept nogil
cdef int test(shmring_request **request, int *is_over, shmring_message *m) noexcept nogil
cdef int wait(shmring_request **request, int64_t timeout_ns, shmring_message *m) noexcept nogil
