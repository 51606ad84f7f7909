# Collectives as ranges of a profiler that runs in this process.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    PyObject *Py_True
    PyObject *PyDict_GetItem(PyObject *of, PyObject *key)

cdef PyObject *flags                   # the names of the profiler's module, NULL: no profiler is known;
cdef PyObject *flag                    # of these, the one that is True while it runs


cdef inline bint is_profiled() noexcept:
    return flags != NULL and PyDict_GetItem(flags, flag) == Py_True


cdef object range_of(uint64_t signature, uint64_t nbytes, uint64_t number, const char *algorithm)
