"""The sending end of a channel of messages."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import queue
from math import prod
from operator import index

import numpy as np

from shmring.base.timeouts cimport checked_part, int_or_none, timeout_to_ns
from shmring.channels.endpoint cimport deadline_of, left_until
from shmring.channels.message_codec cimport (QUIET_MAX, encode, encode_pickled, is_array_shape, message_t,
                                             pickle_object, word_and_meta)
from shmring.channels.message_writer cimport announce, is_clear, put_bytes
from shmring.arrays.lease cimport make_lease
from shmring.ring.blocking cimport LATE
from shmring.ring.framing cimport (ARRAY, BYTES, OTHER_DTYPE, WORD_NBYTES, code_of, copy_in, kind_of,
                                   longest_frame, nwords_of, open_frame, stores_of_frame, word_of)
from shmring.sync.group cimport READY
from shmring.sync.liveness cimport fork_generation

from shmring.channels import aio


@cython.final
@cython.no_gc
cdef class Sender(MessageWriter):
    """The sending end of a channel of messages; made by `shmring.channel` and `shmring.open_channel`.

    A message is bytes, an array, or a Python object; the receiver gets what was sent. Belongs to the process that uses
    it first, and to one thread at a time.
    """

    @cython.critical_section
    def send(self, x, timeout=None):
        """Send bytes or an array.

        Parameters
        ----------
        x : bytes-like or array
            ``bytes``, ``bytearray``, a ``memoryview`` of bytes: received as ``bytes``. Any array on the CPU (NumPy,
            ml_dtypes, DLPack, the buffer protocol; structured dtypes too): received as an ndarray of that dtype and
            shape. It may be changed after the call. Of any size: what is longer than the ring streams through it.
        timeout : float, optional
            Seconds to wait for room; None for ever, 0 not at all.

        Returns
        -------
        bool
            True; False if the channel drops what does not fit, and this message did not.

        Raises
        ------
        queue.Full
            No room in time. The receiver gets nothing of this message.
        PeerLostError
            The receiver has closed, or died. On a named channel a new one may come, and sending goes on.
        TypeError, ValueError
            Not bytes nor an array, or too long for a call that may not wait. Nothing was sent.
        """
        cdef message_t m
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_to_ns(timeout)
        if PyBytes_CheckExact(x) and put_bytes(self, x):
            return True
        self.require_idle()
        _keeper = encode(x, &m)
        return self.send_encoded(&m, timeout_ns)

    cdef bint send_encoded(self, message_t *m, int64_t timeout_ns) except -1:
        self.require_idle()      # again: encoding may have run Python code, which used this end
        cdef int outcome = self.send_message(m, timeout_ns)
        if outcome == LATE:
            raise queue.Full
        return outcome == READY

    @cython.critical_section
    def try_send(self, x):
        """Send bytes or an array if there is room for all of it now. Raises as `send`.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`; at most half the capacity.

        Returns
        -------
        bool
            False if there is no room; nothing was sent then.
        """
        cdef message_t m
        if PyBytes_CheckExact(x) and put_bytes(self, x):
            return True
        self.require_idle()
        _keeper = encode(x, &m)
        self.require_idle()
        return self.send_message(&m, 0) == READY

    @cython.critical_section
    def send_object(self, obj, timeout=None):
        """Send a Python object by pickle; large buffers inside it (arrays) are not copied into the pickle stream.

        Parameters
        ----------
        obj : object
            Anything that pickles.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        bool
            As in `send`.

        Raises
        ------
        ObjectError
            It does not pickle. Nothing was sent.
        ValueError
            The channel was made with ``allow_pickle=False``.
        queue.Full, PeerLostError
            As in `send`.
        """
        cdef message_t m
        self.require_idle()
        _keeper = encode_pickled(pickle_object(obj, self.channel), &m)
        return self.send_encoded(&m, timeout_to_ns(timeout))

    def send_async(self, x):
        """Await room for bytes or an array, and send it, in an event loop of asyncio.

        Parameters
        ----------
        x : bytes-like or array
            As in `send`, of any size; it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send` does. Cancelled, it has sent nothing.
        """
        return self._send_in_steps(x, False)

    def send_object_async(self, obj):
        """Await room for a Python object, and send it, in an event loop of asyncio.

        Parameters
        ----------
        obj : object
            As in `send_object`; large buffers inside it must not be changed before it is sent.

        Returns
        -------
        coroutine
            Raises as `send_object` does. Cancelled, it has sent nothing.
        """
        return self._send_in_steps(pickle_object(obj, self.channel), True)

    async def _send_in_steps(self, x, bint is_pickled):
        cdef message_t m
        cdef uint64_t wanted
        self.fileno()      # before the first step: in the middle of a message it could not be made
        _keeper = encode_pickled(x, &m) if is_pickled else encode(x, &m)
        try:
            while self.take_step(&m, &wanted) == LATE:
                await aio.readable(self)
        finally:
            self.end_send(&m)

    @cython.critical_section
    cdef int take_step(self, message_t *m, uint64_t *wanted) except -1:
        if not m.is_streamed:      # this end may have been closed meanwhile
            self.require_idle()
        return self.advance(m, False, wanted)

    # ---- several at a time, and in place ----

    @cython.critical_section
    def send_many(self, messages, timeout=None):
        """Send several messages, announced together as far as there is room.

        Raises as `send`; the messages before the one concerned were sent.

        Parameters
        ----------
        messages : iterable of bytes-like or array
        timeout : float, optional
            Seconds to wait for room in all; None for ever, 0 not at all.

        Returns
        -------
        int
            How many went in, from the first one on; fewer than there are only if time ran out, or the channel drops.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef int64_t count = 0, needed
        cdef int outcome
        cdef char *to
        cdef message_t m
        self.require_idle()
        try:
            for x in messages:
                to = NULL
                if PyBytes_CheckExact(x) and is_clear(self) and <uint64_t>PyBytes_GET_SIZE(x) <= self.piece:
                    if self.quiet < QUIET_MAX and not self.drops:
                        to = open_frame(&self.p, word_of(BYTES) | stores_of_frame(&self.p, PyBytes_GET_SIZE(x)),
                                        PyBytes_GET_SIZE(x), &needed)
                if to != NULL:
                    copy_in(&self.p, to, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))
                    self.p.tail += self.p.reserved      # only here: one store announces all of them
                    self.p.reserved = 0
                    self.quiet += 1
                    count += 1
                    continue
                self.announce_quiet()
                self.require_idle()
                _keeper = encode(x, &m)
                self.require_idle()
                outcome = self.send_message(&m, left_until(deadline_ns, timeout_ns))
                if outcome == LATE:
                    break
                count += outcome == READY
                PyErr_CheckSignals()      # a channel that drops never waits, and the iterable may have no end
        finally:
            self.announce_quiet()
        return count

    cdef void announce_quiet(self) noexcept:
        """Announce what `send_many` has put into the ring; not in a child that the iterable has forked."""
        if self.quiet and self.is_taken and self.generation == fork_generation():
            self.p.reserved = 0      # a lease that the iterable has left open stays open: `commit` knows its size
            announce(self, self.quiet)
        self.quiet = 0

    cdef void leave(self, bint in_good_order) noexcept:
        self.announce_quiet()
        MessageWriter.leave(self, in_good_order)

    @cython.critical_section
    def reserve(self, shape, dtype=None, timeout=None):
        """Lease memory of the ring, to write a message in place.

        Parameters
        ----------
        shape : int or tuple of int
            Of the array to write; at most half the capacity.
        dtype : dtype, optional
            None: bytes, and it will be received as ``bytes``; else as an array.
        timeout : float, optional
            As in `send`.

        Returns
        -------
        Lease
            Behaves as a writable array of undefined content. It ends with `commit` or `abort`; arrays and
            views taken from it must be gone by then.

        Raises
        ------
        queue.Full, PeerLostError
            As in `send`; also ``queue.Full`` if the channel drops what does not fit.
        TypeError, ValueError
            No such array, or too large; or another lease is open.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t wanted
        cdef int outcome
        shape = as_shape(shape)
        while True:
            outcome = self.try_reserve(shape, dtype, &wanted)
            if outcome == READY:
                return self.lease
            if outcome != LATE or self.wait_for_room(wanted, left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Full

    cdef int try_reserve(self, object shape, object dtype, uint64_t *wanted) except -1:
        """READY: there is a lease; LATE: ``wanted`` slots must be free first; or DROPPED."""
        cdef uint64_t meta_nbytes, nbytes
        cdef char *to
        cdef int outcome
        kind = np.dtype(np.uint8 if dtype is None else dtype)
        if not is_array_shape(shape, kind.itemsize):
            raise ValueError(f"shape={shape}: no array of {kind} can have it")
        word, meta = (word_of(BYTES), b"") if dtype is None else word_and_meta(kind, shape)
        nbytes = prod(shape) * kind.itemsize
        meta_nbytes = len(meta)
        self.require_idle()
        outcome = self.try_open(word, meta_nbytes + nbytes, &to, wanted)
        if outcome == READY:
            memcpy(to, PyBytes_AS_STRING(meta), meta_nbytes)
            self.reserved_word = (<uint64_t *>to) - 1
            self.reserved_meta = meta_nbytes
            self.reserved_nwords = self.p.reserved
            self.lease = make_lease(self.mapping, to + meta_nbytes, kind, shape, False)
        return outcome

    @cython.critical_section
    def commit(self, count=None):
        """Send what was reserved, and end the lease.

        Parameters
        ----------
        count : int, optional
            Only the first so many along the first axis.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was sent; delete them and call again.
        ValueError
            Nothing is reserved, or less than ``count``.
        """
        cdef uint64_t nbytes, before
        count = int_or_none(count)
        self.require_lease("reserved")
        cdef Lease lease = self.lease
        shape = lease.shape
        if count is not None and not shape:
            raise ValueError(f"count={count}: this lease holds a single value; commit() it without a count")
        count = checked_part(count, shape[0] if shape else 1)
        nbytes = self.reserved_meta + <uint64_t>lease.nbytes
        self.end_lease()
        before = self.reserved_nwords - nwords_of(nbytes)
        if shape and count < shape[0]:
            nbytes -= (<uint64_t>lease.dtype.itemsize) * <uint64_t>prod(shape[1:]) * <uint64_t>(shape[0] - count)
            if kind_of(self.reserved_word[0]) == ARRAY and self.reserved_meta:
                self.reserved_word[2 if code_of(self.reserved_word[0]) == OTHER_DTYPE else 1] = count
            self.reserved_word[0] = self.reserved_word[0] >> 32 << 32 | nbytes
        self.p.reserved = before + nwords_of(nbytes)
        announce(self, 1)

    # ---- state ----

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES

    @property
    def longest_nbytes(self):
        """The longest message that lies in the ring in one piece; longer ones stream, and `try_send` refuses them."""
        return longest_frame(self.ring.nslots)


cdef tuple as_shape(object shape):
    try:
        return (index(shape),)
    except TypeError:
        return tuple([index(extent) for extent in shape])
