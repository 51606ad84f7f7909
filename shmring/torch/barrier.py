"""A barrier that tells who did not come, and after which the group is as usable as before.

Rank 0 hears of each rank by a message and tells all who came whether everybody did. A rank that comes after rank 0 gave
up finds that out by its own timeout, as nobody answers it: answers have the number of the barrier in their tags.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from shmring.errors import MessageTimeoutError, ShmringError
from shmring.torch.errors import torch_form

FIRST_TAG = 1 << 30  # below are the program's
NTAGS = 1 << 29


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Return once every rank of a shmring group has called; name those who did not in time.

    `torch.distributed.monitored_barrier` has the same arguments and is for groups named gloo alone.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The default group if not given.
    timeout : datetime.timedelta, optional
        That of the group if not given.
    wait_all_ranks : bool
        Rank 0 names all who are late, for which it waits as long as ``timeout``; else the first one.

    Raises
    ------
    torch.distributed.DistBackendError
        On rank 0, naming who is late; on the others, that rank 0 has failed. Also a `shmring.MessageTimeoutError`,
        after which the group is usable; or, if a rank is gone, a `shmring.PeerLostError`, after which it is not.
    """
    chosen = dist.group.WORLD if group is None else group
    chosen.monitored_barrier(timeout, wait_all_ranks)


def come_together(comm, number: int, timeout_s: float | None, wait_all_ranks: bool) -> None:
    """The ``number``-th of these barriers on this communicator."""
    tag = FIRST_TAG + number % NTAGS
    try:
        if comm.rank == 0:
            _count(comm, tag, timeout_s, wait_all_ranks)
        else:
            _report(comm, tag, timeout_s)
    except ShmringError as error:
        raise torch_form(error, timeout_s) from error


def _count(comm, tag: int, timeout_s: float | None, wait_all_ranks: bool) -> None:
    """On rank 0: hear of everybody, and say how it went."""
    if timeout_s == 0:
        raise MessageTimeoutError("Rank 0 timed out in monitoredBarrier: it had no time at all")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    late: list[int] = []
    for r in range(1, comm.size):
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            comm.recv(torch.empty(0), r, tag, timeout=left_s)
        except MessageTimeoutError:
            late.append(r)
            if not wait_all_ranks:
                break
    for r in range(1, comm.size):
        if r not in late:  # where only the first is named, a late one may get this as well, and pays no heed to it
            comm.send(torch.tensor([bool(late)]), r, tag)
    if late:
        who = f"Rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        raise MessageTimeoutError(f"{who} failed to pass monitoredBarrier in {(timeout_s or 0) * 1000:.0f} ms")


def _report(comm, tag: int, timeout_s: float | None) -> None:
    """On the others: tell rank 0, and hear from it."""
    failed = torch.zeros(1, dtype=torch.bool)
    try:
        comm.send(torch.empty(0), 0, tag, timeout=timeout_s)
        comm.recv(failed, 0, tag, timeout=timeout_s)
    except MessageTimeoutError:
        failed.fill_(True)
    if failed:
        raise MessageTimeoutError(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            "from rank 0. Please check rank 0's messages for the rank that is late"
        )
