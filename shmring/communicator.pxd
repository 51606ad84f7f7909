# The communicator of a group of ranks. Calls written in Cython reach the engine through it.
from libc.stdint cimport int64_t

from shmring.collectives.engine.call cimport Executor
from shmring.collectives.p2p.requests cimport Messages


cdef class Communicator:
    cdef Executor executor               # makes the collectives on arrays
    cdef readonly object _engine         # what `Executor.engine` is; rooms written in Python reach it by this
    cdef Messages messages
    cdef readonly int rank
    cdef readonly int size
    cdef readonly object parent_ranks
    cdef readonly object _object_turn    # of the calls that consist of several collectives (shmring.core.sync.turn)
    cdef int64_t timeout_ns
    cdef dict __dict__                   # programs keep attributes of their own here
    cdef object __weakref__
