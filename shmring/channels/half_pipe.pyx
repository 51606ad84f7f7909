"""One direction of a pipe between processes: a queue, and a socket that marks which processes have its ends.

The items go through the ring of the queue. The socket is one of a pair, whose kernel object counts the processes at
each end, however they end: so a wait at either end returns when no process is left at the other. A byte in it is the
signal of the queue, which makes the descriptor of the receiving end readable.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from libc.stdint cimport int64_t
from libc.errno cimport ECONNRESET, EPIPE, errno

import os

from shmring.core.c.atomics cimport load_relaxed_u32
from shmring.core.base.timeouts cimport forgiving_timeout_to_ns, timeout_to_ns
from shmring.channels.queue cimport JoinableQueue, Queue, placed_items
from shmring.core.ring.blocking cimport CLOSED_SOCKET, hangs_up, wake_at_once
from shmring.core.sync.backoff cimport before_wake

from shmring.channels.queue import adopted
from shmring.channels.memory import QueueMemory, create_queue
from shmring.errors import ClosedError, PeerLostError, SegmentError
from shmring.core.objects.codec import Dumped, parts_of

cdef extern from "<sys/socket.h>" nogil:
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL
    ssize_t send(int descriptor, const void *at, size_t nbytes, int flags)
    ssize_t recv(int descriptor, void *at, size_t nbytes, int flags)

cdef enum:
    MOST_SIGNALS = 64            # bytes in the socket: senders that died while they wrote one may have left several


def create_half(capacity_nbytes, maxsize=0):
    """Memory for one direction of a pipe, with room for ``maxsize`` items; 0: any number."""
    return create_queue(capacity_nbytes, maxsize, True)


def open_half(memory, int descriptor):
    """One direction of a pipe, for the process that has ``descriptor``, an end of its socket pair.

    The caller keeps the descriptor, and closes it between `detach` and `close`. `SegmentError` if ``memory`` is not a
    pipe's.
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
cdef class HalfPipe(JoinableQueue):
    """One direction of a pipe. Any number of processes and threads may send, and receive."""

    @property
    def channel(self):
        """Its memory, which can be pickled for other processes; the caller passes the descriptor on."""
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
        """Send bytes, a buffer of bytes, or a `Dumped`.

        Raises ``queue.Full`` after the timeout, ``BrokenPipeError`` when no process is left that could receive.
        """
        try:
            self.put_content(content, timeout_to_ns(timeout))
        except (PeerLostError, ClosedError):
            raise self.closed_error() or broken() from None

    cdef int send_placed(self, content, int64_t timeout_ns) except -1:
        """`send` of an item that has its place of `maxsize`, or needs none."""
        try:
            return self.put_placed(content, timeout_ns, NULL)
        except (PeerLostError, ClosedError):
            raise self.closed_error() or broken() from None

    cdef int raise_signal(self) except -1:
        if load_relaxed_u32(&self.q.signal) and self.is_over():
            raise broken()
        return Queue.raise_signal(self)

    cdef int write_signal(self) except -1:
        if send(self.descriptor, b"\0", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 and errno in (EPIPE, ECONNRESET):
            raise broken()
        return 0

    cdef void read_signal(self) noexcept:
        cdef char[MOST_SIGNALS] bytes_in
        recv(self.descriptor, bytes_in, MOST_SIGNALS, MSG_DONTWAIT)

    cdef bint is_over(self) noexcept:
        return hangs_up(self.descriptor)

    # ---- receiving ----

    def recv(self, timeout=None):
        """Receive the next item of `send`, as bytes or as a `Dumped` of views.

        Raises ``queue.Empty`` after the timeout, ``EOFError`` when no process is left that could send.
        """
        try:
            item = self.get_content(timeout_to_ns(timeout))
        except (PeerLostError, ClosedError):
            raise self.closed_error() or EOFError from None
        if PyBytes_CheckExact(item):
            return item
        dumped = Dumped(*parts_of(item.block))
        dumped.flight = item.flight
        return dumped

    cdef object closed_error(self):
        """The error after this process, perhaps another thread, has closed the connection during the call, or None."""
        return OSError("handle is closed") if self.is_closed else None

    cdef object torn_error(self):
        return ConnectionResetError(ECONNRESET, "the sender of a message ended in the middle of it")

    # ---- the lock of the receiving end, for code that knows the standard library's queues ----

    def hold_receiving(self, block=True, timeout=None):
        """Take the lock, as `multiprocessing.Lock.acquire`: until `let_go_receiving` only this thread receives."""
        self.require_made()
        if not self.lock(&self.q.receiving, &self.receiving_thread, forgiving_timeout_to_ns(timeout) if block else 0):
            return False
        self.holds_receiving = True
        return True

    def let_go_receiving(self):
        """Release the lock, which any thread may have taken."""
        if not self.holds_receiving:
            raise ValueError("the lock was not taken by this process")
        self.holds_receiving = False
        self.unlock(&self.q.receiving, &self.receiving_thread)

    def qsize(self):
        """The number of items, those included that processes keep until there is room."""
        self.require_made()
        return placed_items(self)

    # ---- leaving ----

    def detach(self):
        """Forget the descriptor, which the caller is about to close: its number may then be another file's."""
        if self.q != NULL:
            self.is_closed = True
            self.descriptor = self.sender.watch.peer_socket = self.receiver.watch.peer_socket = CLOSED_SOCKET

    def close(self):
        """Wake processes that wait at the other end, and threads of this one: the descriptor is closed."""
        if self.q == NULL:
            return
        before_wake()
        wake_at_once(&self.ring.heads[0].consumer.waiter.asleep, &self.ring.heads[0].consumer.waiter.wake)
        wake_at_once(&self.ring.heads[0].producer_asleep, &self.ring.producer.waiter.wake)


cdef object broken():
    return BrokenPipeError(EPIPE, os.strerror(EPIPE))
