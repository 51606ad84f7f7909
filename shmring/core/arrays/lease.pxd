# Memory borrowed from callers, and memory leased to them (core/arrays/lease.pyx).


# ---- borrowed: pointer and size of a caller's memory, for the length of a call ----

ctypedef struct borrowed_t:
    char *address
    size_t nbytes
    bint is_exported
    Py_buffer view

cdef int borrow(object data, borrowed_t *b, bint writable) except -1
cdef void end_borrow(borrowed_t *b) noexcept


# ---- leased: memory that a caller may use until the lease ends ----

cdef class Span:
    cdef object owner              # keeps the memory
    cdef char *address
    cdef Py_ssize_t nbytes
    cdef bint is_readonly
    cdef int exports               # views and arrays of it that are alive


cdef Span make_span(object owner, char *address, Py_ssize_t nbytes, bint is_readonly)


cdef class Lease:
    cdef Span span                 # None once over
    cdef readonly object dtype
    cdef readonly tuple shape
    cdef object load               # makes an object of the bytes; None: they are an array
    cdef object end_reference      # weak, to the end of a channel that has leased it: `with` ends the lease; else None
    cdef readonly object version   # of what `shmring.Latest` has leased

    cdef Span live(self)
    cdef int hold_object(self, object load) except -1
    cdef int end(self) except -1
    cdef object view(self)


cdef Lease make_lease(object end, object owner, char *address, object dtype, tuple shape, bint is_readonly)
