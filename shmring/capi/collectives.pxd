# Collectives without the GIL, and the arguments that messages check, too.
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t
from shmring.capi cimport shmring_call, shmring_comm, shmring_plan


cdef int check_memory(const void *data, int64_t count, int dtype, array_t *a) noexcept nogil
cdef int64_t checked_timeout(int64_t timeout_ns, int64_t default_ns) noexcept nogil
cdef int refuse_timeout(int64_t timeout_ns) noexcept nogil
cdef int collective(shmring_comm *comm, const shmring_call *call) noexcept nogil
cdef int plan_make(shmring_comm *comm, const shmring_call *call, shmring_plan **plan) noexcept nogil
cdef int plan_run(shmring_plan *plan) noexcept nogil
cdef int plan_release(shmring_plan *plan) noexcept nogil
