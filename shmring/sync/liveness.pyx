"""Liveness: which processes are alive, as the kernel marks it.

Each process holds a *liveness* in the shared memory it creates. When it dies, by any cause and in any PID namespace,
the kernel marks that word, and every process that maps it sees the mark with one load. It need not be the parent, and
no process id is looked up. ``_c/keeper.h`` has the method, and what replaces it where there are no robust lists;
``docs/memory-model.md`` has the sync points.

The environment variable ``SHMRING_LIVENESS=process-table``, read at import, forces the second method.
"""

import os
from typing import NamedTuple

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from shmring._c.layout cimport shmring_liveness


cdef extern from "keeper.h" nogil:
    """
    static void force_method_2(int yes) { keeper.is_forced_to_ask = yes; }
    static uint32_t keeper_generation(void) { return keeper.generation; }
    """
    int keeper_probe(shmring_liveness *liveness)
    int keeper_hold(shmring_liveness *liveness)
    void keeper_drop(shmring_liveness *liveness)
    void keeper_end_all(const void *base, size_t nbytes)
    void force_method_2(int yes)
    uint32_t keeper_generation()


cdef int hold_liveness(shmring_liveness *liveness) noexcept nogil:
    return keeper_hold(liveness)


cdef void drop_liveness(shmring_liveness *liveness) noexcept nogil:
    keeper_drop(liveness)


cdef void end_liveness(const void *base, size_t nbytes) noexcept nogil:
    keeper_end_all(base, nbytes)


cdef int liveness_state(shmring_liveness *liveness) noexcept nogil:
    return keeper_probe(liveness)


cdef uint32_t fork_generation() noexcept nogil:
    return keeper_generation()


force_method_2(os.environ.get("SHMRING_LIVENESS") == "process-table")

LIVENESS_NBYTES = sizeof(shmring_liveness)

# Address -> the export of the buffer whose liveness Python code holds: a buffer with an export cannot be closed or
# resized. Each export has one extra reference, so that the interpreter does not unmap the memory at its end: the
# kernel, a moment later, could not mark the word.
_pinned = {}


class Liveness(NamedTuple):
    """The state of a liveness, and its owner.

    Attributes
    ----------
    state : {"alive", "dead", "dropped"}
        ``dropped``: not held now; its owner dropped it, or it was never held.
    pid : int
        The owner's process id in its own PID namespace; 0 if it was never held.
    start_time : int
        Clock ticks from boot to its start; with ``pid``, a name no other process ever has.
    pid_ns : int
        Inode of the owner's PID namespace.
    method : int
        1 if the kernel marks the death, 2 if the process table must be asked, 0 if it was never held.
    """

    state: str
    pid: int
    start_time: int
    pid_ns: int
    method: int


cdef shmring_liveness *liveness_at(const void *base, Py_ssize_t nbytes, Py_ssize_t offset) except NULL:
    if offset < 0 or offset > nbytes - <Py_ssize_t>sizeof(shmring_liveness):
        raise ValueError(f"no room for a liveness of {LIVENESS_NBYTES} bytes at {offset} in a buffer of {nbytes} bytes")
    if (<uintptr_t>base + offset) % sizeof(uint64_t) != 0:
        raise ValueError(f"a liveness must lie on a multiple of 8 bytes, not at offset {offset}")
    return <shmring_liveness *>(<char *>base + offset)


def hold(buffer, Py_ssize_t offset=0):
    """Hold the liveness at ``offset`` of a writable buffer until this process dies or drops it.

    Any thread may call and may end afterwards. The buffer cannot be closed before `drop`. Does not block.

    Parameters
    ----------
    buffer : writable buffer
        Memory shared with the processes that will look: zeroed, or a former liveness.
    offset : int
        Byte offset of the liveness, of `LIVENESS_NBYTES` bytes, on a multiple of 8.

    Raises
    ------
    BlockingIOError
        A living process holds it.
    OSError
        The keeper thread cannot be started.
    ValueError
        Out of range or not aligned.
    """
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
    """Drop the liveness at ``offset``; observers then see ``dropped``, not ``dead``.

    Does nothing if this process does not hold it, also in a child that inherited the memory through ``fork``.
    """
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
    """Look at the liveness at ``offset`` of a writable buffer.

    Returns
    -------
    Liveness
        Any process that maps the memory may look, any number at once.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *liveness
    cdef int state
    try:
        liveness = liveness_at(view.buf, view.len, offset)
        with nogil:
            state = liveness_state(liveness)
        return Liveness(("alive", "dead", "dropped")[state], liveness.pid, liveness.start_time, liveness.pid_ns,
                        liveness.method)
    finally:
        PyBuffer_Release(&view)
