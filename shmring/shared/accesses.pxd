# Accesses to private arrays of other ranks, where all ranks are threads of one process.
from shmring.engine.engine cimport Engine

cdef int begin_access(Engine e) except -1
cdef void end_access(Engine e) noexcept nogil
cdef int await_accesses(Engine e, object error) except -1
