"""The core's errors in the form that torch's programs expect: as `torch.distributed.DistBackendError`, too."""

from __future__ import annotations

from typing import Any

from torch.distributed import DistBackendError

from shmring.errors import CollectiveTimeoutError, MessageTimeoutError, ShmringError

TIMEOUTS = (CollectiveTimeoutError, MessageTimeoutError)


def torch_form(error: ShmringError, timeout_s: float | None) -> Exception:
    """The same error, of a class that is both the core's and torch's; the one itself if it is that already.

    Torch and programs on it tell a timeout by its text.
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
    """The class of errors that are of this kind and torch's."""
    if kind not in _BOTH:
        members = {"__doc__": kind.__doc__, "__reduce__": lambda self: (_made_again, (kind, _made_of(self, kind)))}
        _BOTH[kind] = type(kind.__name__, (kind, DistBackendError), members)
    return _BOTH[kind]


def _made_of(error: ShmringError, kind: type[ShmringError] | None = None) -> tuple[Any, ...]:
    """The arguments that make this error again, as each class in `shmring.errors` knows them."""
    return tuple((kind or type(error)).__reduce__(error)[1])


def _made_again(kind: type[ShmringError], arguments: tuple) -> Exception:
    return _both(kind)(*arguments)
