"""The core's errors as subclasses of `torch.distributed.DistBackendError`, which torch programs expect."""

from __future__ import annotations

from typing import Any

from torch.distributed import DistBackendError

from shmring.errors import CollectiveTimeoutError, MessageTimeoutError, ShmringError

TIMEOUTS = (CollectiveTimeoutError, MessageTimeoutError)


def torch_form(error: ShmringError, timeout_s: float | None) -> Exception:
    """The same error, of a class that is both the core's and torch's; the error itself if it is already.

    Torch and torch programs recognise a timeout by its text.
    """
    if isinstance(error, DistBackendError):
        return error
    message, *rest = _made_of(error)
    if isinstance(error, TIMEOUTS):
        after = "" if timeout_s is None else f" after {timeout_s * 1000:.0f} ms"
        message = f"shmring: Timed out{after or ' '}: {message}"
    new = _both(type(error))(message, *rest)
    new.__cause__ = error
    return new


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
