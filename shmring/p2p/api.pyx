"""The point-to-point calls of a communicator: arrays from one rank to one other."""

from shmring.collective.base cimport resolve_timeout
from shmring.collective.data_movement cimport DataMovement
from shmring.engine.engine cimport Engine
from shmring.p2p.point_to_point cimport PointToPoint
from shmring.p2p.requests cimport ANY


cdef class MessageCalls(DataMovement):
    """The part of `shmring.Communicator` that sends and receives arrays."""

    def __cinit__(self, Engine engine not None, *args, **kwargs):
        self.messages = PointToPoint(engine)

    def stats(self):
        """Statistics of this rank's engine and pair queues.

        Returns
        -------
        dict
            The statistics of the engine, and ``pair_queues``: for each rank to which a message of more than 40 bytes
            was sent, the bytes of the byte ring, the laps made, how it is stored to, and the microseconds that writing
            and reading one lap took in the last trials of each kind of stores (ordinary, streaming, prefetched,
            string).

        Notes
        -----
        Not collective.
        """
        return DataMovement.stats(self) | {"pair_queues": self.messages.stats()}

    def send(self, x, int dst, int tag=0, *, timeout=...):
        """Send an array to one rank.

        Parameters
        ----------
        x : array, any shape
            Any array on the CPU with the buffer protocol or DLPack, structures too. It may be changed after the call.
        dst : int
            The receiving rank; may be this rank.
        tag : int
            From 0 to 2**31 - 1; the receiver can select by it.
        timeout : float, optional
            Seconds to wait for room, None for no limit. The communicator's timeout by default.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent.
        OutOfSharedMemoryError
            /dev/shm has no room for the pair queue, whose memory is reserved at the first message to this rank and at
            the first of more than 40 bytes. Nothing was sent.
        MessageTimeoutError
            No room within ``timeout``. Nothing was sent; the communicator stays usable.
        CollectiveTimeoutError
            ``dst`` received the beginning, then nothing for ``timeout``; the communicator is broken.
        PeerLostError, AbortedError
            The communicator is broken.

        Notes
        -----
        Returns once all of ``x`` is in the pair queue to ``dst``, whether or not `recv` has been called: it holds at
        least 256 KiB (``config.pair_queue_nbytes``) and 256 messages. A longer message streams through, so the call
        waits for the receiver. Any thread may call. Messages to one rank arrive in the order they were sent.
        """
        self.messages.send(x, dst, tag, resolve_timeout(timeout, self.timeout_ns))

    def recv(self, x, int src=ANY, int tag=ANY, *, timeout=...):
        """Receive an array from one rank, or from any.

        Parameters
        ----------
        x : array, any shape
            The message is stored from its beginning on. It may be larger than the message and must have its dtype;
            uint8 and opaque structures may be mixed.
        src : int
            The sending rank; `ANY_SOURCE` (-1), the default: the first message to arrive, and no rank starves.
        tag : int
            `ANY_TAG` (-1), the default: any tag.
        timeout : float, optional
            Seconds to wait, None for no limit. The communicator's timeout by default.

        Returns
        -------
        Message
            ``source``, ``tag``, ``nbytes``, ``count`` and ``dtype`` of the message.

        Raises
        ------
        ValueError
            A bad argument.
        MessageTooLongError
            The message is longer than ``x``. It can still be received.
        TypeError
            ``x`` is no array, or the message has another dtype; then it can still be received.
        MessageTimeoutError
            No message arrived. The communicator stays usable. If a message was partly received, ``x`` is undefined, and
            the message can still be received.
        PeerLostError, AbortedError
            The communicator is broken. Messages that a rank sent completely before it was lost are received first.

        Notes
        -----
        Any thread may call. Messages from one rank are matched in the order they were sent; an earlier one with another
        tag is copied to private memory.
        """
        return self.messages.recv(x, src, tag, resolve_timeout(timeout, self.timeout_ns))

    def sendrecv(self, x, int dst, out, int src=ANY, *, int tag=0, int out_tag=ANY, timeout=...):
        """Send one array and receive another at the same time; it cannot deadlock, whatever their sizes.

        Parameters
        ----------
        x : array
            Sent to ``dst``.
        dst : int
        out : array
            Receives the message from ``src``; it must not overlap ``x``.
        src : int
            As in `recv`.
        tag : int
            Tag of the message sent.
        out_tag : int
            Tag of the message received, `ANY_TAG` by default.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Message
            The message received.

        Notes
        -----
        Raises as `send` and `recv`. If ``out`` does not fit the message, ``x`` was sent. On a ring of ranks,
        ``comm.sendrecv(x, (rank + 1) % size, out, (rank - 1) % size)`` shifts by one.
        """
        return self.messages.sendrecv(x, dst, tag, out, src, out_tag,
                                      resolve_timeout(timeout, self.timeout_ns))

    def isend(self, x, int dst, int tag=0):
        """Begin to send an array to one rank.

        Parameters
        ----------
        x : array
            Must not be changed until the request is done.
        dst, tag : int
            As in `send`.

        Returns
        -------
        Request
            Done once all of ``x`` is in the pair queue; often at once.

        Notes
        -----
        Does not block; raises as `send`. Progresses only during other point-to-point calls of this communicator in this
        process, including `Request.wait` and `Request.done`.
        """
        return self.messages.isend(x, dst, tag)

    def irecv(self, x, int src=ANY, int tag=ANY):
        """Begin to receive an array.

        Parameters
        ----------
        x : array
            Must not be used until the request is done.
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
        Does not block. Requests that match the same messages get them in the order of the calls. Progresses as
        in `isend`.
        """
        return self.messages.irecv(x, src, tag)

    def probe(self, int src=ANY, int tag=ANY, *, timeout=...):
        """Wait for a message and describe it, without receiving it. Raises as `recv`.

        Parameters
        ----------
        src, tag : int
            As in `recv`.
        timeout : float, optional
            Seconds to wait, None for no limit. The communicator's timeout by default.

        Returns
        -------
        Message or None
            The message that `recv` with its source and tag would receive next; None if none arrived in time.
        """
        return self.messages.probe(src, tag, resolve_timeout(timeout, self.timeout_ns))

    def iprobe(self, int src=ANY, int tag=ANY):
        """Describe a message that has arrived, without waiting or receiving it.

        Raises as `recv`, except that a closed rank is not an error.

        Parameters
        ----------
        src, tag : int
            As in `recv`.

        Returns
        -------
        Message or None
            None if there is none.
        """
        return self.messages.probe(src, tag, 0)
