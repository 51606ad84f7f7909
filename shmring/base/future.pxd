# What is under way and will be over: the base of requests and asynchronous work.

cdef class Future:
    cpdef _settle(self, timeout)
    cpdef _value(self)
