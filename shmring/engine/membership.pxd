# One rank's membership in a communicator: its view of all ranks, the error that ends it, leaving.
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.atomics cimport add_u32, load_acquire_u32
from shmring.base.heap cimport Heap
from shmring.engine.rounds cimport engine_t
from shmring.engine.thread_team cimport Team
from shmring.sync.turn cimport FREE_THREADED, turn_t


cdef class Membership:
    cdef engine_t c
    cdef list current_segments           # by rank; see `segments`
    cdef tuple mappings                  # of the segments: keeps the memory mapped
    cdef Heap heap                       # the private memory that `c` points to
    cdef readonly object config
    cdef readonly str name
    cdef readonly bytes nonces           # of all segments: no other communicator has the same
    cdef public Team team                # the threads that share large collectives (bootstrap/threads.pyx), or None
    cdef object trouble                  # the error that every further call raises; None: not broken
    cdef uint32_t has_trouble            # see `is_troubled`
    cdef readonly bint is_closed
    cdef readonly bint is_inherited      # this process is a forked child; its parent is the rank
    cdef turn_t turn                     # of the thread in a collective
    cdef object turn_queue
    cdef turn_t message_turn             # of the thread in a point-to-point call (p2p/progress.pyx)
    cdef object message_turn_queue
    # Threads that use the mapped memory without `turn`, which `close` waits for. They run no Python code meanwhile,
    # unless they have the `message_turn`.
    cdef uint32_t nvisitors
    cdef int nsleepers                   # threads without the GIL that sleep for messages; stored with `message_turn`

    cdef object diagnose(self)
    cdef int break_down(self) except -1
    cdef int note_trouble(self) except -1
    cpdef int disagree(self, int about, uint64_t signature, str reason) except -1
    cdef int report_abort(self, bytes reason) except -1
    cdef str inherited_text(self)
    cdef str closed_text(self)
    cdef int check_open(self) except -1
    cdef void look_at_ranks(self, char *states) noexcept
    cdef bint take_turns(self) noexcept
    cdef void give_turns(self) noexcept
    cdef int end_calls(self) except -1
    cdef object last_disagreement(self)
    cdef void mark_left(self) noexcept


cdef inline void count_visitor(Membership m, int change) noexcept nogil:
    if FREE_THREADED:
        add_u32(&m.nvisitors, <uint32_t> change)
    else:
        m.nvisitors += <uint32_t> change


cdef inline bint is_troubled(Membership m) noexcept nogil:
    """Whether every further call raises `trouble`; for threads that are not in the critical section of ``m``."""
    # SYNC error of a communicator (meets: note_trouble): the error is visible.
    return load_acquire_u32(&m.has_trouble)
