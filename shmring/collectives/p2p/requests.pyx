"""Messages and requests: their Python objects, and whether a message fits a request."""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from shmring.core.base.future cimport Future
from shmring.core.base.timeouts cimport timeout_to_ns
from shmring.core.arrays.array_view cimport array_t, overlap
from shmring.core.kernel.numbers cimport NDTYPES

from shmring.core.base.unraisable import report_unraisable
from shmring.dtypes import DTYPE_CODES, DTYPES
from shmring.errors import BrokenError, ClosedError, MessageTimeoutError, MessageTooLongError

ANY_SOURCE = ANY
ANY_TAG = ANY

cdef int BYTES = DTYPE_CODES["uint8"]


@cython.final
@cython.freelist(64)
cdef class Message:
    """A description of a message: its source, tag, length and dtype.

    Attributes
    ----------
    source : int
        The rank that sent it.
    tag : int
        The tag it was sent with.
    nbytes : int
        Its length in bytes.
    """

    @property
    def dtype(self):
        """The name of its dtype; None if it is opaque bytes (structures and the like) or an object."""
        return DTYPES[self.code].name if self.code >= 0 else None

    @property
    def count(self):
        """The length in elements; in bytes if it is opaque."""
        return self.nbytes // DTYPES[self.code].itemsize if self.code >= 0 else self.nbytes

    @property
    def is_object(self):
        """Whether it is a Python object, or a part of one, which `Communicator.recv_object` receives."""
        return self.code <= OBJECT_STREAM

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.source, self.tag, self.nbytes, self.code))

    def __reduce__(self):
        return make_message, (self.source, self.tag, self.nbytes, self.code)

    def __repr__(self):
        kind = "an object" if self.is_object else f"dtype={self.dtype!r}"
        return f"Message(source={self.source}, tag={self.tag}, nbytes={self.nbytes}, {kind})"


def make_message(int source, int tag, uint64_t nbytes, int code):
    """`message_of` for Python code."""
    return message_of(source, tag, nbytes, code)


cdef Message message_of(int source, int tag, uint64_t nbytes, int code):
    cdef Message message = Message.__new__(Message)
    message.source = source
    message.tag = tag
    message.nbytes = nbytes
    message.code = known_code(code)
    return message


cdef int known_code(int code) noexcept nogil:
    """The code of a dtype that a peer has stored; it is used as an index."""
    return code if OBJECT_BUFFER <= code < NDTYPES else OPAQUE_BYTES


