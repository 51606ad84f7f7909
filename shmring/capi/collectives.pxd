# Collectives without the GIL.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.capi cimport shmring_call
from shmring.capi.handles cimport comm_t
from shmring.collective.local cimport request_t
from shmring.engine.call cimport call_t

# What a `shmring_plan *` points to.
ctypedef struct plan_t:
    comm_t *comm
    call_t call
    request_t request
    PyObject *program              # holds a reference; NULL: eager


cdef int check(comm_t *h, const shmring_call *call, call_t *c) noexcept nogil
cdef int check_memory(const void *data, int64_t count, int dtype, array_t *a) noexcept nogil
cdef int64_t checked_timeout(int64_t timeout_ns, int64_t default_ns) noexcept nogil
cdef int refuse(str text) noexcept
cdef int refuse_handle() noexcept nogil
cdef int refuse_timeout(int64_t timeout_ns) noexcept nogil
cdef int perform(comm_t *h, call_t *c) noexcept nogil
cdef plan_t *make_plan(comm_t *h, call_t *c) except NULL
cdef void free_plan(plan_t *plan) noexcept
cdef int run_plan(plan_t *plan) noexcept nogil
