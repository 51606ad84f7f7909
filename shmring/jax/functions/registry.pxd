# Communicators of compiled graphs, by number (registry.pyx).
from libc.stdint cimport int64_t

from shmring.capi cimport shmring_comm

cdef shmring_comm *acquire(int64_t number) noexcept nogil
cdef void release(int64_t number) noexcept nogil
