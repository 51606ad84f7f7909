"""The core's errors in the form that torch's programs expect: as `torch.distributed.DistBackendError`, too."""

from __future__ import annotations

from functools import cache

from torch.distributed import DistBackendError

from shmring.errors import CollectiveTimeoutError, MessageTimeoutError, ShmringError

TIMEOUTS = (CollectiveTimeoutError, MessageTimeoutError)


def torch_form(error: ShmringError, timeout_s: float | None) -> Exception:
    """The same error, of a class that is both the core's and torch's; the one itself if it is that already.

    Torch and programs on it tell a timeout by its text.
    """
    if isinstance(error, DistBackendError):
        return error
    message, *rest = error.__reduce__()[1]  # as every class in shmring.errors can be made again
    if isinstance(error, TIMEOUTS):
        after = "" if timeout_s is None else f" after {timeout_s * 1000:.0f} ms"
        message = f"shmring: Timed out{after or ' '}: {message}"
    new = _both(type(error))(message, *rest)
    new.__cause__ = error
    return new


@cache
def _both(kind: type[ShmringError]) -> type:
    def reduce(self):
        return _made_again, (kind, super(both, self).__reduce__()[1])

    both = type(kind.__name__, (kind, DistBackendError), {"__doc__": kind.__doc__, "__reduce__": reduce})
    return both


def _made_again(kind: type[ShmringError], args: tuple) -> Exception:
    return _both(kind)(*args)
