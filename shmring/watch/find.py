"""The jobs of this user on this machine: found by the descriptors that ranks keep of their outboxes.

Nothing of a communicator has a name once all ranks are connected, and nothing in shared memory lists jobs, so that a
job that is killed leaves nothing. But each rank keeps a descriptor of its outbox, and one of the outbox of each rank in
another PID namespace. So all ranks of a job are found wherever the process of one of them can be seen. Descriptors are
opened read-only, two pages are copied, and they are closed at once: a look changes nothing, maps nothing, and keeps no
memory alive.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from shmring.collectives.engine.abort_errors import error_of
from shmring.collectives.observe.account import Standing, culprits, standings
from shmring.collectives.observe.look import LOOK_NBYTES, OutboxLook, look
from shmring.core.memory.open_files import OpenFile, open_files
from shmring.core.memory.spelling import user_prefix
from shmring.watch.processes import Process, process

MOST_RANKS = 16384  # more than a communicator can have


class Member(NamedTuple):
    """A rank of a communicator.

    Attributes
    ----------
    rank : int
    process : Process or None
        None if it cannot be seen from here: in another PID namespace, or dead.
    look : OutboxLook or None
        None if its memory cannot be read.
    standing : Standing
    """

    rank: int
    process: Process | None
    look: OutboxLook | None
    standing: Standing

    @property
    def node(self) -> tuple:
        """A key that is equal for one process in all communicators of a job."""
        if self.look is None:
            return ("unseen", self.rank)
        header = self.look.header
        return (header.pid_ns, header.pid, header.start_time)


class Group(NamedTuple):
    """A communicator.

    Attributes
    ----------
    name : str
        Empty for the communicator of all ranks of the job; else the rest of the names of its segments.
    is_complete : bool
        False while its ranks are still looking for one another.
    members : list of Member
        By rank.
    failure : str
        Why it is broken; empty if it is not.
    """

    name: str
    is_complete: bool
    members: list[Member]
    failure: str


class Job(NamedTuple):
    """A session: its communicators, the one with the most ranks first.

    Attributes
    ----------
    session : str
        The readable part of the session's key, and its hash, as in the names of its segments.
    groups : list of Group
    keepers : set of tuple
        The nodes (`Member.node`) that keep others waiting.
    cycle : set of tuple
        Those that wait for one another.
    """

    session: str
    groups: list[Group]
    keepers: set[tuple]
    cycle: set[tuple]

    @property
    def pids(self) -> set[int]:
        """The pids of its visible processes."""
        return {member.process.pid for group in self.groups for member in group.members if member.process}


class Machine(NamedTuple):
    """All jobs of this user that can be seen.

    Attributes
    ----------
    jobs : list of Job
    unreadable : tuple of int
        Processes of this user that may not be inspected, for example such as have more rights than this one.
    now_ns : int
        When this was found, by CLOCK_MONOTONIC.
    """

    jobs: list[Job]
    unreadable: tuple[int, ...]
    now_ns: int


def look_at_jobs(files: Iterable[OpenFile] | None = None, refused: Sequence[int] = ()) -> Machine:
    """Look at every job of this user. Does not block, and does not affect the watched processes.

    ``files``, ``refused``: what `open_files` has found, if the caller has called it.
    """
    if files is None:
        files = open_files(refused := [])
    groups: dict[tuple, dict[int, tuple[OutboxLook, list[int]]]] = {}
    known: dict[tuple[int, int], list[int]] = {}
    for file in files:
        with suppress(OSError):
            inode = file.inode()
            if inode in known:
                known[inode].append(file.pid)
                continue
            one = look(file.read((0, LOOK_NBYTES))[0])
            where = _place_of(file)
            if one is not None and where is not None and one.header.size <= MOST_RANKS:
                known[inode] = [file.pid]
                key = (*where, one.header.size, one.attached)
                groups.setdefault(key, {})[one.header.rank] = one, known[inode]
    processes = {pid: process(pid) for pids in known.values() for pid in pids}
    jobs: dict[str, list[Group]] = {}
    for (session, name, size, attached), found in sorted(groups.items()):
        jobs.setdefault(session, []).append(_group(name, size, attached, found, processes))
    listed = [_job(session, found) for session, found in jobs.items()]
    return Machine(listed, tuple(refused), time.monotonic_ns())


def _place_of(file: OpenFile) -> tuple[str, str] | None:
    """Session and sub-session of an outbox, from its name (`shmring.core.memory.spelling`)."""
    parts = file.name.removeprefix(user_prefix()).split("-")
    return (parts[0], "-".join(parts[1:-1])) if len(parts) > 1 and file.name.isprintable() else None


def _group(name: str, size: int, attached: int, found: dict, processes: dict[int, Process | None]) -> Group:
    looks = [found[rank][0] if rank in found else None for rank in range(size)]
    members = [
        Member(rank, _owner(looks[rank], found[rank][1] if rank in found else [], processes), looks[rank], standing)
        for rank, standing in enumerate(standings(looks))
    ]
    is_complete = 0 < attached < 2**63  # else it is none, or a reason to give up (collectives/bootstrap/rendezvous.py)
    return Group(name, is_complete, members, _failure(looks))


def _failure(looks: list[OutboxLook | None]) -> str:
    """The error that the ranks raise."""
    first = looks[0]
    if first is None or first.failure is None:
        return ""
    about = first.failure.about
    one = looks[about] if 0 <= about < len(looks) else None
    pid = one.header.pid if one else 0
    return str(error_of(first.failure._replace(pid=pid), -1, "")).removeprefix(": ")


def _owner(one: OutboxLook | None, pids: list[int], processes: dict[int, Process | None]) -> Process | None:
    """Which of the processes that have an outbox open is its rank: forked children have it, too."""
    for pid in pids if one is not None else ():
        seen = processes[pid]
        header = one.header  # type: ignore[union-attr]
        if seen and seen.inner_pid == header.pid and header.start_time in (0, seen.start_time):
            return seen
    return None


def _job(session: str, groups: list[Group]) -> Job:
    """One job, with its graph over all communicators: a rank may be late in one because it waits in another."""
    edges: dict[tuple, set[tuple]] = {}
    for group in groups:
        for member in group.members:
            awaited = {group.members[rank].node for rank in member.standing.awaits}
            edges.setdefault(member.node, set()).update(awaited - {member.node})
    keepers, cycle = culprits(edges)
    return Job(session, sorted(groups, key=lambda group: -len(group.members)), keepers, cycle)
