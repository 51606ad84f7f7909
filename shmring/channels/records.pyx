"""The two ends of a channel of records: equal, without headers, moved as arrays."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

import queue

import numpy as np

cimport numpy as cnp

from shmring._c.atomics cimport store_relaxed_u64
from shmring.channels.endpoint cimport DROPS_OLDEST, WAITS, End, is_gone, timeout_of
from shmring.arrays.lease cimport make_lease
from shmring.ring.overwrite cimport claim_next, give_up_claim, overwrite_slots
from shmring.ring.spsc cimport (END_CLOSED, consumer_t, producer_t, ring_abort, ring_attach_consumer,
                           ring_attach_producer, ring_close_consumer, ring_close_producer, ring_commit,
                           ring_end_state, ring_free, ring_peek,
                           ring_ready, ring_release, ring_reserve, ring_try_pop, ring_try_push)
from shmring.ring.blocking cimport GONE, LATE, wake_peer, wake_peer_at_once
from shmring.sync.backoff cimport now_ns
from shmring.sync.group cimport READY

from shmring.channels import aio as asynchronous
from shmring.errors import EndOfStreamError

cnp.import_array()

cdef enum:
    LONG_COPY_NBYTES = 64 << 10    # from this size on the GIL is let go of while copying


@cython.final
@cython.no_gc
cdef class RecordSender(End):
    """The sending end of a channel of records; made by `shmring.channel` and `shmring.open_channel` with a ``dtype``.

    Records go as they lie in memory, without headers: one call and one announcement move thousands. Belongs to the
    process that uses it first, and to one thread at a time.
    """

    cdef producer_t p

    cdef int attach(self, bint again) noexcept:
        return ring_attach_producer(&self.p, self.ring, self.ring_nbytes, again)

    cdef void leave(self, bint in_good_order) noexcept:
        ring_close_producer(&self.p, in_good_order)
        wake_peer_at_once(&self.watch)

    def send(self, record, timeout=None):
        """Send one record.

        Parameters
        ----------
        record : record, tuple or number
            What NumPy makes a value of the channel's dtype.
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
            It is no such record. Nothing was sent.
        """
        sent = self.send_many(np.array([record], self.channel.dtype), timeout)
        if not sent and not self.drops:
            raise queue.Full
        return sent == 1

    def try_send(self, record):
        """Send one record if there is room for it now.

        Parameters
        ----------
        record : record, tuple or number
            As in `send`.

        Returns
        -------
        bool
            False if there is no room; nothing was sent then.

        Raises
        ------
        PeerLostError, TypeError, ValueError
            As in `send`.
        """
        return self.send_many(np.array([record], self.channel.dtype), 0) == 1

    def send_many(self, records, timeout=None):
        """Send records, as many as there are, in as few steps as there is room.

        Parameters
        ----------
        records : array
            Of the channel's dtype, or what NumPy makes one; in the order of its elements.
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
            No such records. Nothing was sent.
        """
        cdef int64_t timeout_ns = timeout_of(timeout), started, left
        cdef uint64_t done = 0, count
        cdef int64_t pushed
        cdef const char *source
        self.require_idle()
        array = self.array_of(records)
        count = cnp.PyArray_SIZE(array)
        source = <const char *>cnp.PyArray_DATA(array)
        if is_gone(self.watch.other):
            raise self.lost()
        if self.drops:
            return self.push_or_drop(source, count)
        started = now_ns() if timeout_ns > 0 else 0
        while True:
            pushed = self.push(source + done * self.p.slot_nbytes, count - done)
            done += pushed
            if done == count:
                return done
            left = timeout_ns if timeout_ns <= 0 else max(<int64_t>0, timeout_ns - (now_ns() - started))
            if self.await_room(min(count - done, max(self.p.capacity // 4, <uint64_t>1)), left) == LATE:
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
        array = self.array_of(records)
        done = self.send_many(array, 0)
        while done < array.size and self.drops == WAITS:
            await asynchronous.readable(self)
            done += self.send_many(array.reshape(-1)[done:], 0)
        return done

    cdef object array_of(self, records):
        array = np.asarray(records)
        if array.dtype != self.channel.dtype:
            if array.dtype.names is not None or self.channel.dtype.names is not None:
                if isinstance(records, np.ndarray):
                    raise TypeError(f"this channel carries {self.channel.dtype}, not {array.dtype}")
            array = np.array(records, self.channel.dtype)
        return np.ascontiguousarray(array)

    cdef int64_t push(self, const char *source, uint64_t count) except -1:
        cdef int64_t pushed
        if count * self.p.slot_nbytes < LONG_COPY_NBYTES:
            pushed = ring_try_push(&self.p, source, count)
        else:
            self.is_busy = True
            with nogil:
                # In parts, so that the other side begins to read while we still write.
                pushed = ring_try_push(&self.p, source,
                                       min(count, max(<uint64_t>1, LONG_COPY_NBYTES // self.p.slot_nbytes)))
            self.is_busy = False
        if pushed < 0:
            raise self.corrupt()
        if pushed:
            self.note(pushed)
        return pushed

    cdef inline void note(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.ring.sent.messages, self.ring.sent.messages + count)
        wake_peer(&self.watch, self.p.tail)

    cdef int await_room(self, uint64_t nslots, int64_t timeout_ns) except -1:
        cdef uint64_t room_at = self.p.tail + 1 - self.p.capacity
        if ring_free(&self.p, 1) > 0:
            return READY
        cdef int outcome = self.wait_for(&self.ring.head, room_at, room_at + nslots - 1, timeout_ns)
        if outcome == GONE:
            raise self.lost()
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
        self.note(pushed)
        self.ring.sent.dropped += count - pushed
        return pushed

    cdef inline uint64_t clip(self, uint64_t count) noexcept:
        """How many may be asked for: where the producer moves head it must not look for more than it made room for."""
        cdef uint64_t known = self.p.capacity - (self.p.tail - self.p.cached_head)
        return min(count, known) if self.drops == DROPS_OLDEST else count

    def reserve(self, count=1, timeout=None):
        """Lend memory of the ring, to write records in place.

        Parameters
        ----------
        count : int
            At most so many records.
        timeout : float, optional
            Seconds to wait for room for one; None for ever, 0 not at all.

        Returns
        -------
        Lease
            Behaves as a writable array of one or more records (fewer than asked for when nearly full, or where the ring
            wraps); what it holds before is left over. It ends with `commit` or `abort`.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; ``queue.Full`` also if the channel drops what does not fit.
        ValueError
            ``count`` is not positive; or another lease is open.
        """
        cdef int64_t found = 0
        cdef char *address
        self.require_idle()
        if count < 1:
            raise ValueError(f"count={count}: must be at least 1")
        if is_gone(self.watch.other):
            raise self.lost()
        if self.drops == DROPS_OLDEST:
            if overwrite_slots(&self.p, min(count, self.p.capacity), &self.ring.sent.overwritten) < 0:
                raise self.corrupt()
        elif self.drops == WAITS and self.await_room(1, timeout_of(timeout)) == LATE:
            raise queue.Full
        address = ring_reserve(&self.p, self.clip(count), &found)
        if found < 0:
            raise self.corrupt()
        if address == NULL:
            self.ring.sent.dropped += 1
            raise queue.Full
        self.lease = make_lease(self.mapping, address, self.channel.dtype, (found,), False)
        return self.lease

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
        self.require_lease("reserved")
        n = self.p.reserved if count is None else count
        if n > self.p.reserved:
            raise ValueError(f"count={count}: only {self.p.reserved} records are reserved")
        self.lease.end()
        self.lease = None
        ring_commit(&self.p, n)
        self.note(n)

    def abort(self):
        """Give up what was reserved, and end the lease; the receiver never knows. Raises as `commit` does."""
        self.require_lease("reserved")
        self.lease.end()
        self.lease = None
        ring_abort(&self.p)

    def __len__(self):
        """Records sent and not yet received: a hint, there may be fewer a moment later."""
        return max(0, <int64_t>(self.ring.sent.messages - self.ring.sent.overwritten - self.ring.received.messages))

    @property
    def dtype(self):
        """The dtype of the records."""
        return self.channel.dtype

    @property
    def capacity(self):
        """How many records have room."""
        return self.ring.nslots

    @property
    def sent_count(self):
        """Records ever sent into this channel."""
        return self.ring.sent.messages

    @property
    def dropped_count(self):
        """Records ever dropped because they did not fit, or because newer ones did not."""
        return self.ring.sent.dropped + self.ring.sent.overwritten

    def __repr__(self):
        return f"<shmring.RecordSender of {self.channel.dtype} into {self.channel.title}>"


@cython.final
@cython.no_gc
cdef class RecordReceiver(End):
    """The receiving end of a channel of records; made by `shmring.channel` and `shmring.open_channel` with a ``dtype``.

    Iterating over it gives one record after the other and ends when the sender has closed; `recv_many` gives all that
    are there as one array. Belongs to the process that uses it first, and to one thread at a time.
    """

    cdef consumer_t c

    cdef int attach(self, bint again) noexcept:
        return ring_attach_consumer(&self.c, self.ring, self.ring_nbytes, again)

    cdef void leave(self, bint in_good_order) noexcept:
        if self.drops == DROPS_OLDEST:
            give_up_claim(&self.c)
        ring_close_consumer(&self.c, in_good_order)
        wake_peer_at_once(&self.watch)

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

    def try_recv(self, default=None):
        """Receive one record if there is one.

        Parameters
        ----------
        default : object
            What to return if there is none.

        Returns
        -------
        numpy.void or another NumPy scalar
            As in `recv`.

        Raises
        ------
        EndOfStreamError, PeerLostError
            As in `recv`.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    def recv_many(self, count=None, timeout=None):
        """Receive the records that are there; wait only for the first.

        Parameters
        ----------
        count : int, optional
            At most so many.
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
        cdef uint64_t n
        if count is not None and count < 1:
            raise ValueError(f"count={count}: must be at least 1")
        n = self.await_records(0 if count is None else count, timeout_of(timeout))
        out = np.empty(n, self.channel.dtype)
        self.pop(cnp.PyArray_DATA(out), n)
        return out

    def recv_async(self, count=None):
        """Await records, in an event loop of asyncio.

        Parameters
        ----------
        count : int, optional
            At most so many.

        Returns
        -------
        coroutine
            Of what `recv_many` gives; raises as it does. Cancelled, it has received nothing.
        """
        return asynchronous.when_ready(self, lambda timeout: self.recv_many(count, timeout))

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
            How many.

        Raises
        ------
        queue.Empty, EndOfStreamError, PeerLostError
            As in `recv`.
        TypeError, ValueError
            No such array, or an empty one.
        """
        cdef uint64_t n
        if not isinstance(out, np.ndarray) or out.dtype != self.channel.dtype:
            raise TypeError(f"out must be an array of {self.channel.dtype}")
        if not (out.flags.c_contiguous and out.flags.writeable) or out.size == 0:
            raise ValueError("out must be contiguous, writable, and not empty")
        n = self.await_records(out.size, timeout_of(timeout))
        self.pop(cnp.PyArray_DATA(out), n)
        return n

    def peek(self, count=None, timeout=None):
        """Lend records where they lie, to read them in place.

        Parameters
        ----------
        count : int, optional
            At most so many.
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
        cdef const char *address
        if count is not None and count < 1:
            raise ValueError(f"count={count}: must be at least 1")
        address = ring_peek(&self.c, self.await_records(0 if count is None else count, timeout_of(timeout)), &found)
        self.lease = make_lease(self.mapping, <char *>address, self.channel.dtype, (found,), True)
        return self.lease

    def release(self, count=None):
        """Give back what was peeked, which is received with that, and end the lease.

        Parameters
        ----------
        count : int, optional
            Only the first so many records; the others come again.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was given back; delete them and call again.
        ValueError
            Nothing is peeked, or less than ``count``.
        """
        cdef uint64_t n
        self.require_lease("peeked")
        n = self.c.peeked if count is None else count
        if n > self.c.peeked:
            raise ValueError(f"count={count}: only {self.c.peeked} records are peeked")
        self.lease.end()
        self.lease = None
        ring_release(&self.c, n)
        self.note(n)

    def poll(self, timeout=0):
        """Whether `recv` would not have to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for that; None for ever.

        Returns
        -------
        bool
            Also True at the end of the stream, and if the sender is lost, which `recv` then says.
        """
        self.require_idle()
        return self.await_tail(timeout_of(timeout)) != LATE

    @property
    def ended(self):
        """Whether the sender has closed in good order and all was received, so that `recv` would say so."""
        self.require_idle()
        return ring_end_state(self.watch.other) == END_CLOSED and self.await_tail(0) != READY

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    cdef int await_tail(self, int64_t timeout_ns) except -1:
        if self.drops != DROPS_OLDEST and ring_ready(&self.c, 1) > 0:
            return READY
        return self.wait_for(&self.ring.tail, self.c.head + 1, self.c.head + 1, timeout_ns)

    cdef uint64_t await_records(self, uint64_t most, int64_t timeout_ns) except 0:
        """How many may be read, at most ``most`` if that is not 0; they are claimed."""
        cdef int64_t ready
        cdef int outcome
        self.require_idle()
        most = most or self.c.capacity
        while True:
            ready = claim_next(&self.c) if self.drops == DROPS_OLDEST else ring_ready(&self.c, most)
            if ready < 0:
                raise self.corrupt()
            if ready:
                return min(most, <uint64_t>ready)
            outcome = self.await_tail(timeout_ns)
            if outcome == LATE:
                raise queue.Empty
            if outcome == GONE:
                raise self.gone()

    cdef int pop(self, void *to, uint64_t n) except -1:
        if n * self.c.slot_nbytes < LONG_COPY_NBYTES:
            ring_try_pop(&self.c, to, n)
        else:
            self.is_busy = True
            with nogil:
                ring_try_pop(&self.c, to, n)
            self.is_busy = False
        self.note(n)
        return 0

    cdef inline void note(self, uint64_t count) noexcept nogil:
        store_relaxed_u64(&self.ring.received.messages, self.ring.received.messages + count)
        wake_peer(&self.watch, self.c.head)

    def __len__(self):
        """Records sent and not yet received: a hint, there may be more a moment later."""
        return max(0, <int64_t>(self.ring.sent.messages - self.ring.sent.overwritten - self.ring.received.messages))

    @property
    def dtype(self):
        """The dtype of the records."""
        return self.channel.dtype

    @property
    def capacity(self):
        """How many records have room."""
        return self.ring.nslots

    @property
    def received_count(self):
        """Records ever received from this channel."""
        return self.ring.received.messages

    @property
    def dropped_count(self):
        """Records ever dropped because they did not fit, or because newer ones did not."""
        return self.ring.sent.dropped + self.ring.sent.overwritten

    def __repr__(self):
        return f"<shmring.RecordReceiver of {self.channel.dtype} from {self.channel.title}>"
