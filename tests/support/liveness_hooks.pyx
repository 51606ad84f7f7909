# cython: language_level=3, binding=True
"""C functions of shmring.core.sync.liveness for tests in Python; built by `support.compiled`."""

import os
from typing import NamedTuple

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t

from shmring.core.c.layout cimport shmring_liveness
from shmring.core.sync.liveness cimport ALIVE, drop_liveness, hold_liveness, is_marked_by_kernel, liveness_state

# Address -> the export of the buffer whose liveness this process holds: a buffer with an export cannot be closed or
# resized. Each export has one extra reference, so that the interpreter does not unmap the memory at its end: the
# kernel, a moment later, could not mark the word.
_pinned = {}


class Liveness(NamedTuple):
    """The state of a liveness ("alive", "dead" or "dropped"), and its owner."""

    state: str
    pid: int
    start_time: int
    pid_ns: int
    method: int


cdef shmring_liveness *liveness_at(const void *base, Py_ssize_t nbytes, Py_ssize_t offset) except NULL:
    if offset < 0 or offset > nbytes - <Py_ssize_t>sizeof(shmring_liveness) or (<uintptr_t>base + offset) % 8:
        raise ValueError(f"no liveness at {offset} in a buffer of {nbytes} bytes")
    return <shmring_liveness *>(<char *>base + offset)


def hold(buffer, Py_ssize_t offset=0):
    """Hold the liveness at ``offset`` of a writable buffer, which cannot be closed before `drop`."""
    export = memoryview(buffer).cast("B")
    cdef Py_buffer view
    PyObject_GetBuffer(export, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *liveness
    cdef int error
    try:
        liveness = liveness_at(view.buf, view.len, offset)
        with nogil:
            error = hold_liveness(liveness)
        if error:
            owner = f"; process {liveness.pid} holds it" if liveness_state(liveness) == ALIVE else ""
            # EBUSY has no class of its own in Python; EAGAIN's has the right meaning.
            kind = BlockingIOError if owner else OSError
            raise kind(error, f"cannot hold the liveness: {os.strerror(error)}{owner}")
        _pinned[<uintptr_t>liveness] = export
        Py_INCREF(export)
    finally:
        PyBuffer_Release(&view)


def drop(buffer, Py_ssize_t offset=0):
    """Drop the liveness at ``offset``."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *liveness
    try:
        liveness = liveness_at(view.buf, view.len, offset)
        with nogil:
            drop_liveness(liveness)
        export = _pinned.pop(<uintptr_t>liveness, None)
        if export is not None:
            Py_DECREF(export)
    finally:
        PyBuffer_Release(&view)


def probe(buffer, Py_ssize_t offset=0):
    """Look at the liveness at ``offset`` of a writable buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *liveness
    cdef int state
    try:
        liveness = liveness_at(view.buf, view.len, offset)
        with nogil:
            state = liveness_state(liveness)
        return Liveness(("alive", "dead", "dropped")[state], liveness.pid, liveness.start_time, liveness.pid_ns,
                        0 if liveness.turn == 0 else 1 if is_marked_by_kernel(liveness) else 2)
    finally:
        PyBuffer_Release(&view)
