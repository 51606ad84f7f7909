# The engine of one communicator in one process: its memory, its turn-taking, its end.
from libc.stdint cimport int64_t, uint64_t

from shmring.engine.executor cimport execution_t
from shmring.engine.compiled_plan cimport Program
from shmring.engine.rounds cimport engine_t
from shmring.engine.eager cimport eager_t
from shmring.engine.thread_team cimport Team
from shmring.engine.turn cimport turn_t


# Where pair queues and strands lie in an outbox segment (layout.h), counted from its start.
cdef size_t pair_queue_ends_offset(config) except? 0
cdef size_t pair_queue_offset(config, int size, int peer) except? 0
cdef size_t pair_queue_nbytes(config, int size) except? 0
cdef size_t strands_offset(config, int size) except? 0
cdef size_t strand_nbytes(config) except? 0
cdef size_t strand_slot_nbytes(config) except? 0


cdef class Engine:
    cdef engine_t c
    cdef readonly list segments          # by rank; keeps the memory mapped
    cdef list blocks                     # the memory that `c` points to
    cdef readonly object config
    cdef readonly str name
    cdef size_t eager_limit            # what fits in a talk; equal on all ranks
    cdef readonly object limits          # what plans are made for (shmring.plan)
    cdef public object started_as        # (rank, size) in the first group that this process belonged to
    cdef readonly object hierarchy       # the locality domains that plans use (shmring.plan.hierarchy), or None
    cdef bint hierarchical_barriers      # barriers use them, too
    cdef readonly object thresholds      # where the limits come from (shmring.bootstrap.tuning)
    cdef dict programs                   # compiled plans, by (kind, sizes, root)
    cdef public object sharing           # its shared arrays (shmring.collective.zero_copy.Sharing); None until there were some
    cdef public Team team                # the threads that make large collectives together (bootstrap/threads.pyx), or None
    cdef bint learns_stores              # config.streaming leaves it to experience
    cdef object trouble                  # the error that every further call raises, once broken
    cdef readonly bint is_closed
    cdef bint is_inherited               # through fork: this process is not the rank, its parent is
    cdef public bint has_backlog         # asynchronous work is to be done before any call made from now on
    cdef public object progress          # who does it (shmring.collective.async_work); None until there was some
    cdef turn_t turn                     # of the thread in a call
    cdef object turn_queue
    cdef int nvisitors                   # threads in calls that take turns of their own (p2p/progress.pyx)
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int exchange_eager(self, eager_t *t, int64_t timeout_ns) except -1
    cdef int execute(self, Program program, execution_t *j, int64_t timeout_ns) except -1
    cdef int execute_together(self, Program program, execution_t *j, int64_t timeout_ns) except -1
    cdef void set_out(self, Program program, execution_t *j) noexcept
    cdef void take_stock(self, Program program, execution_t *j) noexcept
    cdef int go_on(self, eager_t *t, Program program, execution_t *j, int64_t timeout_ns) except -1
    cdef object remember(self, tuple key, Program program)
    cdef object diagnose(self)
    cdef int disagree(self, int about, uint64_t signature, str reason) except -1
    cdef void say_goodbye(self) noexcept
    cdef int look_after_signals(self, uint64_t signature) except -1
