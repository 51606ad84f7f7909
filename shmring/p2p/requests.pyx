"""Messages and requests: what is known of a message, what is under way, and which message goes to which request."""

import copy

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from shmring.arrays.array_view cimport array_t

from shmring.dtypes import DTYPE_CODES, DTYPES
from shmring.errors import BrokenError, ClosedError, MessageTimeoutError, MessageTooLongError

ANY_SOURCE = ANY
ANY_TAG = ANY

cdef int BYTES = DTYPE_CODES["uint8"]
cdef int N_CODES = len(DTYPES)


@cython.final
@cython.freelist(64)
cdef class Message:
    """What is known of a message: where it came from and how long it is.

    Attributes
    ----------
    source : int
        The rank that sent it.
    tag : int
        What it was sent with.
    nbytes : int
        Its length in bytes.
    """

    @property
    def dtype(self):
        """The name of its element type; None if it is opaque bytes (structures and the like)."""
        return DTYPES[self.code].name if self.code >= 0 else None

    @property
    def count(self):
        """Its length in elements; in bytes if it is opaque."""
        return self.nbytes // DTYPES[self.code].itemsize if self.code >= 0 else self.nbytes

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.source, self.tag, self.nbytes, self.code))

    def __reduce__(self):
        return _message, (self.source, self.tag, self.nbytes, self.code)

    def __repr__(self):
        return f"Message(source={self.source}, tag={self.tag}, nbytes={self.nbytes}, dtype={self.dtype!r})"


def _message(int source, int tag, uint64_t nbytes, int code):
    return message_of(source, tag, nbytes, code)


cdef Message message_of(int source, int tag, uint64_t nbytes, int code):
    cdef Message message = Message.__new__(Message)
    message.source = source
    message.tag = tag
    message.nbytes = nbytes
    message.code = code if code < N_CODES else OPAQUE_BYTES      # a peer wrote it, and it will be an index
    return message


cdef class Waiter:
    """Who waits for requests to be over, and moves them meanwhile: `shmring.p2p.progress.PointToPoint`."""

    cdef int enter(self) except -1:
        raise NotImplementedError

    cdef void leave(self) noexcept:
        pass

    cdef bint await_all(self, list requests, int64_t timeout_ns, bint has_spun=False) except -1:
        raise NotImplementedError


@cython.final
cdef class Request:
    """A send or receive under way; made by `Communicator.isend` and `Communicator.irecv`.

    It proceeds while some thread of this process is in a point-to-point call of the same communicator, `done` and
    `wait` included, and at no other time. Until it is done, what is sent must not be changed, and what is received
    into must not be used. Any thread may ask.
    """

    cdef int settle(self, int64_t timeout_ns) except -1:
        """Wait until it is over, however it ends, for at most ``timeout_ns``."""
        cdef bint came
        if self.is_over:
            return 0
        try:
            self.owner.enter()
            try:
                came = self.owner.await_all([self], timeout_ns)
            finally:
                self.owner.leave()
        except (BrokenError, ClosedError) as error:
            if not self.is_over:
                self.error = error
                self.is_over = True
            return 0
        if not came:
            raise MessageTimeoutError(f"{self!r}: not done in time; it goes on")
        return 0

    def wait(self, timeout=None):
        """Wait until it is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever. If they pass the request goes on, and `wait` may be called again.

        Returns
        -------
        Message or None
            What was received; None for a send.

        Raises
        ------
        MessageTimeoutError
            It is not done; nothing changed.
        MessageTooLongError, TypeError
            The message does not fit the array. It stays receivable.
        PeerLostError, AbortedError, CollectiveTimeoutError, ClosedError
            The communicator is broken or closed.
        """
        self.settle(patience_ns(timeout))
        if self.error is not None:
            raise copy.copy(self.error)
        return self.message

    def result(self, timeout=None):
        """The same as `wait`, under the name that futures have for it.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever.

        Returns
        -------
        Message or None
        """
        return self.wait(timeout)

    def exception(self, timeout=None):
        """Wait until it is done and tell how it failed.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever.

        Returns
        -------
        Exception or None
            What `wait` would raise; None if all went well.
        """
        self.settle(patience_ns(timeout))
        return self.error

    def done(self):
        """Whether it is over, with or without success; moves what can be moved first, without waiting."""
        if not self.is_over:
            try:
                self.settle(0)
            except MessageTimeoutError:
                pass
        return self.is_over

    def add_done_callback(self, callback):
        """Have ``callback(request)`` called once it is over; at once if it is.

        Parameters
        ----------
        callback : callable
            Called by the thread that finds it over, outside of any turn: it may make calls.
        """
        if self.is_over:
            callback(self)
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def __await__(self):
        return _wait_among_tasks(self).__await__()

    def __repr__(self):
        whom = "anyone" if self.peer == ANY else f"rank {self.peer}"
        what = f"isend to {whom}" if self.kind == SEND else f"irecv from {whom}"
        state = "under way" if not self.is_over else "done" if self.error is None else type(self.error).__name__
        return f"<Request: {what}, tag {'any' if self.tag < 0 else self.tag}, {self.a.nbytes} bytes, {state}>"


