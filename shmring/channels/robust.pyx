"""Locks between processes that survive their holders: waiting for one, and the locks in a queue's memory."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

import os

from shmring._c.layout cimport shmring_queue
from shmring.base.signals cimport check_signals
from shmring.sync.backoff cimport deadline_of, left_until, now_ns, sem_init
from shmring.sync.long_waits cimport is_note_due, notes_t, write_note

QUEUE_NBYTES = sizeof(shmring_queue)


cdef int require_lock(int error) except -1:
    if error:
        raise OSError(error, "this system has no robust mutexes, which survive the death of their holder")
    return 0


cdef bint await_lock(pthread_mutex_t *lock, int outcome, int64_t timeout_ns, memory) except -1:
    """The rest of `take_lock`, after the ``outcome`` of its first attempt."""
    cdef int64_t deadline_ns = deadline_of(timeout_ns), began_ns = now_ns(), left
    cdef notes_t notes = notes_t(0, 0)
    while outcome == LOCK_LATE:
        left = left_until(deadline_ns, timeout_ns)
        if left == 0:
            return False
        left = TICK_NS if left < 0 else min(<int64_t>TICK_NS, left)
        with nogil:
            outcome = lock_within(lock, left)
        if outcome == LOCK_LATE:
            check_signals()
            if memory.writes_notes and is_note_due(&notes, began_ns):
                write_note(f"{memory.title} is in use by another process or thread, which waits in the same call",
                           began_ns)
    if outcome < 0:
        raise OSError(-outcome, f"cannot lock {memory.title}: {os.strerror(-outcome)}")
    return True


def format_queue(buffer):
    """Make the locks of a queue at the beginning of a buffer."""
    cdef Py_buffer view
    cdef shmring_queue *q
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if view.len < <Py_ssize_t>sizeof(shmring_queue):
            raise ValueError(f"the buffer has {view.len} bytes, {QUEUE_NBYTES} are needed")
        q = <shmring_queue *>view.buf
        memset(q, 0, sizeof(shmring_queue))
        sem_init(&q.joined, 1, 0)
        require_lock(lock_init(&q.sending) or lock_init(&q.receiving))
    finally:
        PyBuffer_Release(&view)


def lock_holders(bytes copy not None):
    """The ids of the threads that hold the locks of a queue, for sending and for receiving; 0: none. ``copy``: the
    `QUEUE_NBYTES` bytes of the locks."""
    cdef shmring_queue q
    if len(copy) < <Py_ssize_t>sizeof(q):
        return 0, 0
    memcpy(&q, <const char *>copy, sizeof(q))
    return lock_holder(&q.sending), lock_holder(&q.receiving)
