"""The receiving end of a channel of records: values of one dtype, without headers, moved as arrays."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

import queue

import numpy as np

from shmring._c.atomics cimport store_relaxed_u64
from shmring.base.timeouts cimport checked_count, checked_part, int_or_none, timeout_to_ns
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.lease cimport make_lease
from shmring.channels.ring_ends cimport RingReceiver
from shmring.channels.message_codec cimport LONG_COPY_NBYTES
from shmring.ring.blocking cimport GONE, LATE, wake_peer
from shmring.ring.overwrite cimport claim_next
from shmring.ring.spsc cimport ring_peek, ring_ready, ring_release, ring_try_pop
from shmring.sync.backoff cimport deadline_of, left_until

from shmring.channels import aio

cnp.import_array()


@cython.final
@cython.no_gc
cdef class RecordReceiver(RingReceiver):
    """The receiving end of a channel of records; made by the calls for channels, with a ``dtype``.

    Iterating over it gives one record after the other and ends when the sender has closed; `recv_many` returns all
    that are there as one array. Belongs to the process that uses it first, and to one thread at a time.
    """

    @cython.critical_section
    def recv(self, timeout=None):
        """Receive one record.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        numpy.void or another NumPy scalar
            It owns its memory.

        Raises
        ------
        queue.Empty
            Nothing has come in time.
        EndOfStreamError
            The sender has closed in good order and all that it sent was received.
        PeerLostError
            The sender has died, and all that it had sent was received. On a named channel a new one may come.
        """
        return self.recv_many(1, timeout)[0]

    @cython.critical_section
    def recv_many(self, count=None, timeout=None):
        """Receive the records that are there; wait only for the first.

        Parameters
        ----------
        count : int, optional
            How many at most.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        numpy.ndarray
            One record or more; it owns its memory.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError
            As in `recv`.
        ValueError
            ``count`` is not positive.
        """
        cdef uint64_t n = self.await_records(checked_count(count, INT64_MAX), timeout_to_ns(timeout))
        out = np.empty(n, self.channel.dtype)
        self.pop(cnp.PyArray_DATA(out), n)
        return out

    def recv_async(self, count=None):
        """Await records, in an event loop of asyncio.

        Parameters
        ----------
        count : int, optional
            How many at most.

        Returns
        -------
        coroutine
            Of what `recv_many` returns; raises as it does. Cancelled, it has received nothing.
        """
        return aio.when_ready(self, lambda timeout: self.recv_many(count, timeout))

    @cython.critical_section
    def recv_into(self, out, timeout=None):
        """Receive the records that are there into the beginning of an array; wait only for the first.

        Parameters
        ----------
        out : numpy.ndarray
            Writable, contiguous, of the channel's dtype.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        int
            The number of records received.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError
            As in `recv`.
        TypeError, ValueError
            Not such an array, or an empty one.
        """
        cdef uint64_t n
        if not isinstance(out, np.ndarray) or out.dtype != self.channel.dtype:
            raise TypeError(f"out must be an array of {self.channel.dtype}")
        if not (out.flags.c_contiguous and out.flags.writeable) or out.size == 0:
            raise ValueError("out must be contiguous, writable, and not empty")
        n = self.await_records(out.size, timeout_to_ns(timeout))
        self.pop(cnp.PyArray_DATA(out), n)
        return n

    @cython.critical_section
    def peek(self, count=None, timeout=None):
        """Lease records where they lie, to read them in place.

        Parameters
        ----------
        count : int, optional
            How many at most.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Lease
            Behaves as a read-only array of one or more records (as many as are there, and lie in one piece). It ends
            with `release`; arrays and views taken from it must be gone by then.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError
            As in `recv`.
        ValueError
            ``count`` is not positive; or another lease is open.
        """
        cdef int64_t found
        cdef uint64_t n = self.await_records(checked_count(count, INT64_MAX), timeout_to_ns(timeout))
        cdef const char *address = ring_peek(&self.c, n, &found)
        self.lease = make_lease(self.memory, <char *>address, self.channel.dtype, (found,), True)
        return self.lease

    @cython.critical_section
    def release(self, count=None):
        """End the lease of the records that were peeked, which are then received.

        Parameters
        ----------
        count : int, optional
            Only the first so many records; the others come again.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was released; delete them and call again.
        ValueError
            Nothing is peeked, or less than ``count``.
        """
        cdef uint64_t n
        count = int_or_none(count)
        self.require_lease("peeked")
        n = checked_part(count, self.c.peeked)
        self.end_lease()
        ring_release(&self.c, n)
        self.announce(n)

    cdef bint has_next(self) except -1:
        cdef int64_t ready = claim_next(&self.c) if self.claims else ring_ready(&self.c, 1)
        self.drop_claim()
        if ready < 0:
            raise self.corrupt()
        return ready > 0

    cdef uint64_t await_records(self, uint64_t most, int64_t timeout_ns) except 0:
        """How many may be read, at most ``most``; they are claimed."""
        cdef int64_t ready, deadline_ns = 0
        cdef int outcome
        self.require_idle()
        most = min(most, self.c.capacity)
        while True:
            ready = claim_next(&self.c) if self.claims else ring_ready(&self.c, most)
            if ready < 0:
                raise self.corrupt()
            if ready:
                return min(most, <uint64_t>ready)
            if deadline_ns == 0:           # records that are there need no look at the clock
                deadline_ns = deadline_of(timeout_ns)
            outcome = self.wait_for_tail(left_until(deadline_ns, timeout_ns))
            if outcome == LATE:
                raise queue.Empty
            if outcome == GONE:
                raise self.stream_over()

    cdef int pop(self, void *to, uint64_t n) except -1:
        if n * self.c.slot_nbytes < LONG_COPY_NBYTES:
            ring_try_pop(&self.c, to, n)
        else:
            self.is_busy = True
            with nogil:
                ring_try_pop(&self.c, to, n)
            self.is_busy = False
        self.announce(n)
        return 0

    cdef inline void announce(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.c.own.received.messages, self.c.own.received.messages + count)
        wake_peer(&self.watch, self.c.head)

    @property
    def dtype(self):
        """The dtype of the records."""
        return self.channel.dtype

    @property
    def capacity(self):
        """How many records have room."""
        return self.ring.nslots
