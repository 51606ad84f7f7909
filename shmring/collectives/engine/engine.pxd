# The engine of one communicator in one process.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.c.atomics cimport add_u32, load_acquire_u32, load_acquire_u64
from shmring.core.c.layout cimport shmring_abort
from shmring.core.base.heap cimport Heap
from shmring.collectives.engine.call cimport call_t
from shmring.collectives.engine.compiled_plan cimport Program, execution_t, program_t
from shmring.collectives.engine.eager cimport eager_t
from shmring.collectives.engine.recording cimport Trace, record_t, timeline_t
from shmring.collectives.engine.rounds cimport engine_t
from shmring.collectives.engine.thread_team cimport Team
from shmring.collectives.engine.variants cimport variants_t
from shmring.core.sync.backoff cimport patience_t
from shmring.core.sync.long_waits cimport notes_t
from shmring.core.sync.turn cimport FREE_THREADED, give_turn, take_turn, turn_t

cdef enum:
    BUSY = -1           # of `Engine.take_from_stores`

ctypedef struct memory_t:
    size_t start
    size_t end


cdef class Engine:
    cdef engine_t c
    cdef list current_segments           # by rank; see `segments`
    cdef tuple mappings                  # of the segments: keeps the memory mapped
    cdef Heap heap                       # the private memory that `c` points to
    cdef readonly object config
    cdef readonly str name
    cdef object describe                 # see `account`
    cdef readonly list family            # by rank: whether open files can be passed to it (core/objects/open_files.py)
    cdef readonly bytes nonces           # of all segments: no other communicator has the same
    cdef object __weakref__

    # How calls are executed.
    cdef size_t eager_limit              # what one eager message carries; equal on all ranks
    cdef readonly object limits          # what plans are made for (shmring.collectives.plan)
    # the locality domains that plans use (shmring.collectives.plan.hierarchy), or None
    cdef readonly object hierarchy
    cdef readonly object thresholds      # what calibration has led to (shmring.collectives.bootstrap.tuning)
    cdef dict programs                   # compiled plans, by (kind, sizes, root)
    cdef variants_t variants             # which of them
    # the threads that share large collectives (collectives/bootstrap/calibrate.pyx), or None
    cdef public Team team
    # shared arrays (shmring.collectives.shared.zero_copy.Sharing); None before the first
    cdef public object sharing

    # Which thread may call.
    cdef turn_t turn                     # of the thread in a collective
    cdef call_t *under_way               # the call of that thread, if it is one on known arrays; else NULL
    cdef turn_t message_turn             # of the thread in a point-to-point call (collectives/p2p/progress.pyx)
    # Threads that use the mapped memory without `turn`, which `close` waits for. They run no Python code meanwhile,
    # unless they have the `message_turn`.
    cdef uint32_t nvisitors
    cdef int nsleepers                   # threads without the GIL that sleep for messages; stored with `message_turn`
    cdef public bint has_backlog         # asynchronous work comes before any call made from now on
    cdef readonly object progress        # does it (shmring.collectives.calls.progress_thread); None before the first

    # Where calls are recorded.
    cdef readonly Trace trace            # None: nowhere
    cdef uint64_t timeline               # its address, or 0: `timeline_of`
    cdef list retired                    # earlier traces, in which calls may still be recorded

    # How it ends.
    cdef object trouble                  # the error that every further call raises; None: not broken
    cdef uint32_t has_trouble            # see `is_troubled`
    cdef int culprit_pid                 # the process whose failure `trouble` follows from; 0: it is of this rank's own
    cdef readonly bint is_closed
    cdef readonly bint is_inherited      # this process is a forked child; its parent is the rank

    cdef int point_at_outboxes(self, int rank, int size) except -1
    cdef int set_variants(self, int size) except -1

    cdef inline int enter(self) except -1:
        """Begin a call: wait for the asynchronous work submitted before it, raise if the communicator is unusable, and
        take the turn."""
        if self.has_backlog:
            self.progress.drain()
        if self.is_closed or self.is_inherited or is_troubled(self):
            self.refuse()
        if take_turn(&self.turn, self.name) and (self.is_closed or is_troubled(self)):
            self.leave()      # so that the next waiting thread raises, too
            self.refuse()
        return 0

    cdef inline void leave(self) noexcept:
        give_turn(&self.turn)

    cdef int take_from_stores(self, const memory_t *ranges, int n) except -2
    cdef void give_back(self, int taken) noexcept
    cdef int busy(self, turn_t *turn) except -2
    cdef bint is_elsewhere(self, const memory_t *ranges, int n) noexcept
    cdef bint take_turns(self) noexcept
    cdef void give_turns(self) noexcept
    # For threads without the GIL, once the turns are shared (`share_turns`).
    cdef bint is_usable(self) noexcept nogil
    cdef bint enter_free(self) noexcept nogil
    cdef void leave_free(self) noexcept nogil

    cdef int run(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) except -1
    cdef int run_in_range(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) except -1
    cdef int run_free(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) noexcept nogil
    cdef int complete(self, eager_t *t, execution_t *x, int64_t timeout_ns, record_t *record) except -1
    cdef int look_up(self, execution_t *x, const patience_t *patience, notes_t *notes) except -1
    cdef int64_t wait_began(self, execution_t *x, const patience_t *patience) noexcept nogil
    cdef int note_wait(self, int64_t began_ns) except -1
    cdef void note_wait_free(self, int64_t began_ns) noexcept nogil
    cdef object keep_program(self, tuple key, Program program)
    cdef tuple least_used(self)

    cdef object diagnose(self)
    cdef int break_down(self) except -1
    cdef int note_trouble(self) except -1
    cpdef int disagree(self, int about, uint64_t signature, str reason) except -1
    cdef int report_abort(self, bytes reason) except -1
    cdef str inherited_text(self)
    cdef str closed_text(self)
    cdef int check_open(self) except -1

    cdef void look_at_ranks(self, char *states) noexcept
    cdef void mark_left(self) noexcept
    cdef bint end_collective(self) except -1
    cdef object last_disagreement(self)


# The abort record as a `shmring.collectives.engine.abort_errors.Record`; ``pid`` is that of the rank it is about, 0 if
# unknown.
cdef object record_of(shmring_abort *r, int pid)


cdef inline void count_visitor(Engine e, int change) noexcept nogil:
    if FREE_THREADED:
        add_u32(&e.nvisitors, <uint32_t> change)
    else:
        e.nvisitors += <uint32_t> change


cdef inline bint is_troubled(Engine e) noexcept nogil:
    """Whether every further call raises `trouble`; for threads that are not in the critical section of ``e``."""
    # SYNC error of a communicator (meets: note_trouble): the error is visible.
    return load_acquire_u32(&e.has_trouble)


cdef inline timeline_t *timeline_of(Engine e) noexcept nogil:
    """Where calls are recorded; NULL: nowhere. Loaded once in a call, with the turn, by threads without the GIL."""
    # SYNC timeline (meets: record_in in collectives/engine/engine.pyx)
    return <timeline_t *> load_acquire_u64(&e.timeline)
