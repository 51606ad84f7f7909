# The last error of each thread.
from shmring.capi cimport shmring_error

cdef extern from "Python.h" nogil:
    bint Py_IsInitialized()        # a child of a C program that forked may have no interpreter that works


cdef int fail(int code, const char *name, int rank, const char *text) noexcept nogil
cdef int fail_with(object error) noexcept
cdef int refuse(str text) noexcept
cdef int refuse_null(const char *what) noexcept nogil
cdef const shmring_error *last_error() noexcept nogil
