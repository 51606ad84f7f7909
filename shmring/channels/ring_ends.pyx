"""The sending and the receiving end of one ring: what ends of messages and of records have in common."""

cimport cython
from libc.stdint cimport int64_t

import queue

from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.endpoint cimport deadline_of, left_until
from shmring.channels.format cimport DROPS_OLDEST
from shmring.ring cimport overwrite
from shmring.ring.blocking cimport GONE, wake_peer_at_once
from shmring.ring.spsc cimport (END_CLOSED, ring_abort, ring_attach_consumer, ring_attach_producer,
                                ring_close_consumer, ring_close_producer, ring_end_state)
from shmring.sync.group cimport READY

from shmring.errors import EndOfStreamError


@cython.no_gc
cdef class RingSender(RingEndpoint):
    """The sending end of one ring."""

    cdef int attach(self, bint again) noexcept:
        return ring_attach_producer(&self.p, self.ring, self.ring_nbytes, again, not self.owned_by_lock)

    cdef void leave(self, bint in_good_order) noexcept:
        if not self.owned_by_lock:
            ring_close_producer(&self.p, in_good_order)
            wake_peer_at_once(&self.watch)

    @cython.critical_section
    def abort(self):
        """Give up what was reserved, and end the lease; nothing is sent. Raises as `commit` does."""
        self.require_lease("reserved")
        self.end_lease()
        ring_abort(&self.p)

    @property
    @cython.critical_section
    def sent_count(self):
        """Messages, or records, ever sent into this channel."""
        return self.ring.sent.messages


@cython.no_gc
cdef class RingReceiver(RingEndpoint):
    """The receiving end of one ring. Iterating over it ends when the sender has closed."""

    cdef int attach(self, bint again) noexcept:
        return ring_attach_consumer(&self.c, self.ring, self.ring_nbytes, again, not self.owned_by_lock)

    cdef void leave(self, bint in_good_order) noexcept:
        if not self.owned_by_lock:
            self.give_up_claim()
            ring_close_consumer(&self.c, in_good_order)
            wake_peer_at_once(&self.watch)

    cdef bint has_next(self) except -1:
        """Whether a call would find something to return, or an error to raise, without waiting."""
        raise NotImplementedError

    cdef int wait_for_tail(self, int64_t timeout_ns) except -1:
        return self.wait_for(&self.ring.tail, self.c.head + 1, self.c.head + 1, timeout_ns)

    cdef void give_up_claim(self) noexcept:
        if self.drops == DROPS_OLDEST and self.lease is None:
            overwrite.give_up_claim(&self.c)

    cdef object stream_over(self):
        """The error that nothing more will come."""
        if ring_end_state(self.watch.other) == END_CLOSED:
            return EndOfStreamError(f"the sender of {self.channel.title} has closed it, and all was received")
        return self.peer_lost()

    def try_recv(self, default=None):
        """Receive the next message, or record, if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            What to return if there is none.

        Returns
        -------
        object
            As `recv` returns.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    @cython.critical_section
    def poll(self, timeout=0):
        """Whether `recv` would not have to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True at the end of the stream, and if the sender is lost: `recv` then raises.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        self.require_idle()
        while not self.has_next():
            outcome = self.wait_for_tail(left_until(deadline_ns, timeout_ns))
            if outcome != READY:
                return outcome == GONE
        return True

    @property
    @cython.critical_section
    def ended(self):
        """Whether the sender has closed in good order and all was received, so that `recv` would raise that."""
        self.require_idle()
        return ring_end_state(self.watch.other) == END_CLOSED and not self.has_next()

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    @property
    @cython.critical_section
    def received_count(self):
        """Messages, or records, ever received from this channel."""
        return self.ring.received.messages
