"""Errors that have no caller to raise to: those of finalizers, callbacks and background threads."""

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable


def report_unraisable(error, source):
    """Pass ``error``, an exception raised by the function ``source``, to `sys.unraisablehook`; raises nothing.

    In C because Python code cannot construct the argument that the default hook accepts.
    """
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(source)
