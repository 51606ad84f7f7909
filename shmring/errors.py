"""The errors, each saying what state it leaves behind.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised before anything is sent; the communicator or
channel stays usable. Everything below derives from `ShmringError`.
"""


class ShmringError(Exception):
    """Root of the family; catch it to catch whatever shmring itself can raise."""


class BrokenError(ShmringError):
    """Root of the errors after which a communicator is broken.

    The result of the call is undefined and every later call raises the same error at once. Make a new
    communicator of the survivors with `Communicator.shrink`, or close it.
    """


class PeerLostError(BrokenError):
    """A peer process is gone: killed, crashed, or it closed its end while others still needed it.

    Attributes
    ----------
    rank : int
        The rank that was lost, or -1 where the peer has no rank (channels).
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
    """The sender of a broadcast goes on without this receiver, which was too slow. What it had not received is
    dropped."""


class CollectiveTimeoutError(BrokenError, TimeoutError):
    """Peers that are alive did not come in time.

    Attributes
    ----------
    late : tuple of int
        The ranks that were waited for.
    """

    def __init__(self, message: str, late: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.late = late

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.late)


class MismatchError(BrokenError):
    """Ranks disagree about a collective: kind, operation, dtype, count, root, or the order of calls.

    The message has both sides' signatures.

    Attributes
    ----------
    ranks : tuple of int
        Two ranks whose signatures differ.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.ranks)


class AbortedError(BrokenError):
    """A peer called ``abort()``, left with an exception, or was interrupted in a collective.

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
    """Root of the errors of one message; the communicator stays usable and no other message is concerned."""


class MessageTooLongError(MessageError, ValueError):
    """A message is longer than the array to receive it; it stays where it is and can be received into a larger one.

    Attributes
    ----------
    source, tag : int
        Of the message.
    nbytes : int
        Its length.
    """

    def __init__(self, message: str, source: int = -1, tag: int = -1, nbytes: int = -1) -> None:
        super().__init__(message)
        self.source = source
        self.tag = tag
        self.nbytes = nbytes

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.source, self.tag, self.nbytes)


class MessageTimeoutError(MessageError, TimeoutError):
    """No message came, or none was taken, in time; as if the call had not been made."""


class ClosedError(ShmringError, ValueError):
    """This end was closed here, or it belongs to another process (it was inherited through ``fork``)."""


class EndOfStreamError(ShmringError, EOFError):
    """The sender closed its end of a channel in good order, and all that it sent was received."""


class ObjectError(ShmringError):
    """An object could not be pickled, which all ranks then hear, or not be unpickled, which only its receiver does.

    The call is over on all ranks and the communicator stays usable. The cause, where this rank met it, is the error's
    ``__cause__``.

    Attributes
    ----------
    rank : int
        The rank whose object it is.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank)


class RoleTakenError(ShmringError):
    """An end of a ring has been taken already; each is taken once. The ring and its holder are undisturbed.

    Attributes
    ----------
    pid : int
        The holder's process id in its own PID namespace, 0 if it is just taking it.
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
        Bytes asked for, and bytes free in the shared-memory file system (-1 if unknown).
    """

    def __init__(self, message: str, needed: int = -1, available: int = -1) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.needed, self.available)


class SegmentError(ShmringError, OSError):
    """A shared-memory segment cannot be created, or what was found under its name is not to be trusted."""


class RendezvousError(ShmringError):
    """The ranks of a communicator did not find each other; nothing is left behind and `init` may be called again."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Some ranks never came.

    Attributes
    ----------
    missing : tuple of int
        The ranks that were waited for.
    """

    def __init__(self, message: str, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.missing)


class RankFailedError(ShmringError):
    """A process started by `spawn` failed in a way that no exception of its own can show here.

    It left with a status, or what it raised or returned cannot be pickled; the message has the remote traceback.

    Attributes
    ----------
    rank : int
        The rank that failed.
    status : int
        What it left with, 0 if it raised or returned.
    """

    def __init__(self, message: str, rank: int = -1, status: int = 0) -> None:
        super().__init__(message)
        self.rank = rank
        self.status = status

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank, self.status)
