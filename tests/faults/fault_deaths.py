"""Every way in which a rank may fail, and what its peers must then see."""

from __future__ import annotations

import os
import re
import signal
import sys

from shmring.errors import (
    AbortedError,
    BrokenError,
    CollectiveTimeoutError,
    PeerLostError,
    RendezvousError,
    RendezvousTimeoutError,
)


def leave_with(number):
    """A death by a signal without a handler."""

    def die():
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        signal.raise_signal(number)

    return die


def throw():
    """An uncaught exception: it passes through the communicator's context manager."""
    raise LookupError("on purpose")


DEATHS = {
    "SIGKILL": leave_with(signal.SIGKILL),
    "SIGSTOP": leave_with(signal.SIGSTOP),
    "SIGTERM": leave_with(signal.SIGTERM),
    "os._exit": lambda: os._exit(0),
    "raise": throw,
    "sys.exit": lambda: sys.exit(5),
}

# Only the clock distinguishes a stopped process from a slow one, and these tests run on busy machines.
STOP_TIMEOUT_S = 1.0

ERRORS: dict[str, type[BrokenError]] = dict.fromkeys(DEATHS, PeerLostError) | {
    "SIGSTOP": CollectiveTimeoutError,
    "raise": AbortedError,
    "sys.exit": AbortedError,
}


class OtherLateError(AssertionError):
    """An error names other ranks than the one that has stopped: late by the timeout too, unless it is wrong."""


def is_without(victim, error):
    """Whether the error is of a shrink that was repeated without the victim, and in which other ranks timed out."""
    members = re.search(r"of the ranks \[([0-9, ]+)\] of a new group", str(error))
    return members is not None and victim not in [int(rank) for rank in members[1].split(",")]


def check_error(error, death, victim, pid):
    """Whether ``error``, raised in a call that ``victim`` failed in, is of the right kind and names the right rank."""
    if not isinstance(error, BrokenError):  # only this message or this new group is concerned
        assert isinstance(error, RendezvousError) or death == "SIGSTOP", error
        if isinstance(error, RendezvousTimeoutError):
            assert death == "SIGSTOP", error
            if victim not in error.missing and not is_without(victim, error):
                raise OtherLateError(str(error))
        return
    if "a new group" in str(error) and ERRORS[death] is AbortedError and isinstance(error, PeerLostError):
        assert error.rank == victim, error  # it never had that group's communicator, through which it could abort
        return
    if death == "SIGSTOP" and isinstance(error, PeerLostError):
        assert error.rank == victim, error  # another survivor has noticed, and ended it
        return
    assert isinstance(error, ERRORS[death]), error
    text = str(error)
    if death == "SIGSTOP":
        if victim not in error.late:
            raise OtherLateError(text)
        assert "timed out" in text, text
    elif ERRORS[death] is AbortedError:
        assert error.rank == victim, error
        assert f"rank {victim}" in text, text
        assert "aborted: " in text, text
        assert ("LookupError" if death == "raise" else "SystemExit") in text, text
    else:
        assert error.rank == victim, error
        assert f"rank {victim}" in text, text
        assert error.pid in (pid, 0), (error.pid, pid)
