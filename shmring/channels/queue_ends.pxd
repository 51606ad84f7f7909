# The ends of a queue's ring, which go from process to process (channels/queue_ends.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport load_relaxed_u64
from shmring._c.layout cimport pthread_mutex_t, shmring_queue, shmring_ring
from shmring.channels.message_reader cimport MessageReader
from shmring.channels.message_writer cimport MessageWriter
from shmring.memory.mapping cimport Mapping
from shmring.sync.backoff cimport left_until

cdef extern from "Python.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef enum:
    TICK_NS = 50000000         # between two looks at signals, and at the liveness of the other side
    GLANCE_NS = 1000000        # for another process to complete an operation that does not wait

cdef enum:                     # in `shmring_queue.item_state`
    NO_ITEM = 0
    PUTTING = 1                # an item is being put
    VOID = 2                   # the pieces in the ring are void: the item was given up, or must be put again
    HELD = 3                   # a consumer has the beginning of the item, and has left the call


# How long to wait before the next look at signals, and at the liveness of the other side; 0: time is over.
cdef inline int64_t tick_until(int64_t deadline_ns, int64_t timeout_ns) noexcept nogil:
    cdef int64_t left = left_until(deadline_ns, timeout_ns)
    return TICK_NS if left < 0 else min(<int64_t>TICK_NS, left)


cdef inline bint is_holder(const uint64_t *holder) noexcept nogil:
    """Whether it is the calling thread, which alone stores its number."""
    return load_relaxed_u64(holder) == PyThread_get_thread_ident()


cdef class QueueEnds:
    cdef object memory                     # channels/queue_memory.py
    cdef Mapping mapping
    cdef shmring_queue *q                  # NULL until it is made
    cdef shmring_ring *ring
    cdef MessageWriter sender
    cdef MessageReader receiver
    cdef bint is_closed
    cdef uint64_t maxsize
    cdef uint64_t sending_thread      # of this process, that holds the lock; 0: none
    cdef uint64_t receiving_thread

    cdef int use(self, memory) except -1
    cdef int require_made(self) except -1
    cdef int make_ends(self) except -1
    cdef int make_receiver(self) except -1
    cdef bint lock(self, pthread_mutex_t *lock, uint64_t *holder, int64_t timeout_ns) except -1
    cdef void unlock(self, pthread_mutex_t *lock, uint64_t *holder) noexcept
    cdef int have_sender(self) except -1
    cdef bint take_back(self) except -1
    cdef void settle(self) noexcept nogil
    cdef int have_receiver(self) except -1
    cdef bint complete(self, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef bint hold_item(self) except -1
    cdef bint is_no_producer(self) except -1
    cdef uint64_t count(self) except? 0
