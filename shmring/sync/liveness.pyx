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
    int probe_life(shmring_liveness *life)
    int hold_life(shmring_liveness *life)
    void drop_life(shmring_liveness *life)
    void end_lives_in(const void *base, size_t nbytes)
    void force_method_2(int yes)
    uint32_t keeper_generation()


cdef int hold_liveness(shmring_liveness *life) noexcept nogil:
    return hold_life(life)


cdef void drop_liveness(shmring_liveness *life) noexcept nogil:
    drop_life(life)


cdef void end_liveness(const void *base, size_t nbytes) noexcept nogil:
    end_lives_in(base, nbytes)


cdef int life_state(shmring_liveness *life) noexcept nogil:
    return probe_life(life)


cdef uint32_t fork_generation() noexcept nogil:
    return keeper_generation()


force_method_2(os.environ.get("SHMRING_LIVENESS") == "process-table")

LIVENESS_NBYTES = sizeof(shmring_liveness)

# The exports of what Python code holds, by address: as long as one is here its buffer cannot be closed or resized.
# Each has one reference more than it needs, so that the interpreter's own end does not unmap what is still held:
# the kernel, a moment later, could not mark it.
_pinned = {}


class Life(NamedTuple):
    """What a look at a liveness found.

    Attributes
    ----------
    state : {"alive", "dead", "dropped"}
        ``dropped``: not held now; its owner let go of it, or it was never held.
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


cdef shmring_liveness *life_at(const void *base, Py_ssize_t nbytes, Py_ssize_t offset) except NULL:
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
    cdef shmring_liveness *life
    cdef int error
    try:
        life = life_at(view.buf, view.len, offset)
        with nogil:
            error = hold_liveness(life)
        if error:
            owner = f"; process {life.pid} holds it" if life_state(life) == ALIVE else ""
            # EBUSY has no class of its own in Python; EAGAIN's has the right meaning.
            kind = BlockingIOError if owner else OSError
            raise kind(error, f"cannot hold the liveness: {os.strerror(error)}{owner}")
        _pinned[<uintptr_t>life] = export
        Py_INCREF(export)
    finally:
        PyBuffer_Release(&view)


def drop(buffer, Py_ssize_t offset=0):
    """Let go of the liveness at ``offset``; observers then see ``dropped``, not ``dead``.

    Does nothing if this process does not hold it, also in a child that inherited the memory through ``fork``.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *life
    try:
        life = life_at(view.buf, view.len, offset)
        with nogil:
            drop_liveness(life)
        export = _pinned.pop(<uintptr_t>life, None)
        if export is not None:
            Py_DECREF(export)
    finally:
        PyBuffer_Release(&view)


def probe(buffer, Py_ssize_t offset=0):
    """Look at the liveness at ``offset`` of a writable buffer.

    Returns
    -------
    Life
        Any process that maps the memory may look, any number at once.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    cdef shmring_liveness *life
    cdef int state
    try:
        life = life_at(view.buf, view.len, offset)
        with nogil:
            state = life_state(life)
        return Life(("alive", "dead", "dropped")[state], life.pid, life.start_time, life.pid_ns, life.method)
    finally:
        PyBuffer_Release(&view)
