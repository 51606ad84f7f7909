"""One direction of a pipe between processes: a queue, and a socket that marks which processes have its ends.

The items go through the ring of the queue. The socket is one of a pair, whose kernel object counts the processes at
each end, however they go: so a wait at either end returns when no process is left at the other. A byte in it, the
*signal*, makes the descriptor of the receiving end readable. The sender writes it before it puts an item, unless it is
there; the receiver reads it once the ring is empty. As long as no process has asked for the descriptor the receiver
leaves it there, so neither end makes a system call for it.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from libc.errno cimport EPIPE, ECONNRESET, errno
from libc.stdint cimport int64_t

import os

from shmring._c.atomics cimport full_fence, load_acquire_u64, load_relaxed_u32, store_relaxed_u32
from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.queue cimport GLANCE_NS, LOCK_LATE, Queue, lock_release, lock_within
from shmring.ring.blocking cimport LATE, hangs_up, wake_at_once
from shmring.sync.backoff cimport before_wake, deadline_of, left_until

from shmring.channels.queue import adopted
from shmring.channels.queue_memory import QueueMemory, create_queue
from shmring.errors import ClosedError, PeerLostError, SegmentError
from shmring.objects.codec import Dumped, parts_of

cdef extern from "<sys/socket.h>" nogil:
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL
    ssize_t send(int descriptor, const void *at, size_t nbytes, int flags)
    ssize_t recv(int descriptor, void *at, size_t nbytes, int flags)

cdef enum:
    MOST_SIGNALS = 64            # bytes in the socket: senders that died while they wrote one may have left several


def create_half(int capacity_nbytes):
    """Memory for one direction of a pipe."""
    return create_queue(capacity_nbytes, 0, True)


def open_half(memory, int descriptor):
    """One direction of a pipe, for the process that has ``descriptor``, an end of its socket pair.

    The descriptor stays the caller's, which closes it first and this then. `SegmentError` if the memory is none.
    """
    cdef HalfPipe half
    if not isinstance(memory, QueueMemory):
        raise SegmentError(f"this is no memory of a pipe: {memory!r}")
    half = adopted(HalfPipe, memory)
    half.descriptor = descriptor
    half.make_ends()
    return half


@cython.final
@cython.no_gc
cdef class HalfPipe(Queue):
    """One direction of a pipe. Any number of processes and threads may send, and receive."""

    cdef int descriptor

    def __cinit__(self):
        self.descriptor = -1

    @property
    def channel(self):
        """Its memory, which pickles to other processes; the descriptor goes on another way."""
        return self.memory

    cdef int make_ends(self) except -1:
        Queue.make_ends(self)
        self.sender.watch.peer_socket = self.descriptor
        return 0

    cdef int make_receiver(self) except -1:
        Queue.make_receiver(self)
        self.receiver.watch.peer_socket = self.descriptor
        return 0

    # ---- sending ----

    def send(self, content, timeout=None):
        """Send bytes, a buffer of bytes, or what `objects.codec.dump` made.

        Raises ``queue.Full`` when time is over, ``BrokenPipeError`` when no process is left that could receive.
        """
        try:
            self.put_content(content, timeout_to_ns(timeout))
        except PeerLostError:
            raise broken() from None
        except ClosedError as error:
            raise OSError("handle is closed") from error

    cdef int raise_signal(self) except -1:
        # The word is stored with `sending` held only. The byte is written before the item is committed, so
        # behind a descriptor that is not readable the ring is empty.
        if load_relaxed_u32(&self.q.is_signalled):
            if hangs_up(self.descriptor):
                raise broken()
            return 0
        if send(self.descriptor, b"\0", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 and errno in (EPIPE, ECONNRESET):
            raise broken()
        store_relaxed_u32(&self.q.is_signalled, 1)
        return 0

    # ---- receiving ----

    def recv(self, timeout=None):
        """Receive what `send` has sent, as bytes or as a `Dumped` of views.

        Raises ``queue.Empty`` when time is over, ``EOFError`` when no process is left that could send.
        """
        try:
            item = self.get_content(timeout_to_ns(timeout))
        except PeerLostError:
            raise EOFError from None
        except ClosedError as error:
            raise OSError("handle is closed") from error
        if PyBytes_CheckExact(item):
            return item
        return Dumped(*parts_of(item.content, item.stream_nbytes))

    def poll(self, timeout=None):
        """Whether there is something to receive, or the end of all, within ``timeout`` seconds."""
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns
        cdef int outcome
        if self.is_there():
            return True
        if timeout_ns == 0:
            return hangs_up(self.descriptor) or self.is_there()
        deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.receiving, &self.receiving_thread, timeout_ns):
            return self.is_there()
        try:
            self.have_receiver()
            outcome = self.receiver.wait_for(&self.ring.tail, self.receiver.c.head + 1, self.receiver.c.head + 1,
                                             left_until(deadline_ns, timeout_ns))
            return outcome != LATE
        finally:
            self.unlock(&self.q.receiving, &self.receiving_thread)

    cdef bint is_there(self) except -1:
        self.require_made()
        return (self.receiver.target is not None or self.receiver.kept is not None
                or load_acquire_u64(&self.ring.tail) != load_acquire_u64(&self.ring.heads[0].head))

    def watch(self):
        """From now on the descriptor is readable exactly while there is something to receive, or the end of all."""
        self.require_made()
        store_relaxed_u32(&self.q.is_polled, 1)
        full_fence()        # another receiver releases its item, and then loads the word
        self.clear_signal()

    cdef int clear_signal(self) except -1:
        cdef char[MOST_SIGNALS] bytes_in
        cdef int outcome
        if not load_relaxed_u32(&self.q.is_polled) or not load_relaxed_u32(&self.q.is_signalled) or self.is_there():
            return 0
        outcome = lock_within(&self.q.sending, GLANCE_NS)
        if outcome == LOCK_LATE or outcome < 0:        # an item is about to come
            return 0
        # No sender is between its byte and its item.
        if not self.is_there():
            recv(self.descriptor, bytes_in, MOST_SIGNALS, MSG_DONTWAIT)
            store_relaxed_u32(&self.q.is_signalled, 0)
        lock_release(&self.q.sending)
        return 0

    # ---- leaving ----

    def close(self):
        """Leave, after the descriptor was closed: wake processes that wait at the other end."""
        if self.is_closed or self.q == NULL:
            return
        self.is_closed = True
        before_wake()
        wake_at_once(&self.ring.heads[0].consumer.waiter.asleep, &self.ring.heads[0].consumer.waiter.wake)
        wake_at_once(&self.ring.heads[0].producer_asleep, &self.ring.producer.waiter.wake)


cdef object broken():
    return BrokenPipeError(EPIPE, os.strerror(EPIPE))
