"""The two ends of a channel of records: values of one dtype, without headers, moved as arrays."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcpy

import queue

import numpy as np

from shmring.core.c.atomics cimport store_relaxed_u64
from shmring.core.base.timeouts cimport checked_count, timeout_to_ns
from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.array_view cimport check_no_mask, converted
from shmring.core.arrays.lease cimport make_lease
from shmring.channels.message_codec cimport LONG_COPY_NBYTES
from shmring.channels.ring_ends cimport DROPPED, RingReceiver, RingSender, WAITS
from shmring.core.ring.blocking cimport GONE, LATE, wake_peer
from shmring.core.ring.end cimport end_part, lend
from shmring.core.ring.spsc cimport ring_commit, ring_peek, ring_ready, ring_release, ring_try_pop, ring_try_push
from shmring.core.sync.backoff cimport deadline_of, left_until
from shmring.core.sync.group cimport READY

from shmring.channels import aio

cnp.import_array()


# ---- sending ---------------------------------------------------------------------------------------------------------

cdef object records_of(object records, object dtype):
    """A contiguous array of a caller's records; `TypeError` if they have another dtype."""
    check_no_mask(records)
    array = records if cnp.PyArray_CheckExact(records) else np.asarray(records)
    if array.dtype != dtype:
        if isinstance(records, np.ndarray) and (array.dtype.names is not None or dtype.names is not None):
            raise TypeError(f"this channel carries {dtype}, not {array.dtype}")
        array = converted(records, dtype)
    if cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_NDIM(array) > 0:
        return array
    return np.ascontiguousarray(array)


cdef object one_record(object record, object dtype):
    """An array of a caller's record; `ValueError` if it is more than one."""
    check_no_mask(record)
    array = converted([record], dtype)
    if array.size != 1:
        raise ValueError(f"{record!r} is {array.size} records of {dtype}, not one: use send_many()")
    return array


