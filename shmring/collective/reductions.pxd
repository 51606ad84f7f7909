from shmring.collective.base cimport CollectiveBase


cdef class Reductions(CollectiveBase):
    cdef object prefix(self, int kind, x, out, op, timeout, async_op)
