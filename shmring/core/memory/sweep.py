"""Names in shared memory: list them, and unlink those that dead processes left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from shmring.core.base.pace import Pace
from shmring.core.memory import names
from shmring.core.memory.spelling import session_prefix, user_prefix
from shmring.core.memory.syscalls import refusals
from shmring.errors import SegmentError

# How long a death that was seen in one place may stay hidden in another: the kernel releases the liveness words of a
# dying process one after the other within microseconds.
DEATH_GRACE_S = 1.0
# How long its locks on names may outlast them: until the kernel has freed its private memory, and a process that has
# much of it, or is kept from its processor, takes seconds to end.
EXIT_GRACE_S = 10.0


class Leftover(NamedTuple):
    """A name of this user's in shared memory: of a rendezvous in progress, or left by a killed process.

    Attributes
    ----------
    name : str
        With the leading slash.
    nbytes : int
        Size of the file.
    status : str
        ``"live"``: its creator lives; ``"stale"``: its creator is dead; else a description of what is not a segment.
    pid : int
        The creator's, in its own PID namespace; 0 if unknown.
    """

    name: str
    nbytes: int
    status: str
    pid: int


def leftovers(session: str | None = None) -> list[Leftover]:
    """List the names of this user's segments, sorted. A segment has no name once all of its ranks have attached.

    Parameters
    ----------
    session : str, optional
        Only names of this session and its sub-sessions.

    Returns
    -------
    list of Leftover
    """
    return list(_standing(user_prefix() if session is None else session_prefix(session)))


def sweep(session: str) -> list[str]:
    """Unlink the stale names of a session and its sub-sessions; names of live creators stay.

    For launchers, once all processes of the session have ended.

    Parameters
    ----------
    session : str
        The key that its ranks used.

    Returns
    -------
    list of str
        The names that were unlinked.

    Raises
    ------
    SegmentError
        The kernel refuses, or a process has stopped while it was creating or unlinking one of the names.
    """
    stale = [leftover.name for leftover in _standing(session_prefix(session)) if leftover.status == "stale"]
    with refusals(f"sweep session {session!r}"):
        return [name for name in stale if names.remove_stale(name)]


def sweep_leftovers() -> None:
    """Unlink the stale names of all sessions of this user; for a job that begins.

    A job whose processes were all killed at once, as with their launcher, while they made a group or arrays, has none
    left that could do it.
    """
    with suppress(OSError):
        for leftover in _standing(user_prefix()):
            if leftover.status == "stale" and not _is_new(leftover):
                with suppress(SegmentError):  # a process that holds the name is stopped
                    names.remove_stale(leftover.name)


def _is_new(leftover: Leftover) -> bool:
    """Whether the creator of a name may still be about to lock it."""
    born = os.lstat(names.SHM_DIRECTORY + leftover.name).st_ctime
    return not leftover.nbytes and time.time() < born + names.BIRTH_GRACE_S


def sweep_after(session: str, pids: Iterable[int]) -> None:
    """Unlink the names of a session that these dead processes left; for the surviving ranks.

    The locks of a dying process are released after its liveness word, so its names are polled until they are stale, for
    at most `EXIT_GRACE_S`. So are names without a pid, for `DEATH_GRACE_S`: their creator may be one of the dead.
    """
    grace_s = dict.fromkeys(pids, EXIT_GRACE_S) | {0: DEATH_GRACE_S}
    began, pace = time.monotonic(), Pace()
    with suppress(SegmentError):
        sweep(session)
        while any(time.monotonic() - began < grace_s.get(name.pid, 0) for name in leftovers(session)):
            pace.pause()
            sweep(session)


def _standing(prefix: str) -> Iterator[Leftover]:
    entries = os.listdir(names.SHM_DIRECTORY) if os.path.isdir(names.SHM_DIRECTORY) else []
    for name in sorted("/" + entry for entry in entries if ("/" + entry).startswith(prefix)):
        try:
            with names.opened(name) as fd:
                if fd is not None:
                    status = "live" if names.is_alive(fd) else "stale"
                    yield Leftover(name, os.fstat(fd).st_size, status, names.pid_of(fd))
        except SegmentError as error:
            yield Leftover(name, 0, error.strerror or str(error), 0)