@cython.final
@cython.no_gc
cdef class RecordSender(RingSender):
    """The sending end of a channel of records; made by the calls for channels, with a ``dtype``.

    Records are copied without headers: one call and one store of a counter move thousands. Belongs to the process that
    uses it first, and to one thread at a time.
    """

    @cython.critical_section
    def send(self, record, timeout=None):
        """Send one record.

        Parameters
        ----------
        record : record, tuple or number
            A value that NumPy converts to the channel's dtype.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all.

        Returns
        -------
        bool
            True; False if the channel has dropped the record. In a broadcast an int: the number of receivers that get
            it.

        Raises
        ------
        queue.Full
            No room in time. Nothing was sent.
        PeerLostError
            The receiver has closed, or died. On a named channel a new one may come; then sending continues.
        TypeError, ValueError
            Not one record of the channel's dtype. Nothing was sent.
        """
        self.require_idle()
        sent = self.send_many(one_record(record, self._channel.dtype), timeout)
        if not sent and self.policy == WAITS:
            raise self.full()
        return self.reached() if sent else False

    @cython.critical_section
    def try_send(self, record):
        """Send one record if there is room now. Raises as `send`.

        Parameters
        ----------
        record : record, tuple or number
            As in `send`.

        Returns
        -------
        bool
            False if there is no room: nothing was sent.
        """
        self.require_idle()
        return self.send_many(one_record(record, self._channel.dtype), 0) == 1

    @cython.critical_section
    def send_many(self, records, timeout=None):
        """Send the records of an array.

        Parameters
        ----------
        records : array
            Elements of the channel's dtype, or values that NumPy converts to it; sent in their order.
        timeout : float, optional
            Seconds to wait for room for all; None for ever, 0 not at all.

        Returns
        -------
        int
            The number of records sent, from the first one on; fewer than ``records`` has only after the timeout, or if
            the channel drops.

        Raises
        ------
        PeerLostError
            As in `send`. Some may have been sent.
        TypeError, ValueError
            Not records of the channel's dtype. Nothing was sent.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns, pushed
        cdef uint64_t done = 0, count
        cdef const char *source
        cdef int outcome
        self.require_idle()
        array = records_of(records, self._channel.dtype)
        self.require_idle()              # again: making the array may have run Python code that used this end
        count = cnp.PyArray_SIZE(array)
        source = <const char *>cnp.PyArray_DATA(array)
        self.require_receiver()
        deadline_ns = deadline_of(timeout_ns)
        while True:
            pushed = self.push(source + done * self.p.slot_nbytes, count - done)
            done += pushed
            if done == count:
                return done
            outcome = self.await_room(count - done, left_until(deadline_ns, timeout_ns))
            if outcome == LATE:
                return done
            if outcome == DROPPED:         # with the one that is counted already
                self.ring.sent.dropped += count - done - 1
                return done

    async def send_async(self, records):
        """Await room for the records of an array, and send them, in an event loop of asyncio. Raises as `send_many`.

        Parameters
        ----------
        records : array
            As in `send_many`; it must not be changed before all are sent.

        Returns
        -------
        int
            The number of records sent. If the coroutine is cancelled, some may have been sent.
        """
        array = records_of(records, self._channel.dtype)
        done = self.send_many(array, 0)
        while done < array.size and self.policy == WAITS:
            await self._room()
            done += self.send_many(array.reshape(-1)[done:], 0)
        return done

    cdef int64_t push(self, const char *source, uint64_t count) except -1:
        cdef int64_t pushed
        self.unsent_nbytes = count * self.p.slot_nbytes
        if self.unsent_nbytes < LONG_COPY_NBYTES:
            pushed = ring_try_push(&self.p, source, count)
        else:
            if self.policy == WAITS:       # in parts: the receiver begins to read while this end still writes
                count = min(count, max(<uint64_t>1, LONG_COPY_NBYTES // self.p.slot_nbytes))
            self.is_busy = True
            with nogil:
                pushed = ring_try_push(&self.p, source, count)
            self.is_busy = False
        if pushed < 0:
            raise self.corrupt()
        if pushed:
            self.announce(pushed)
        return pushed

    cdef inline void announce(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.ring.sent.messages, self.ring.sent.messages + count)
        if self.p.nheads == 1:
            wake_peer(&self.watch, self.p.tail)
        else:
            self.wake_receivers()

    cdef int await_room(self, uint64_t count, int64_t timeout_ns) except -1:
        """As `make_room`. A sender that waits needs one free slot, and is woken when more are free."""
        cdef uint64_t most = min(count, max(self.p.capacity // 4, <uint64_t>1))
        return self.make_room(1, most, timeout_ns)

    @cython.critical_section
    def reserve(self, count=1, timeout=None):
        """Lease memory of the ring, to write records in place.

        Parameters
        ----------
        count : int
            The most records to lease.
        timeout : float, optional
            Seconds to wait for room for one; None for ever, 0 not at all.

        Returns
        -------
        Lease
            Behaves as a writable array of one or more records (fewer than ``count`` when nearly full, or where the ring
            wraps), of undefined content. It ends with `commit` or `abort`.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; ``queue.Full`` also if the channel drops instead of waiting.
        ValueError
            ``count`` is not positive; or another lease is open.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t most = checked_count(count, INT64_MAX)
        while not self.try_reserve(most):
            if self.make_room(1, 1, left_until(deadline_ns, timeout_ns)) != READY:
                raise self.full()
        return self.lease

    cdef bint try_reserve(self, uint64_t most) except -1:
        """Whether there is a lease; else a slot must be free first."""
        self.require_idle()
        self.require_receiver()
        self.unsent_nbytes = self.p.slot_nbytes
        return lend(self, most, self._channel.dtype, 1)

    @cython.critical_section
    def commit(self, count=None):
        """Send the reserved records, and end the lease.

        Parameters
        ----------
        count : int, optional
            The number of records to send, from the first on; the others are given up. By default all.

        Returns
        -------
        bool
            As `send` returns.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was sent; delete them and call again.
        ValueError
            Nothing is reserved, or fewer records than ``count``.
        """
        cdef uint64_t n = end_part(self, count)
        ring_commit(&self.p, n)
        self.announce(n)
        return self.reached()

    @property
    def dtype(self):
        """The dtype of the records."""
        return self._channel.dtype

    @property
    def capacity(self):
        """The number of records that the ring can hold."""
        return self.ring.nslots


# ---- receiving -------------------------------------------------------------------------------------------------------

