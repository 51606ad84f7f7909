# Memory borrowed from callers, and memory lent to them (arrays/lease.pyx).


# ---- borrowed: pointer and size of what a caller gives, for the length of a call ----

ctypedef struct borrowed_t:
    char *address
    size_t nbytes
    bint is_exported
    Py_buffer view

cdef int borrow(object data, borrowed_t *b, bint writable) except -1
cdef void give_back(borrowed_t *b) noexcept


# ---- lent: memory that may be looked at until it is taken back ----

cdef class Span:
    cdef object owner              # keeps the memory
    cdef char *address
    cdef Py_ssize_t nbytes
    cdef bint is_readonly
    cdef int exports               # views, and arrays, that look at it now


cdef Span lend_span(object owner, char *address, Py_ssize_t nbytes, bint is_readonly)


cdef class Lease:
    cdef Span span                 # None once over
    cdef readonly object dtype
    cdef readonly tuple shape

    cdef Span live(self)
    cdef int end(self) except -1


cdef Lease lend(object owner, char *address, object dtype, tuple shape, bint is_readonly)
