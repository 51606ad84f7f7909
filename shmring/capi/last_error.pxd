# The last error of each thread.
from shmring.capi cimport shmring_error


cdef int fail(int code, const char *name, int rank, const char *text) noexcept nogil
cdef int fail_with(object error) noexcept
cdef const shmring_error *last_error() noexcept nogil
