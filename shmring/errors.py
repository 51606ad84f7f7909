"""The errors, and the state that each leaves behind.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised before anything is sent; the communicator or
channel stays usable. All errors here derive from `ShmringError`.
"""


class ShmringError(Exception):
    """Base class of all errors of shmring."""


class BrokenError(ShmringError):
    """Base class of the errors after which a communicator is broken.

    The result of the call is undefined, and every later call raises the same error at once. Make a new
    communicator of the survivors with `Communicator.shrink`, or close it.
    """


class PeerLostError(BrokenError):
    """A peer process is gone: it was killed, crashed, or closed its end while others still needed it.

    Attributes
    ----------
    rank : int
        The lost rank; -1 if the peer has no rank (channels).
    pid : int
        Its process id in its own PID namespace, 0 if unknown.
    """

    def __init__(self, message: str, rank: int = -1, pid: int = 0) -> None:
        super().__init__(message)
        self.rank = rank
        self.pid = pid

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank, self.pid)


class DisconnectedError(PeerLostError):
    """The sender of a broadcast has disconnected this receiver, which left no room for ``slow_timeout`` seconds;
    what it had not received is lost."""


class WorkerLostError(PeerLostError):
    """The worker of a pool that had this task was killed or has exited. Whether it completed the task is not known.

    Attributes
    ----------
    pid : int
        Its process id.
    status : int
        Its exit status; the negative number of the signal that killed it.
    task : str
        The name of the task's function.
    number : int
        The task's place in its call, from 0: that of the item in ``imap`` and with ``chunksize=1``, else of the chunk.
    """

    def __init__(self, message: str, pid: int = 0, status: int = 0, task: str = "", number: int = 0) -> None:
        super().__init__(message, pid=pid)
        self.status = status
        self.task = task
        self.number = number

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.pid, self.status, self.task, self.number)


class CollectiveTimeoutError(BrokenError, TimeoutError):
    """Live peers did not reach the collective before the timeout.

    Attributes
    ----------
    late : tuple of int
        The missing ranks.
    account : str
        What each rank was in, which ranks it waited for, for how long, and its line of Python, as this rank found it;
        the message ends with it. Empty if the memory was gone.
    """

    def __init__(self, message: str, late: tuple[int, ...] = (), account: str = "") -> None:
        super().__init__(message)
        self.late = late
        self.account = account

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.late, self.account)


class MismatchError(BrokenError):
    """Ranks disagree about a collective: kind, operation, dtype, count, root, or the order of calls.

    The message has the signatures of two ranks that differ.

    Attributes
    ----------
    ranks : tuple of int
        Two ranks with different signatures.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.ranks)


class AbortedError(BrokenError):
    """A peer called ``abort()``, exited with an exception, or was interrupted in a collective.

    Attributes
    ----------
    rank : int
        The rank that aborted.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank)


class MessageError(ShmringError):
    """Base class of the errors of one message; the communicator and all other messages are unaffected."""


class MessageTooLongError(MessageError, ValueError):
    """A message is longer than the array passed to receive it; it stays queued for a call with a larger one.

    Attributes
    ----------
    source, tag : int
        The sending rank, and the tag.
    nbytes : int
        The length of the message.
    """

    def __init__(self, message: str, source: int = -1, tag: int = -1, nbytes: int = -1) -> None:
        super().__init__(message)
        self.source = source
        self.tag = tag
        self.nbytes = nbytes

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.source, self.tag, self.nbytes)


class MessageTimeoutError(MessageError, TimeoutError):
    """No message was received, or the peer received none, before the timeout; the call had no effect."""


class ClosedError(ShmringError, ValueError):
    """This object was closed in this process, or it belongs to another one (it was inherited through ``fork``)."""


class EndOfStreamError(ShmringError, EOFError):
    """The sender closed its end of a channel, and all messages have been received."""


class ObjectError(ShmringError):
    """An object could not be pickled (raised on all ranks) or unpickled (raised on the receiving rank only).

    The call has ended on all ranks and the communicator stays usable. On the rank that failed, ``__cause__`` is the
    original exception.

    Attributes
    ----------
    rank : int
        The rank that sent the object.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank)


class BlockLostError(ObjectError):
    """A block can no longer be opened: the process that held it has ended or has let it go; the message says which.

    Attributes
    ----------
    pid : int
        The process, in its own PID namespace; 0 if unknown.
    """

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.pid)


class RoleTakenError(ShmringError):
    """Another process or object already holds this end of a ring. The ring and the holder are unaffected.

    Attributes
    ----------
    pid : int
        The holder's process id in its own PID namespace; 0 if the holder has not stored it yet.
    """

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.pid)


class OutOfSharedMemoryError(ShmringError, MemoryError):
    """Shared memory could not be reserved; nothing was created.

    Attributes
    ----------
    needed, available : int
        Bytes requested, and bytes free in the shared-memory file system, or in the memory control group (container) of
        this process if that is less; -1 if unknown.
    """

    def __init__(self, message: str, needed: int = -1, available: int = -1) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.needed, self.available)


class SegmentError(ShmringError, OSError):
    """A shared-memory segment cannot be created, or the file found under its name fails a check."""


class RendezvousError(ShmringError):
    """The rendezvous of the ranks failed; nothing is left behind, and `init` may be called again."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Some ranks did not join the rendezvous before the timeout.

    Attributes
    ----------
    missing : tuple of int
        The ranks that did not join.
    """

    def __init__(self, message: str, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.missing)


class RankFailedError(ShmringError):
    """A process started by `spawn` failed, and its own exception cannot be raised here.

    It exited with a status, or its exception or result cannot be pickled; the message has the remote traceback.

    Attributes
    ----------
    rank : int
        The rank that failed.
    status : int
        Its exit status; 0 if it raised or returned.
    """

    def __init__(self, message: str, rank: int = -1, status: int = 0) -> None:
        super().__init__(message)
        self.rank = rank
        self.status = status

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank, self.status)
