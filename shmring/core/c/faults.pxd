# The points of core/c/faults.h, for cimport. Nothing in ordinary builds.
cdef extern from "core/c/faults.h" nogil:
    void fault_point(const char *name)
