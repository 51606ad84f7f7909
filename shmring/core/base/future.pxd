# Futures: the base of requests and of asynchronous work.

cdef class Future:
    cpdef _settle(self, timeout)
    cpdef _value(self)
