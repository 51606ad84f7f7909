# Queues (channels/queue.pyx).
from libc.stdint cimport int64_t

from shmring.channels.queue_ends cimport QueueEnds


cdef class Queue(QueueEnds):
    cdef object __weakref__

    cdef int put_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef int await_place(self, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns)
