# The engine of one communicator in one process.
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport load_acquire_u64
from shmring.engine.executor cimport execution_t
from shmring.engine.compiled_plan cimport Program
from shmring.engine.membership cimport Membership
from shmring.engine.rounds cimport engine_t
from shmring.engine.eager cimport eager_t
from shmring.engine.trace cimport Trace, timeline_t


cdef class Engine(Membership):
    cdef size_t eager_limit              # what one eager message carries; equal on all ranks
    cdef readonly object limits          # what plans are made for (shmring.plan)
    cdef public object started_as        # (rank, size) in the first group that this process belonged to
    cdef readonly object hierarchy       # the locality domains that plans use (shmring.plan.hierarchy), or None
    cdef bint hierarchical_barriers      # barriers use them, too
    cdef readonly object thresholds      # what calibration has led to (shmring.bootstrap.tuning)
    cdef dict programs                   # compiled plans, by (kind, sizes, root)
    cdef public object sharing           # shared arrays (shmring.shared.zero_copy.Sharing); None before the first
    cdef bint exchanges                  # how all-reduces of sizes that are new begin
    cdef bint learns_stores              # config.stores leaves the kind of stores to trials
    cdef public bint has_backlog         # asynchronous work comes before any call made from now on
    cdef readonly Trace trace            # where calls are recorded; None: nowhere
    cdef uint64_t timeline               # its address, or 0: `timeline_of`
    cdef list retired                    # earlier traces, in which calls may still be recorded
    cdef readonly object progress          # does it (shmring.collective.progress_thread); None before the first
    cdef object scratch                  # in which small arrays are packed (shmring.collective.coalesced)
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int exchange_eager(self, eager_t *t, int64_t timeout_ns) except -1
    cdef int execute(self, Program program, execution_t *x, int64_t timeout_ns) except -1
    cdef int execute_alone(self, Program program, execution_t *x, int64_t timeout_ns) except -1
    cdef int observed(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) except -1
    cdef int execute_together(self, Program program, execution_t *x, int64_t timeout_ns) except -1
    cdef bint await_helpers(self) noexcept
    cdef void begin_execution(self, Program program, execution_t *x) noexcept nogil
    cdef void end_execution(self, Program program, execution_t *x) noexcept nogil
    cdef int advance(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) except -1
    cdef object remember(self, tuple key, Program program)
    cdef int handle_signals(self, uint64_t signature) except -1

    # For threads without the GIL, once the turns are shared (`share_turns`).
    cdef bint enter_free(self) noexcept nogil
    cdef void leave_free(self) noexcept nogil
    cdef bint is_usable(self) noexcept nogil
    cdef int exchange_free(self, eager_t *t, int64_t timeout_ns) noexcept nogil
    cdef int advance_free(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) noexcept nogil
    cdef int execute_free(self, Program program, execution_t *x, int64_t timeout_ns) noexcept nogil


cdef inline timeline_t *timeline_of(Engine e) noexcept nogil:
    """Where calls are recorded; NULL: nowhere. Loaded once in a call, with the turn, by threads without the GIL."""
    # SYNC timeline (meets: record_in in engine/engine.pyx)
    return <timeline_t *> load_acquire_u64(&e.timeline)
