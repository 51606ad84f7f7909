# What the two ends of a ring have in common as Python objects (ring/end.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring._c.layout cimport shmring_ring_role
from shmring.arrays.lease cimport Span, borrowed_t
from shmring.sync.liveness cimport fork_generation


cdef class Export:
    cdef Py_buffer memory


cdef class End:
    cdef Export export             # of the caller's buffer; None once closed
    cdef bint is_open
    cdef bint is_producer
    cdef uint32_t generation
    cdef Span span                 # what is lent,
    cdef object view               # and as what
    cdef shmring_ring_role *own
    cdef shmring_ring_role *other
    cdef void *private             # the producer_t or consumer_t
    cdef uint64_t capacity
    cdef size_t nbytes             # of a slot

    cdef int attach(self, buffer, bint is_producer) except -1
    cdef object lend(self, const char *address, uint64_t nbytes, bint is_readonly)
    cdef uint64_t taken(self, count, const uint64_t *lent) except? 0
    cdef int take_back(self) except -1
    cdef void leave_ring(self, bint in_good_order) noexcept
    cdef int close_end(self, bint in_good_order) except -1


# ---- what every call checks; the errors are out of line ----

cdef int refuse_closed(End end) except -1
cdef int refuse_lent(End end) except -1
cdef int refuse_size(End end, size_t nbytes, bint is_one) except -1
cdef int refuse_counter(End end) except -1


cdef inline int require_open(End end) except -1:
    return 0 if end.is_open and end.generation == fork_generation() else refuse_closed(end)


cdef inline int require_idle(End end) except -1:
    require_open(end)
    return 0 if end.span is None else refuse_lent(end)


# How many slots a caller's memory is long: exactly one, or any whole number.
cdef inline uint64_t slots_in(End end, borrowed_t *b, bint is_one) except? 0:
    if b.nbytes != end.nbytes if is_one else b.nbytes % end.nbytes:
        refuse_size(end, b.nbytes, is_one)
    return b.nbytes // end.nbytes


cdef inline int64_t checked(End end, int64_t count) except -1:
    return count if count >= 0 else refuse_counter(end)
