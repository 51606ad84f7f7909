"""The receiving end of a channel of messages."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

import queue

import numpy as np

from shmring._c.atomics cimport store_relaxed_u64
from shmring.base.timeouts cimport checked_count, timeout_to_ns
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.lease cimport borrow, borrowed_t, end_borrow, make_lease
from shmring.channels.message_codec cimport QUIET_MAX, bytes_of
from shmring.channels.message_reader cimport (ASSEMBLED, FRAME, NOTHING, MessageReader, is_clear, leave_message,
                                              take_bytes)
from shmring.ring.blocking cimport wake_peer
from shmring.ring.framing cimport BYTES, OBJECT, WORD_NBYTES, frame_t, kind_of, next_frame
from shmring.ring.spsc cimport ring_release

from shmring.channels import aio
from shmring.channels.message_reader import CALLERS_MEMORY
from shmring.errors import EndOfStreamError, PeerLostError, SegmentError

cnp.import_array()


@cython.final
@cython.no_gc
cdef class Receiver(MessageReader):
    """The receiving end of a channel of messages; made by `shmring.channel` and `shmring.open_channel`.

    Returns what was sent: ``bytes``, ndarrays, Python objects. Iterating over it ends when the sender has closed.
    Belongs to the process that uses it first, and to one thread at a time.
    """

    cdef frame_t frame                 # that is peeked

    # ---- receiving ----

    @cython.critical_section
    def recv(self, timeout=None):
        """Receive the next message.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray or object
            What was sent; arrays own their memory.

        Raises
        ------
        queue.Empty
            Nothing has come in time, or not all of a long message: it stays receivable.
        EndOfStreamError
            The sender has closed in good order and all that it sent was received.
        PeerLostError
            The sender has died, and all that it had sent was received. On a named channel a new one may come.
        ObjectError
            It is an object that cannot be made here. It has been received.
        SegmentError
            What is in the ring is no message.
        """
        cdef bint found = False
        cdef int64_t timeout_ns = -1 if timeout is None else timeout_to_ns(timeout)
        message = take_bytes(self)
        if message is not None:
            return message
        message = self.next_message(timeout_ns, &found)
        if not found:
            raise queue.Empty
        return message

    def recv_async(self):
        """Await the next message, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Of what `recv` returns; raises as it does. Cancelled, it has received nothing.
        """
        return aio.when_ready(self, self.recv)

    @cython.critical_section
    def recv_into(self, out, timeout=None):
        """Receive the content of the next message, bytes or an array, into memory of the caller.

        Parameters
        ----------
        out : writable buffer or array
            Contiguous; at least as long as the message. It is filled from its beginning on.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        int
            Bytes received.

        Raises
        ------
        MessageTooLongError
            It is longer than ``out``. It stays receivable.
        TypeError
            It is an object, which stays receivable; or ``out`` is no writable memory.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef borrowed_t b
        cdef int64_t timeout_ns = timeout_to_ns(timeout), nbytes
        self.require_idle()
        # A bytearray could be resized while the GIL is released; not one that is exported.
        borrow(memoryview(out) if isinstance(out, bytearray) else out, &b, True)
        try:
            self.require_idle()            # again: exporting memory may have run Python code, which used this end
            self.into = &b
            try:
                nbytes = self.receive_into(&b, timeout_ns)
            finally:
                self.into = NULL
                self.move_out()
        finally:
            end_borrow(&b)
        if nbytes < 0:
            raise queue.Empty
        return nbytes

    cdef int64_t receive_into(self, borrowed_t *b, int64_t timeout_ns) except? -2:
        """Bytes received, or -1: none came in time."""
        cdef frame_t f
        cdef uint64_t nbytes, skipped
        cdef int found = self.find(&f, timeout_ns)
        if found == NOTHING:
            return -1
        if found == ASSEMBLED:
            if self.kept[0] is CALLERS_MEMORY:
                self.take_kept()
                return self.content_nbytes
            source = self.kept_array()
            nbytes = cnp.PyArray_NBYTES(source)
            self.require_room(nbytes, b)
            f.bytes, f.nbytes, f.kind, f.timed = <char *>cnp.PyArray_DATA(source), nbytes, 0, 0
            self.copy(b.address, &f, 0)
            self.take_kept()
            return nbytes
        self.require_no_object(&f)
        skipped = self.meta_of(&f, f.nbytes)[2]
        nbytes = f.nbytes - skipped
        self.require_room(nbytes, b)
        self.copy(b.address, &f, skipped)
        leave_message(self, &f)
        return nbytes

    cdef object kept_array(self):
        """The content of a kept message of bytes or an array."""
        message = self.kept[0]
        if not isinstance(message, (bytes, np.ndarray)):
            raise TypeError("the next message is an object: receive it by recv()")
        return message if isinstance(message, np.ndarray) else np.frombuffer(message, np.uint8)

    cdef int require_no_object(self, frame_t *f) except -1:
        if kind_of(f.word) == OBJECT:
            self.give_up_claim()
            raise TypeError("the next message is an object: receive it by recv()")
        return 0

    @cython.critical_section
    def recv_many(self, count=None, timeout=None):
        """Receive the messages that are there; wait only for the first. Raises as `recv`.

        Parameters
        ----------
        count : int, optional
            How many at most.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        list
            One message or more: what came before an error is returned, and the next call raises the error.
        """
        cdef Py_ssize_t most = checked_count(count, INT64_MAX)
        cdef list messages = [self.recv(timeout)]
        cdef uint64_t begin = self.c.head
        try:
            # No more than the ring can hold: a sender that goes on sending does not keep this call for ever.
            while len(messages) < most and self.c.head - begin < self.c.capacity:
                if is_clear(self):
                    self.append_bytes(messages, min(most - len(messages), QUIET_MAX))
                if len(messages) < most:
                    messages.append(self.recv(0))
        except (queue.Empty, EndOfStreamError, PeerLostError, SegmentError):
            pass                       # the next call raises it by itself
        except Exception as error:
            self.failure = error
        except BaseException:          # KeyboardInterrupt
            self.kept = messages + (self.kept or [])
            raise
        return messages

    cdef int append_bytes(self, list messages, Py_ssize_t most) except -1:
        """Receive the frames of bytes that are there; one store releases all of them."""
        cdef frame_t f
        cdef uint64_t count = 0
        try:
            while <Py_ssize_t>count < most and next_frame(&self.c, &f) == 1 and f.word >> 32 == BYTES:
                messages.append(bytes_of(&self.c, &f))
                self.c.head += f.nwords
                count += 1
        finally:
            if count:
                store_relaxed_u64(&self.ring.received.messages, self.ring.received.messages + count)
                ring_release(&self.c, 0)
                wake_peer(&self.watch, self.c.head)
        return 0

    @cython.critical_section
    def peek(self, timeout=None):
        """Lease the next message where it lies, to read it in place.

        Parameters
        ----------
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Lease
            Behaves as a read-only array; bytes as one of uint8. It ends with `release`; arrays and views taken from it
            must be gone by then. A message that came in pieces is assembled in private memory first.

        Raises
        ------
        TypeError
            It is an object, which stays receivable.
        queue.Empty, EndOfStreamError, PeerLostError, SegmentError
            As in `recv`.
        """
        cdef frame_t f
        cdef int found
        self.require_idle()
        found = self.find(&f, timeout_to_ns(timeout))
        if found == NOTHING:
            raise queue.Empty
        if found == FRAME:
            self.require_no_object(&f)
            dtype, shape, skipped = self.meta_of(&f, f.nbytes)
            self.frame = f
            self.lease = make_lease(self.mapping, <char *>f.bytes + <uint64_t>skipped, dtype, shape, True)
        else:
            array = self.kept_array()
            self.lease = make_lease(array, <char *>cnp.PyArray_DATA(array), array.dtype, array.shape, True)
        return self.lease

    @cython.critical_section
    def release(self):
        """End the lease of the message that was peeked, which is then received.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing was released; delete them and call again.
        ValueError
            Nothing is peeked.
        """
        self.require_lease("peeked")
        self.end_lease()
        if self.kept is not None:
            self.take_kept()
        else:
            leave_message(self, &self.frame)

    # ---- state ----

    @property
    def capacity_nbytes(self):
        """Size of the ring in bytes, headers included."""
        return self.ring.nslots * WORD_NBYTES
