"""The locks in the memory of a queue: made, and looked at from outside."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

from shmring.core.c.layout cimport shmring_queue
from shmring.core.sync.backoff cimport sem_init
from shmring.core.sync.lock cimport holder_pid

QUEUE_NBYTES = sizeof(shmring_queue)


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
        sem_init(&q.sending.woken, 1, 0)
        sem_init(&q.receiving.woken, 1, 0)
        sem_init(&q.placing.woken, 1, 0)
        sem_init(&q.place_given, 1, 0)
    finally:
        PyBuffer_Release(&view)


def lock_holders(bytes copy not None):
    """The processes that hold the locks of a queue, for sending and for receiving; 0: none. ``copy``: the
    `QUEUE_NBYTES` bytes of the locks."""
    cdef shmring_queue q
    if len(copy) < <Py_ssize_t>sizeof(q):
        return 0, 0
    memcpy(&q, <const char *>copy, sizeof(q))
    return holder_pid(&q.sending, q.members), holder_pid(&q.receiving, q.members)
