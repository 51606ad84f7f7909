"""The sending end of a channel of records: values of one dtype, without headers, moved as arrays."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

import queue

import numpy as np

from shmring._c.atomics cimport store_relaxed_u64
from shmring.base.timeouts cimport checked_count, checked_part, int_or_none, timeout_to_ns
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport check_no_mask
from shmring.arrays.lease cimport make_lease
from shmring.channels.endpoint cimport DROPPED, deadline_of, is_gone, left_until
from shmring.channels.ring_ends cimport RingSender
from shmring.channels.format cimport DROPS_OLDEST, WAITS
from shmring.channels.message_codec cimport LONG_COPY_NBYTES
from shmring.ring.blocking cimport GONE, LATE, wake_peer
from shmring.ring.overwrite cimport overwrite_slots
from shmring.ring.spsc cimport ring_commit, ring_free, ring_reserve, ring_try_push
from shmring.sync.group cimport READY

from shmring.channels import aio

cnp.import_array()


cdef object records_of(object records, object dtype):
    """A contiguous array of the records of a caller; `TypeError` if they are of another dtype."""
    check_no_mask(records)
    array = records if cnp.PyArray_CheckExact(records) else np.asarray(records)
    if array.dtype != dtype:
        if isinstance(records, np.ndarray) and (array.dtype.names is not None or dtype.names is not None):
            raise TypeError(f"this channel carries {dtype}, not {array.dtype}")
        array = np.array(records, dtype)
    if cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_NDIM(array) > 0:
        return array
    return np.ascontiguousarray(array)


cdef object one_record(object record, object dtype):
    """An array of one record of a caller; `ValueError` if it is more than one."""
    check_no_mask(record)
    array = np.array([record], dtype)
    if array.size != 1:
        raise ValueError(f"{record!r} is {array.size} records of {dtype}, not one: use send_many()")
    return array


@cython.final
@cython.no_gc
cdef class RecordSender(RingSender):
    """The sending end of a channel of records; made by `shmring.channel` and `shmring.open_channel` with a ``dtype``.

    Records go as they lie in memory, without headers: one call and one announcement move thousands. Belongs to the
    process that uses it first, and to one thread at a time.
    """

    @cython.critical_section
    def send(self, record, timeout=None):
        """Send one record.

        Parameters
        ----------
        record : record, tuple or number
            What NumPy converts to the channel's dtype.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all.

        Returns
        -------
        bool
            True; False if the channel drops what does not fit, and this record did not.

        Raises
        ------
        queue.Full
            No room in time.
        PeerLostError
            The receiver has closed, or died. On a named channel a new one may come, and sending goes on.
        TypeError, ValueError
            Not such a record. Nothing was sent.
        """
        self.require_idle()
        sent = self.send_many(one_record(record, self.channel.dtype), timeout)
        if not sent and not self.drops:
            raise queue.Full
        return sent == 1

    @cython.critical_section
    def try_send(self, record):
        """Send one record if there is room for it now. Raises as `send`.

        Parameters
        ----------
        record : record, tuple or number
            As in `send`.

        Returns
        -------
        bool
            False if there is no room; nothing was sent then.
        """
        self.require_idle()
        return self.send_many(one_record(record, self.channel.dtype), 0) == 1

    @cython.critical_section
    def send_many(self, records, timeout=None):
        """Send records, as many as there are, in as few steps as there is room.

        Parameters
        ----------
        records : array
            Of the channel's dtype, or what NumPy converts to it; sent in the order of its elements.
        timeout : float, optional
            Seconds to wait for room for all; None for ever, 0 not at all.

        Returns
        -------
        int
            How many went in, from the first one on (with ``drop_oldest``: to the last one); fewer than there are only
            if time ran out, or the channel drops.

        Raises
        ------
        PeerLostError
            As in `send`. Some may have been sent.
        TypeError, ValueError
            Not such records. Nothing was sent.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns, pushed
        cdef uint64_t done = 0, count
        cdef const char *source
        self.require_idle()
        array = records_of(records, self.channel.dtype)
        self.require_idle()              # again: making the array may have run Python code, which used this end
        count = cnp.PyArray_SIZE(array)
        source = <const char *>cnp.PyArray_DATA(array)
        if is_gone(self.watch.other):
            raise self.peer_lost()
        if self.drops:
            return self.push_or_drop(source, count)
        deadline_ns = deadline_of(timeout_ns)
        while True:
            pushed = self.push(source + done * self.p.slot_nbytes, count - done)
            done += pushed
            if done == count:
                return done
            if self.wait_for_room(min(count - done, max(self.p.capacity // 4, <uint64_t>1)),
                                  left_until(deadline_ns, timeout_ns)) == LATE:
                return done

    async def send_async(self, records):
        """Await room for records, as many as there are, and send them, in an event loop of asyncio.

        Parameters
        ----------
        records : array
            As in `send_many`; it must not be changed before all are sent.

        Returns
        -------
        int
            How many went in. Cancelled, some may have been sent. Raises as `send_many`.
        """
        array = records_of(records, self.channel.dtype)
        done = self.send_many(array, 0)
        while done < array.size and self.drops == WAITS:
            await aio.readable(self)
            done += self.send_many(array.reshape(-1)[done:], 0)
        return done

    cdef int64_t push(self, const char *source, uint64_t count) except -1:
        cdef int64_t pushed
        if count * self.p.slot_nbytes < LONG_COPY_NBYTES:
            pushed = ring_try_push(&self.p, source, count)
        else:
            self.is_busy = True
            with nogil:
                # In parts, so that the receiver begins to read while this end still writes.
                pushed = ring_try_push(&self.p, source,
                                       min(count, max(<uint64_t>1, LONG_COPY_NBYTES // self.p.slot_nbytes)))
            self.is_busy = False
        if pushed < 0:
            raise self.corrupt()
        if pushed:
            self.announce(pushed)
        return pushed

    cdef inline void announce(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.ring.sent.messages, self.ring.sent.messages + count)
        wake_peer(&self.watch, self.p.tail)

    cdef int wait_for_room(self, uint64_t nslots, int64_t timeout_ns) except -1:
        """READY: one slot is free, ``nslots`` if it had to sleep; or LATE."""
        cdef uint64_t room_at = self.p.tail + 1 - self.p.capacity
        if ring_free(&self.p, 1) > 0:
            return READY
        cdef int outcome = self.wait_for(&self.ring.head, room_at, room_at + nslots - 1, timeout_ns)
        if outcome == GONE:
            raise self.peer_lost()
        return outcome

    cdef object push_or_drop(self, const char *source, uint64_t count):
        cdef uint64_t skipped = 0
        cdef int64_t pushed
        if self.drops == DROPS_OLDEST:
            skipped = max(count, self.p.capacity) - self.p.capacity      # older than what they would make room for
            if overwrite_slots(&self.p, count - skipped, &self.ring.sent.overwritten) < 0:
                raise self.corrupt()
            source += skipped * self.p.slot_nbytes
        pushed = ring_try_push(&self.p, source, self.clip(count - skipped))
        if pushed < 0:
            raise self.corrupt()
        self.announce(pushed)
        self.ring.sent.dropped += count - pushed
        return pushed

    cdef inline uint64_t clip(self, uint64_t count) noexcept:
        """How many may be asked for: a producer that moves head must not look for more than it made room for."""
        cdef uint64_t known = self.p.capacity - (self.p.tail - self.p.cached_head)
        return min(count, known) if self.drops == DROPS_OLDEST else count

    @cython.critical_section
    def reserve(self, count=1, timeout=None):
        """Lease memory of the ring, to write records in place.

        Parameters
        ----------
        count : int
            How many records at most.
        timeout : float, optional
            Seconds to wait for room for one; None for ever, 0 not at all.

        Returns
        -------
        Lease
            Behaves as a writable array of one or more records (fewer than asked for when nearly full, or where the ring
            wraps), of undefined content. It ends with `commit` or `abort`.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; ``queue.Full`` also if the channel drops what does not fit.
        ValueError
            ``count`` is not positive; or another lease is open.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int outcome
        while True:
            outcome = self.try_reserve(count)
            if outcome == READY:
                return self.lease
            if outcome == DROPPED or self.wait_for_room(1, left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Full

    cdef int try_reserve(self, object count) except -1:
        """READY: there is a lease; LATE: one slot must be free first; or DROPPED."""
        cdef int64_t found = 0
        cdef char *address
        cdef uint64_t most = checked_count(count, INT64_MAX)
        self.require_idle()
        most = min(most, self.p.capacity)
        if is_gone(self.watch.other):
            raise self.peer_lost()
        if self.drops == DROPS_OLDEST:
            if overwrite_slots(&self.p, most, &self.ring.sent.overwritten) < 0:
                raise self.corrupt()
        address = ring_reserve(&self.p, self.clip(most), &found)
        if found < 0:
            raise self.corrupt()
        if address == NULL:
            if self.drops == WAITS:
                return LATE
            self.ring.sent.dropped += 1
            return DROPPED
        self.lease = make_lease(self.mapping, address, self.channel.dtype, (found,), False)
        return READY

    @cython.critical_section
    def commit(self, count=None):
        """Send what was reserved, and end the lease.

        Parameters
        ----------
        count : int, optional
            Only the first so many records; the others are given up.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was sent; delete them and call again.
        ValueError
            Nothing is reserved, or less than ``count``.
        """
        cdef uint64_t n
        count = int_or_none(count)
        self.require_lease("reserved")
        n = checked_part(count, self.p.reserved)
        self.end_lease()
        ring_commit(&self.p, n)
        self.announce(n)

    @property
    def dtype(self):
        """The dtype of the records."""
        return self.channel.dtype

    @property
    def capacity(self):
        """How many records have room."""
        return self.ring.nslots
