"""The errors of exchanges right after the rendezvous."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shmring.errors import AbortedError, CollectiveTimeoutError, MismatchError, RendezvousError, RendezvousTimeoutError


@contextmanager
def as_rendezvous_errors() -> Iterator[None]:
    """Turn the errors of exchanges into those of a rendezvous: to the caller of `init` they are one."""
    try:
        yield
    except CollectiveTimeoutError as error:
        raise RendezvousTimeoutError(f"{error} (right after the rendezvous)", error.late) from None
    except (AbortedError, MismatchError) as error:
        raise RendezvousError(f"{error} (right after the rendezvous)") from None
