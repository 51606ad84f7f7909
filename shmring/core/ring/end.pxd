# One end of a ring, as a Python object (core/ring/end.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.c.layout cimport sem_t, shmring_ring
from shmring.core.arrays.lease cimport Lease, make_lease
from shmring.core.base.timeouts cimport checked_part, int_or_none
from shmring.core.ring.blocking cimport wait_t, watch_t
from shmring.core.ring.prospects cimport Prospects
from shmring.core.ring.spsc cimport consumer_t, producer_t, ring_peek, ring_reserve
from shmring.core.sync.liveness cimport fork_generation
from shmring.core.sync.notifier cimport Notifier


cdef class Export:
    cdef Py_buffer memory


cdef class RingEnd:
    cdef object __weakref__
    cdef object memory                 # keeps the ring mapped
    cdef str role
    cdef bint is_producer
    cdef shmring_ring *ring
    cdef size_t ring_nbytes            # from the ring on to the end of the memory
    cdef size_t expected_nbytes        # of a slot; 0: any
    cdef uint64_t number               # which of the consumers
    cdef bint owned_by_lock            # goes from process to process: the holder of a lock has it (channels/queue.pyx)
    cdef producer_t p                  # one of the two
    cdef consumer_t c
    cdef watch_t watch                 # of the consumer that this end is, or that it waits for
    cdef uint32_t generation           # of the process that took it
    cdef bint is_taken                 # by this process, and not closed
    cdef bint is_closed
    cdef bint is_busy                  # a thread is in a call that has released the GIL
    cdef Lease lease
    cdef Notifier notifier             # if there is a descriptor
    cdef Prospects prospects           # of its memory; None: any process may take it at any time
    cdef int64_t own_end               # its number there
    cdef bint is_prospect              # it counts as one of this process
    cdef char[128] apart               # two ends in one process are used by two threads

    cdef int place(self, object memory, char *base, size_t nbytes, str role) except -1
    cdef void watch_consumer(self, uint64_t number) noexcept
    cdef void join_prospects(self, Prospects prospects, int64_t own_end, int64_t other_end) noexcept
    cdef void leave_prospects(self) noexcept
    cdef int note_timeout(self, int64_t timeout_ns) except -1
    cdef object title(self)
    cdef int prepare(self) except -1
    cdef int attach(self, bint again) noexcept
    cdef int attached(self) except? -1
    cdef int refuse(self, int code) except -1
    cdef void drop_notifier(self) noexcept
    cdef void leave(self, bint in_good_order) noexcept
    cdef void wake_others(self) noexcept
    cdef int close_end(self, bint in_good_order) except -1
    cdef int require_open(self) except -1
    cdef int require_usable(self) except -1
    cdef int require_idle(self) except -1
    cdef int end_lease(self) except -1
    cdef int give_up_lease(self) except -1
    cdef int wait_for(self, const uint64_t *counter, uint64_t until, uint64_t wake_at, int64_t timeout_ns) except -1
    cdef object corrupt(self)
    cdef int peer_state(self) noexcept


cdef int await_rings(object end, wait_t *wait, int64_t timeout_ns, Notifier notifier, bint *is_busy) except -1
cdef int take_role(RingEnd end, bint again) noexcept


# Whether this process has the end, so that no check is needed before a call.
cdef inline bint is_held(RingEnd end) noexcept:
    return end.is_taken and not end.is_busy and end.generation == fork_generation()


# Lease up to `most` free or filled slots, fewer where the ring wraps, as an array of that dtype, `length` elements for
# each slot. False: there are none now.
cdef inline bint lend(RingEnd end, uint64_t most, object dtype, int64_t length) except -1:
    cdef int64_t count
    cdef char *address
    if end.is_producer:
        address = ring_reserve(&end.p, min(most, end.p.capacity), &count)
    else:
        address = <char *>ring_peek(&end.c, min(most, end.c.capacity), &count)
    if count < 0:
        raise end.corrupt()
    if count == 0:
        return False
    end.lease = make_lease(end, end.memory, address, dtype, (count * length,), not end.is_producer)
    return True


# Raise if there is no lease that a call could end.
cdef inline int require_lease(RingEnd end) except -1:
    if not end.is_taken or end.generation != fork_generation():
        end.prepare()
    if end.lease is None:
        raise ValueError("nothing is reserved: call reserve() first" if end.is_producer else
                         "nothing is peeked: call peek() first")
    return 0


# End a lease; return the number of its slots that `count` stands for.
cdef inline uint64_t end_part(RingEnd end, object count) except? 0:
    cdef uint64_t n
    cdef object part = int_or_none(count)
    require_lease(end)
    n = checked_part(part, end.p.reserved if end.is_producer else end.c.peeked)
    end.end_lease()
    return n
