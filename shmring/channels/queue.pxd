# Queues (channels/queue.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring._c.layout cimport pthread_mutex_t, shmring_queue, shmring_ring
from shmring.channels.receiver cimport Receiver
from shmring.channels.sender cimport Sender
from shmring.memory.mapping cimport Mapping

cdef enum:
    GLANCE_NS = 1000000        # for another process to complete an operation that does not wait


cdef class Queue:
    cdef object __weakref__
    cdef object memory                     # channels/memory.py
    cdef Mapping mapping
    cdef shmring_queue *q                  # NULL until it is made
    cdef shmring_ring *ring
    cdef Sender sender
    cdef Receiver receiver
    cdef bint is_closed
    cdef uint64_t maxsize
    cdef int descriptor                    # its signal: an eventfd of the memory; of a pipe the caller's socket
    cdef uint64_t sending_thread           # the thread of this process that has the lock; 0: none
    cdef uint64_t receiving_thread

    cdef int use(self, memory) except -1
    cdef int require_made(self) except -1
    cdef int make_ends(self) except -1
    cdef int make_receiver(self) except -1
    cdef bint lock(self, pthread_mutex_t *lock, uint64_t *holder, int64_t timeout_ns) except -1
    cdef void unlock(self, pthread_mutex_t *lock, uint64_t *holder) noexcept
    cdef int have_sender(self) except -1
    cdef int have_receiver(self) except -1
    cdef bint retract(self) noexcept
    cdef void settle(self) noexcept nogil
    cdef bint is_given_up(self) except -1
    cdef int put_content(self, content, int64_t timeout_ns) except -1
    cdef int raise_signal(self) except -1
    cdef int send_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef object get_content(self, int64_t timeout_ns)
    cdef int clear_signal(self) except -1
    cdef int await_place(self, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns)
    cdef uint64_t count(self) except? 0
    cdef object full_error(self, uint64_t nbytes)
    cdef bint is_there(self) except -1
    cdef bint is_over(self) noexcept
    cdef int watch(self) except -1
    cdef int write_signal(self) except -1
    cdef void read_signal(self) noexcept
