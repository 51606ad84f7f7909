"""Collectives as ranges of a profiler that runs in this process: the same calls, with the same names, as in timelines.

The profiler is that of another package, which this room does not import: `show_calls` gets its flag, a word that a call
loads and compares, and what makes a range.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from shmring.engine.signature import explain

cdef tuple shown = ()      # what `show_calls` was called with


def show_calls(dict module_flags, str name="", make=None):
    """From now on, while ``module_flags[name]`` is True, show each collective of threads with the GIL; None: none.

    ``make(call, facts)`` returns a context manager. ``call`` is the name of the call as in timelines, ``facts`` has
    ``bytes``, ``number`` and ``algorithm``.
    """
    global flags, flag, shown
    flags = NULL
    shown = (module_flags, name, make)      # holds what the pointers point to
    flag = <PyObject *> name
    if module_flags is not None:
        flags = <PyObject *> module_flags


cdef object range_of(uint64_t signature, uint64_t nbytes, uint64_t number, const char *algorithm):
    """The context of a collective that begins now."""
    return shown[2](explain(signature), {"bytes": nbytes, "number": number, "algorithm": algorithm.decode()})