cdef class Messages:
    """The sends, receives and probes of one rank of a communicator, as its methods of the same names.

    The interface only: `shmring.collectives.p2p.point_to_point.PointToPoint` is that of one machine.
    """

    cpdef send(self, x, int dst, int tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef recv(self, x, int src, int tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef sendrecv(self, x, int dst, int tag, out, int src, int out_tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef isend(self, x, int dst, int tag):
        raise NotImplementedError

    cpdef irecv(self, x, int src, int tag):
        raise NotImplementedError

    cpdef probe(self, int src, int tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef send_object(self, obj, int dst, int tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef recv_object(self, int src, int tag, int64_t timeout_ns):
        raise NotImplementedError

    cpdef list stats(self):
        return []

    cdef int enter(self) except -1:
        raise NotImplementedError

    cdef void leave(self) noexcept:
        pass

    cdef bint await_all(self, list requests, wait_t *wait) except -1:
        raise NotImplementedError


@cython.final
cdef class Request(Future):
    """A pending send or receive; returned by `Communicator.isend` and `Communicator.irecv`.

    It progresses only while a thread of this process is in a point-to-point call of the same communicator, including
    `done` and `wait`. Until it is done, an array being sent must not be changed, and an array being received into must
    not be used. Any thread may call.
    """

    @cython.critical_section
    cdef int settle(self, int64_t timeout_ns) except -1:
        """Wait until it is over, with or without success, for at most ``timeout_ns``."""
        cdef bint came
        cdef wait_t wait
        if self.is_over:
            return 0
        if self.owner is None:
            raise TypeError("a request is made by Communicator.isend or Communicator.irecv")
        begin_wait(&wait, timeout_ns)
        try:
            self.owner.enter()
            try:
                came = self.owner.await_all([self], &wait)
            finally:
                self.owner.leave()
        except (BrokenError, ClosedError) as error:
            with cython.critical_section(self):
                if not self.is_over:
                    self.error = error
                    self.is_over = True
            return 0
        if not came:
            raise MessageTimeoutError(f"{self!r}: not done in time; it is still under way")
        return 0

    cpdef _settle(self, timeout):
        self.settle(timeout_to_ns(timeout))
        return self.error

    cpdef _value(self):
        return self.message

    def done(self):
        """Whether it is over, with or without success. Makes progress first, without waiting."""
        try:
            self.settle(0)
        except MessageTimeoutError:
            return False
        return True

    @cython.critical_section
    def add_done_callback(self, callback):
        """Call ``callback(request)`` once it is over; at once if it is.

        Parameters
        ----------
        callback : callable
            Called by the thread that finds it over. It may make calls of this communicator.
        """
        if not callable(callback):
            raise TypeError(f"add_done_callback takes a callable, not {type(callback).__name__}")
        if self.is_over:
            callback(self)
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def __repr__(self):
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        call = f"isend to {peer}" if self.kind == SEND else f"irecv from {peer}"
        state = "under way" if not self.is_over else "done" if self.error is None else type(self.error).__name__
        return f"<Request: {call}, tag {'any' if self.tag < 0 else self.tag}, {self.a.nbytes} bytes, {state}>"


@cython.final
cdef class Unexpected:
    """A message without a matching receive, in private memory or being copied there."""

    def __dealloc__(self):
        free(self.content)


cdef Unexpected unexpected_of(Message message):
    cdef Unexpected unexpected = Unexpected.__new__(Unexpected)
    unexpected.message = message
    unexpected.content = <char *> malloc(max(message.nbytes, <uint64_t> 1))
    if unexpected.content == NULL:
        raise MemoryError(f"no memory for an unexpected message of {message.nbytes} bytes from rank {message.source}")
    return unexpected


cdef Request request_of(Messages owner, int kind, int peer, int tag, array_t *a, object x, object keeper):
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


cdef void run_callbacks(list finished) noexcept:
    """Without the turn. No caller can catch what a callback raises, so it is reported as unraisable."""
    cdef Request r
    for r in finished:
        callbacks, r.callbacks = r.callbacks, None
        for callback in callbacks:
            try:
                callback(r)
            except BaseException as error:
                report_unraisable(error, callback)


cdef Request done_request(Messages owner, int kind):
    cdef Request r = request_of(owner, kind, ANY, ANY, NULL, None, None)
    r.is_over = True
    return r


# ---- whether a message fits ------------------------------------------------------------------------------------------

cdef bint can_hold(array_t *a, uint64_t nbytes, int dtype) noexcept nogil:
    return nbytes <= a.nbytes and (dtype == a.dtype or (dtype == OPAQUE_BYTES and a.dtype == BYTES)
                                   or (dtype == BYTES and a.dtype == OPAQUE_BYTES))


cdef object misfit(str name, array_t *a, Message message):
    """The error for a message that does not fit the array."""
    cdef str where = f"{name}: the message from rank {message.source} with tag {message.tag}"
    if message.is_object:
        return TypeError(f"{where} is a Python object; it can still be received with recv_object()")
    if message.nbytes > a.nbytes:
        return MessageTooLongError(f"{where} has {message.nbytes} bytes, the array to receive it {a.nbytes}; it can "
                                   "still be received", message.source, message.tag, message.nbytes)
    found = DTYPES[a.dtype].name if a.dtype >= 0 else "opaque bytes" if a.dtype == OPAQUE_BYTES else "an object"
    return TypeError(f"{where} is of {message.dtype or 'opaque bytes'}, the array to receive it of {found}; it can "
                     "still be received")


cdef int check_apart(array_t *x, array_t *out) except -1:
    """Raise if what is sent and what is received overlap."""
    if overlap(x, out):
        raise ValueError("x and out overlap: the received message would overwrite the one being sent")
    return 0


cdef int check_tag(int tag, bint any_is_allowed) except -1:
    if tag < 0 and not (any_is_allowed and tag == ANY):
        raise ValueError(f"tag={tag}: must be from 0 to {MOST_TAG}{', or ANY_TAG' if any_is_allowed else ''}")
    return 0
