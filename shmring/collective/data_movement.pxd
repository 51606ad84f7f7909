from shmring.collective.reductions cimport Reductions


cdef class DataMovement(Reductions):
    pass
