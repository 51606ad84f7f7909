"""Errors that have no caller to raise to: those of finalizers, callbacks and background threads."""

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF


cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void *) except -1, void *argument)


def report_unraisable(error, source):
    """Pass ``error``, an exception raised by the function ``source``, to `sys.unraisablehook`; raises nothing.

    In C because Python code cannot construct the argument that the default hook accepts.
    """
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(source)


def raise_later(error):
    """Make the main thread raise ``error`` where it would next call a signal handler (`core/base/signals.pxd`)."""
    Py_INCREF(error)
    if Py_AddPendingCall(&raise_owned, <void *> error):      # too many calls are pending
        Py_DECREF(error)
        raise error


cdef int raise_owned(void *address) except -1:
    cdef object error = <object> address
    Py_DECREF(error)
    raise error
