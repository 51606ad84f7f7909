# Queues (channels/queue.pyx).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.c.layout cimport sem_t, shmring_lock, shmring_queue, shmring_ring
from shmring.channels.receiver cimport Receiver
from shmring.channels.sender cimport Sender
from shmring.core.memory.mapping cimport Mapping
from shmring.core.ring.prospects cimport Prospects
from shmring.core.sync.lock cimport member_t
from shmring.core.sync.notifier cimport Notifier

cdef enum:
    GLANCE_NS = 1000000        # for another process to complete an operation that does not wait

cdef extern from *:
    """
    #define SHMRING_UNLIMITED (UINT64_C(1) << 63)
    """
    const uint64_t UNLIMITED "SHMRING_UNLIMITED"       # `maxsize` of a queue without one

cdef class Queue

# What a process waits for until another one changes the counts of a queue, and where it sleeps.
ctypedef struct gate_t:
    bint (*is_open)(Queue target) noexcept nogil
    uint64_t *word
    sem_t *wake
    int64_t spin_ns


cdef class Queue:
    cdef object __weakref__
    cdef object memory                     # channels/memory.py
    cdef Mapping mapping
    cdef shmring_queue *q                  # NULL until it is made
    cdef member_t member                   # this process, of those that have the queue
    cdef shmring_ring *ring
    cdef Sender sender
    cdef Receiver receiver
    cdef bint is_closed
    cdef uint64_t maxsize
    cdef bint has_name
    cdef Prospects prospects               # who has it; None: with a name, or the sockets of a pipe tell
    cdef bint is_prospect                  # this object counts there
    cdef int descriptor                    # its signal: an eventfd of the memory; of a pipe the caller's socket
    cdef Notifier notifier                 # of a queue with a name, once this process has asked for a descriptor
    cdef uint64_t sending_thread           # the thread of this process that has the lock; 0: none
    cdef uint64_t receiving_thread
    cdef uint64_t placing_thread
    cdef bint holds_receiving              # `receiving_thread` has the lock beyond one call (channels/half_pipe.pyx)
    cdef uint64_t told_thread              # a thread to which `poll` has returned True, and that has got nothing since;
    cdef uint64_t polling_thread           # and one that may learn it from the descriptor: neither waits for ever

    cdef int use(self, memory) except -1
    cdef int require_made(self) except -1
    cdef int make_ends(self) except -1
    cdef int make_receiver(self) except -1
    cdef bint lock(self, shmring_lock *lock, uint64_t *holder, int64_t timeout_ns) except -1
    cdef void unlock(self, shmring_lock *lock, uint64_t *holder) noexcept
    cdef int have_sender(self) except -1
    cdef int have_receiver(self) except -1
    cdef int settle_get(self) noexcept
    cdef void leave_receiver(self) noexcept
    cdef bint is_at_beginning(self) except -1
    cdef int await_beginning(self, uint64_t head, int64_t timeout_ns) except -1
    cdef object none_left(self)
    cdef void retract(self) noexcept
    cdef void drop_torn(self) noexcept
    cdef void settle(self) noexcept nogil
    cdef bint is_given_up(self, bint drops_torn) except -1
    cdef bint begin_get(self, int64_t timeout_ns) except -1
    cdef void end_get(self) noexcept
    cdef void keep(self, int64_t n) noexcept nogil
    cdef int take_place(self, int64_t timeout_ns) except -1
    cdef void give_place(self) noexcept nogil
    cdef int put_content(self, content, int64_t timeout_ns, const uint32_t *cancelled=*) except -1
    cdef int put_placed(self, content, int64_t timeout_ns, const uint32_t *cancelled) except -1
    cdef int raise_signal(self) except -1
    cdef int send_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef object get_content(self, int64_t timeout_ns)
    cdef int clear_signal(self) except -1
    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns)
    cdef int await_announced(self, uint64_t head) except -1
    cdef int drop_beginning(self) except -1
    cdef object torn_error(self)
    cdef bint await_item(self, int64_t timeout_ns, int64_t deadline_ns) except -1
    cdef uint64_t count(self) except? 0
    cdef int drop_remains(self) except -1
    cdef object full_error(self, uint64_t nbytes)
    cdef bint is_there(self) except -1
    cdef bint is_ready(self) except -1
    cdef bint is_first_ready(self) except -1
    cdef bint is_over(self) noexcept
    cdef int watch(self) except -1
    cdef void leave_prospects(self) noexcept
    cdef int await_news(self) except -1
    cdef int write_signal(self) except -1
    cdef void read_signal(self) noexcept


cdef uint64_t placed_items(Queue target) noexcept nogil


cdef class JoinableQueue(Queue):
    pass
