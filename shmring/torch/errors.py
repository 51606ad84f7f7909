"""The core's errors as subclasses of `torch.distributed.DistBackendError`, which torch programs expect."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch.distributed import DistBackendError

from shmring.errors import CollectiveTimeoutError, MessageTimeoutError, ShmringError

# The last errors, without their tracebacks, which would keep the arrays of frames alive.
_raised: deque[Exception] = deque(maxlen=32)


def torch_form(error: ShmringError, timeout_s: float | None) -> Exception:
    """The error as one of a class that is both the core's and torch's; the error itself if it is already.

    Torch and torch programs recognise a timeout by its text. It is raised ``from`` what the error was raised from: its
    own traceback would repeat the text, below lines of the engine.
    """
    if isinstance(error, DistBackendError):
        return error
    message, *rest = _made_of(error)
    if isinstance(error, (CollectiveTimeoutError, MessageTimeoutError)):
        after = "" if timeout_s is None else f" after {timeout_s * 1000:.0f} ms"
        message = f"shmring: Timed out{after or ' '}: {message}"
    kind = _both(type(error))
    _raised.append(kind(message, *rest))
    return kind(message, *rest)


def error_of(exception: BaseException) -> ShmringError | None:
    """The error of shmring behind an exception of torch's.

    An error in the call of a bucket of DistributedDataParallel, in a hook or in a future passes through torch's C++,
    which raises a ``RuntimeError`` with its text: its class, its attributes and its cause are lost.

    Parameters
    ----------
    exception : BaseException
        The exception that the program has caught.

    Returns
    -------
    ShmringError or None
        ``exception`` itself, an exception that it was raised from, or the last error of this process whose text it
        contains. The error has the attributes of its class, such as ``rank`` of `shmring.PeerLostError`. None if there
        is no such error.

    Notes
    -----
    Local; does not block. The texts of the last 32 errors are kept.
    """
    link: BaseException | None = exception
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, ShmringError):
            return link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    text = str(exception)
    return next((one for one in reversed(_raised) if isinstance(one, ShmringError) and str(one) in text), None)


_BOTH: dict[type, type] = {}


def _both(kind: type[ShmringError]) -> type:
    """The class that derives from ``kind`` and from torch's error."""
    if kind not in _BOTH:
        members = {"__doc__": kind.__doc__, "__reduce__": lambda self: (_made_again, (kind, _made_of(self, kind)))}
        _BOTH[kind] = type(kind.__name__, (kind, DistBackendError), members)
    return _BOTH[kind]


def _made_of(error: ShmringError, kind: type[ShmringError] | None = None) -> tuple[Any, ...]:
    """The arguments that construct this error again, from its class's ``__reduce__``."""
    return tuple((kind or type(error)).__reduce__(error)[1])


def _made_again(kind: type[ShmringError], arguments: tuple) -> Exception:
    return _both(kind)(*arguments)
