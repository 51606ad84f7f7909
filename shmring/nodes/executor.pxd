# The executor of a communicator over several nodes (nodes/executor.pyx).
from libc.stdint cimport uint64_t

from shmring.base.heap cimport Heap
from shmring.collective.local cimport LocalExecutor
from shmring.engine.call cimport Executor, Prepared, call_t
from shmring.nodes.exchange cimport Exchange
from shmring.nodes.program cimport Program
from shmring.nodes.trials cimport Trials
from shmring.sync.turn cimport Turn


cdef class NodesExecutor(Executor):
    cdef readonly uint64_t ncalls
    cdef public bint is_stopped    # the group is closed, inherited or broken
    cdef readonly Turn turn        # of the thread in a call
    cdef object layout
    cdef LocalExecutor local
    cdef Exchange exchange
    cdef bint reproducible
    cdef list recent               # programs of calls without counts, by their signatures
    cdef object programs           # all, by what their plans depend on; the latest used last
    cdef size_t nbytes             # of their memory
    cdef readonly dict trials      # by the call in words; apart, as all ranks must keep those of the same calls

    cdef int execute(self, call_t *call) except -1
    cdef Program find(self, call_t *call)
    cdef Program find_by_key(self, call_t *call)
    cdef Program make(self, call_t *call, counts)
    cdef Trials trials_of(self, str what)


cdef class NodesCall(Prepared):
    cdef NodesExecutor executor
    cdef Heap memory             # of the counts; None: it has none
    cdef call_t call