@cython.final
@cython.no_gc
cdef class RecordReceiver(RingReceiver):
    """The receiving end of a channel of records; made by the calls for channels, with a ``dtype``.

    Iterating over it gives one record after the other and ends when the sender has closed; `recv_many` returns all
    present records as one array. Belongs to the process that uses it first, and to one thread at a time.
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
            No record came in time.
        EndOfStreamError
            The sender has closed in good order and all its records were received.
        PeerLostError
            The sender has died, and all its records were received. On a named channel a new sender may come.
        """
        return self.recv_many(1, timeout)[0]

    @cython.critical_section
    def recv_many(self, count=None, timeout=None):
        """Receive the records that are there; wait only for the first.

        Parameters
        ----------
        count : int, optional
            The most records; by default all that are there.
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
        out = np.empty(n, self._channel.dtype)
        self.pop(cnp.PyArray_DATA(out), n)
        return out

    def recv_async(self, count=None):
        """Await records, in an event loop of asyncio.

        Parameters
        ----------
        count : int, optional
            The most records; by default all that are there.

        Returns
        -------
        coroutine
            Returns and raises as `recv_many`. If it is cancelled, no record was received.
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
            ``out`` is no such array, or is empty.
        """
        cdef uint64_t n
        if not isinstance(out, np.ndarray) or out.dtype != self._channel.dtype:
            raise TypeError(f"out must be an array of {self._channel.dtype}")
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
            The most records; by default all that are there.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Lease
            Behaves as a read-only array of one or more records (all that are there, up to where the ring wraps). It
            ends with `release`; arrays and views taken from it must be gone by then.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError
            As in `recv`.
        ValueError
            ``count`` is not positive; or another lease is open.
        """
        cdef uint64_t n = self.await_records(checked_count(count, INT64_MAX), timeout_to_ns(timeout))
        if self.checks_copies:
            self.lend_copy(n)
        else:
            lend(self, n, self._channel.dtype, 1)
        return self.lease

    cdef int lend_copy(self, uint64_t most) except -1:
        """As `lend`, where the sender may disconnect this end."""
        cdef int64_t count
        cdef const char *address = ring_peek(&self.c, most, &count)
        records = np.empty(max(count, <int64_t>0), self._channel.dtype)
        if count > 0:
            memcpy(cnp.PyArray_DATA(records), address, cnp.PyArray_NBYTES(records))
        if self.is_cut_off():
            raise self.peer_lost()
        if count < 0:
            raise self.corrupt()
        self.lease = make_lease(self, records, <char *>cnp.PyArray_DATA(records), records.dtype, (count,), True)
        return 0

    @cython.critical_section
    def release(self, count=None):
        """End the lease of the peeked records, which are then received.

        Parameters
        ----------
        count : int, optional
            The number of records received, from the first on; the others stay in the ring. By default all.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was released; delete them and call again.
        ValueError
            Nothing is peeked, or fewer records than ``count``.
        """
        cdef uint64_t n = end_part(self, count)
        ring_release(&self.c, n)
        self.announce(n)

    cdef bint has_next(self, int64_t deadline_ns) except -1:
        cdef int64_t ready = ring_ready(&self.c, 1)
        if self.is_cut_off():
            return False
        if ready < 0:
            raise self.corrupt()
        return ready > 0

    cdef uint64_t await_records(self, uint64_t most, int64_t timeout_ns) except 0:
        """Wait for records; return their number, at most ``most``."""
        cdef int64_t ready, deadline_ns = 0
        cdef int outcome
        self.require_idle()
        most = min(most, self.c.capacity)
        while True:
            ready = ring_ready(&self.c, most)
            if self.checks_copies and self.is_cut_off():
                raise self.peer_lost()
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
        if self.checks_copies and self.is_cut_off():
            raise self.peer_lost()
        self.announce(n)
        return 0

    cdef inline void announce(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.c.own.received.messages, self.c.own.received.messages + count)
        wake_peer(&self.watch, self.c.head)

    @property
    def dtype(self):
        """The dtype of the records."""
        return self._channel.dtype

    @property
    def capacity(self):
        """The number of records that the ring can hold."""
        return self.ring.nslots
