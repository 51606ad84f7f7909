# The points of _c/faults.h, for cimport. Nothing in ordinary builds.
cdef extern from "_c/faults.h" nogil:
    void fault_point(const char *name)
