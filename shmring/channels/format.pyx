"""Formats of channel segments: codes in their headers, and what they hold beside rings: a common waiter, locks."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

from shmring._c.layout cimport SHMRING_FALSE_SHARING, sem_t, shmring_queue, shmring_waiter
from shmring.channels.robust cimport lock_holder, lock_init, require_lock


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)

# What a sender does when there is no room: in a channel, and in a broadcast because a receiver is slow.
POLICIES = {"wait": WAITS, "drop_newest": DROPS_NEWEST, "drop_oldest": DROPS_OLDEST, "disconnect": DISCONNECTS}
WHEN_FULL = ("wait", "drop_newest", "drop_oldest")
WHEN_SLOW = ("wait", "drop_oldest", "disconnect")

WAITER_NBYTES = SHMRING_FALSE_SHARING
QUEUE_NBYTES = sizeof(shmring_queue)


cdef int export_room(object buffer, Py_buffer *view, object nbytes) except -1:
    """Export a writable buffer of at least ``nbytes``."""
    PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    if view.len < nbytes:
        PyBuffer_Release(view)
        raise ValueError(f"the buffer has {view.len} bytes, {nbytes} are needed")
    return 0


def format_common_waiter(buffer):
    """Make the semaphore on which the receiver of several rings sleeps, at the beginning of a buffer."""
    cdef Py_buffer view
    export_room(buffer, &view, sizeof(shmring_waiter))
    memset(view.buf, 0, sizeof(shmring_waiter))
    sem_init(&(<shmring_waiter *>view.buf).wake, 1, 0)
    PyBuffer_Release(&view)


def lock_holders(bytes copy not None):
    """The numbers of the threads that have the locks of a queue, for sending and for receiving; 0: none. ``copy``: of
    `QUEUE_NBYTES` bytes of its memory."""
    cdef shmring_queue q
    if len(copy) < <Py_ssize_t>sizeof(q):
        return 0, 0
    memcpy(&q, <const char *>copy, sizeof(q))
    return lock_holder(&q.sending), lock_holder(&q.receiving)


def format_queue(buffer):
    """Make the locks of a queue at the beginning of a buffer."""
    cdef Py_buffer view
    cdef int error
    export_room(buffer, &view, sizeof(shmring_queue))
    cdef shmring_queue *q = <shmring_queue *>view.buf
    memset(q, 0, sizeof(shmring_queue))
    sem_init(&q.joined, 1, 0)
    error = lock_init(&q.sending) or lock_init(&q.receiving)
    PyBuffer_Release(&view)
    require_lock(error)
