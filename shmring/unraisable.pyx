"""Errors that nobody is there to catch: told to `sys.unraisablehook`, as the interpreter does with its own."""

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable


def report_unraisable(error, source):
    """Report ``error``, an exception that came out of ``source``; raises nothing.

    In C because Python code has no way to make what the default hook accepts as its argument.
    """
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(source)