cdef int64_t patience_ns(timeout) except -2:
    """Seconds, or None for ever, as `settle` has them; less than none is none."""
    return -1 if timeout is None else <int64_t> (max(0.0, min(float(timeout), 9e9)) * 1e9)


async def _wait_among_tasks(request):
    """Ask again and again, at first at every turn of the event loop, then every millisecond."""
    import asyncio
    pause_s = 0.0
    while not request.done():
        await asyncio.sleep(pause_s)
        pause_s = min(0.001, 2 * pause_s + 1e-5)
    return request.wait(0)


@cython.final
cdef class Unexpected:
    """A message put aside in private memory, or on its way there."""

    def __dealloc__(self):
        free(self.content)


cdef Unexpected unexpected_of(Message message):
    cdef Unexpected unexpected = Unexpected.__new__(Unexpected)
    unexpected.message = message
    unexpected.content = <char *> malloc(max(message.nbytes, <uint64_t> 1))
    if unexpected.content == NULL:
        raise MemoryError(f"no memory to put aside a message of {message.nbytes} bytes from rank {message.source}")
    return unexpected


cdef Request request_of(Waiter owner, int kind, int peer, int tag, array_t *a, object x, object keeper):
    cdef Request r = Request.__new__(Request)
    r.owner = owner
    r.kind = kind
    r.peer = peer
    r.tag = tag
    if a != NULL:
        r.a = a[0]
    else:
        memset(&r.a, 0, sizeof(array_t))
    r.array = x
    r.keeper = keeper
    return r


# ---- what goes with what ---------------------------------------------------------------------------------------------

cdef bint can_hold(array_t *a, uint64_t nbytes, int dtype) noexcept nogil:
    return nbytes <= a.nbytes and (dtype == a.dtype or (dtype == OPAQUE_BYTES and a.dtype == BYTES)
                                   or (dtype == BYTES and a.dtype == OPAQUE_BYTES))


cdef object misfit(str name, array_t *a, Message message):
    """Why the message cannot go into the array."""
    cdef str where = f"{name}: the message from rank {message.source} with tag {message.tag}"
    if message.nbytes > a.nbytes:
        return MessageTooLongError(f"{where} has {message.nbytes} bytes, the array to receive it {a.nbytes}; it stays "
                                   "receivable", message.source, message.tag, message.nbytes)
    found = DTYPES[a.dtype].name if a.dtype >= 0 else "opaque bytes"
    return TypeError(f"{where} is of {message.dtype or 'opaque bytes'}, the array to receive it of {found}; it stays "
                     "receivable")


cdef int check_tag(int tag, bint any_is_allowed) except -1:
    if tag < 0 and not (any_is_allowed and tag == ANY):
        raise ValueError(f"tag={tag}: must be from 0 to {MOST_TAG}{', or ANY_TAG' if any_is_allowed else ''}")
    return 0
