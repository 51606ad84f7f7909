from shmring.collective.base cimport CollectiveBase


cdef class Reductions(CollectiveBase):
    pass
