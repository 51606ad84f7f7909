"""The calls of a communicator that send an array from one rank to one other."""

from shmring.collective.base cimport resolve_timeout
from shmring.collective.data_movement cimport DataMovement
from shmring.engine.engine cimport Engine
from shmring.p2p.progress cimport PointToPoint
from shmring.p2p.requests cimport ANY


cdef class MessageCalls(DataMovement):
    """What `shmring.Communicator` is made of, messages: see there."""

    def __cinit__(self, Engine engine, *args, **kwargs):
        self.messages = PointToPoint(engine)

    def stats(self):
        """What this rank's engine and its lanes have chosen, and what they learned.

        Returns
        -------
        dict
            What `CollectiveBase.stats` tells, and ``lanes``, one for each rank to which a message of more than 40 bytes went:
            its bytes, how often they were gone round, how it stores into it, and the microseconds that writing and
            reading it once took in the last trials of both ways of storing (through the cache, past it).

        Notes
        -----
        Not collective; costs nothing to the calls.
        """
        return DataMovement.stats(self) | {"lanes": self.messages.stats()}

    def send(self, x, int dst, int tag=0, *, timeout=...):
        """Send an array to one rank.

        Parameters
        ----------
        x : array, any shape
            Anything on the CPU with the buffer protocol or DLPack, structures too. It may be changed after the call.
        dst : int
            The rank it goes to; this one is allowed.
        tag : int
            From 0 to 2**31 - 1; the receiver can ask for it.
        timeout : float, optional
            Seconds to wait for room, None for ever. The communicator's own by default.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent.
        OutOfSharedMemoryError
            No room in /dev/shm for the lane, at the first message to this rank, or the first of more than 40 bytes.
            Nothing was sent.
        MessageTimeoutError
            No room within ``timeout``. Nothing was sent; the communicator stays usable.
        CollectiveTimeoutError
            ``dst`` took the beginning and then nothing for ``timeout``; the communicator is broken.
        PeerLostError, AbortedError
            The communicator is broken.

        Notes
        -----
        Returns once all of ``x`` is in the lane to ``dst``, which need not have called `recv`: 256 KiB at least
        (``config.pair_queue_nbytes``) and 256 messages have room there. A longer message streams through, so its end waits
        for the receiver. Any thread may call. Messages to one rank arrive in the order they were sent.
        """
        self.messages.send(x, dst, tag, resolve_timeout(timeout, self.timeout_ns))

    def recv(self, x, int src=ANY, int tag=ANY, *, timeout=...):
        """Receive an array from one rank, or from whoever sends.

        Parameters
        ----------
        x : array, any shape
            Where the message goes, from its beginning on. It may be larger, and must have the message's element type;
            uint8 and opaque structures may be mixed.
        src : int
            The rank it comes from; `ANY_SOURCE` (-1), the default, takes the first that comes, no rank passed over for
            ever.
        tag : int
            `ANY_TAG` (-1), the default, takes any.
        timeout : float, optional
            Seconds to wait, None for ever. The communicator's own by default.

        Returns
        -------
        Message
            ``source``, ``tag``, ``nbytes``, ``count`` and ``dtype`` of what was received.

        Raises
        ------
        ValueError
            A bad argument.
        MessageTooLongError
            The message is longer than ``x``. It stays receivable, and everything else, too.
        TypeError
            ``x`` is no array, or the message has another element type; then it stays receivable.
        MessageTimeoutError
            Nothing came. The communicator stays usable; if the message was half in, ``x`` is undefined, and the message
            stays receivable.
        PeerLostError, AbortedError
            The communicator is broken. What a rank had sent completely before it was lost is received first.

        Notes
        -----
        Any thread may call. Messages from one rank are matched in the order they were sent; one with another tag that
        stands before is put aside in private memory.
        """
        return self.messages.recv(x, src, tag, resolve_timeout(timeout, self.timeout_ns))

    def sendrecv(self, x, int dst, out, int src=ANY, *, int tag=0, int out_tag=ANY, timeout=...):
        """Send one array and receive another at the same time; never a deadlock, whatever their sizes.

        Parameters
        ----------
        x : array
            What is sent to ``dst``.
        dst : int
        out : array
            Where the message from ``src`` goes; it may not overlap ``x``.
        src : int
            As in `recv`.
        tag : int
            Of the message sent.
        out_tag : int
            Of the message received, `ANY_TAG` by default.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Message
            What was received.

        Raises
        ------
        TypeError, ValueError, MessageTooLongError, MessageTimeoutError, PeerLostError, AbortedError
            As in `send` and `recv`. If ``out`` does not fit the message, ``x`` was sent.

        Notes
        -----
        On a ring of ranks, ``comm.sendrecv(x, (rank + 1) % size, out, (rank - 1) % size)`` shifts by one.
        """
        return self.messages.sendrecv(x, dst, tag, out, src, out_tag,
                                      resolve_timeout(timeout, self.timeout_ns))

    def isend(self, x, int dst, int tag=0):
        """Begin to send an array to one rank.

        Parameters
        ----------
        x : array
            Not to be changed before the request is done.
        dst, tag : int
            As in `send`.

        Returns
        -------
        Request
            Done once all of ``x`` is in the lane; often at once.

        Raises
        ------
        TypeError, ValueError, OutOfSharedMemoryError
            As in `send`. Nothing was sent.

        Notes
        -----
        Does not block. What is not in the lane yet moves only during other point-to-point calls of this communicator in
        this process, `Request.wait` and `Request.done` among them.
        """
        return self.messages.isend(x, dst, tag)

    def irecv(self, x, int src=ANY, int tag=ANY):
        """Begin to receive an array.

        Parameters
        ----------
        x : array
            Not to be used before the request is done.
        src, tag : int
            As in `recv`.

        Returns
        -------
        Request
            Its `Request.wait` returns the `Message`, and raises what `recv` would.

        Raises
        ------
        TypeError, ValueError
            A bad argument.

        Notes
        -----
        Does not block. Requests that fit the same message get theirs in the order they were made. Moves as in `isend`.
        """
        return self.messages.irecv(x, src, tag)

    def probe(self, int src=ANY, int tag=ANY, *, timeout=...):
        """Wait for a message and describe it, without receiving it.

        Parameters
        ----------
        src, tag : int
            As in `recv`.
        timeout : float, optional
            Seconds to wait, None for ever. The communicator's own by default.

        Returns
        -------
        Message or None
            The message that `recv` with its source and tag gets next; None if none came in time.

        Raises
        ------
        ValueError, PeerLostError, AbortedError
            As in `recv`.
        """
        return self.messages.probe(src, tag, resolve_timeout(timeout, self.timeout_ns))

    def iprobe(self, int src=ANY, int tag=ANY):
        """Describe a message that is there, without waiting or receiving it.

        Parameters
        ----------
        src, tag : int
            As in `recv`.

        Returns
        -------
        Message or None
            None if there is none.

        Raises
        ------
        ValueError, PeerLostError, AbortedError
            As in `recv`; that a rank has closed is no error here.
        """
        return self.messages.probe(src, tag, 0)
