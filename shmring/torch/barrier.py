"""A barrier that names the ranks that are late, and after which the group is still usable.

Each rank sends a message to rank 0, which replies whether all ranks arrived. A rank that arrives after rank 0 has given
up gets no reply and times out itself: tags contain the number of the barrier.
"""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np
import torch.distributed as dist

from shmring.errors import MessageTimeoutError, ShmringError
from shmring.torch.errors import torch_form

FIRST_TAG = 1 << 30  # lower tags belong to the program
NTAGS = 1 << 29


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Return once every rank of a shmring group has called; name the ranks that have not called in time.

    `torch.distributed.monitored_barrier` has the same arguments and works only for groups named gloo.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The default group by default.
    timeout : datetime.timedelta, optional
        The timeout of the group by default.
    wait_all_ranks : bool
        Rank 0 names all late ranks, for which it waits up to ``timeout``; else only the first.

    Raises
    ------
    torch.distributed.DistBackendError
        On rank 0 with the late ranks, on the others with rank 0. It is a `shmring.MessageTimeoutError`, too, after
        which the group is usable; or, if a rank is gone, a `shmring.PeerLostError`, after which it is not.
    """
    chosen = dist.group.WORLD if group is None else group
    chosen.monitored_barrier(timeout, wait_all_ranks)


def run_monitored_barrier(comm, number: int, timeout_s: float | None, wait_all_ranks: bool) -> None:
    """Run the ``number``-th of these barriers on this communicator."""
    tag = FIRST_TAG + number % NTAGS
    try:
        if comm.rank == 0:
            _collect(comm, tag, timeout_s, wait_all_ranks)
        else:
            _check_in(comm, tag, timeout_s)
    except ShmringError as error:
        raise torch_form(error, timeout_s) from error.__cause__


def _collect(comm, tag: int, timeout_s: float | None, wait_all_ranks: bool) -> None:
    """On rank 0: receive a message of every rank, and reply with the outcome."""
    if timeout_s == 0:
        raise MessageTimeoutError("Rank 0 timed out in monitoredBarrier: the timeout is zero")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    late: list[int] = []
    for r in range(1, comm.size):
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            comm.recv(np.empty(0), r, tag, timeout=left_s)
        except MessageTimeoutError:
            late.append(r)
            if not wait_all_ranks:
                break
    for r in range(1, comm.size):
        if r not in late:  # a rank that times out meanwhile ignores the reply
            comm.send(np.array([bool(late)]), r, tag)
    if late:
        names = f"Rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        raise MessageTimeoutError(f"{names} failed to pass monitoredBarrier in {(timeout_s or 0) * 1000:.0f} ms")


def _check_in(comm, tag: int, timeout_s: float | None) -> None:
    """On the other ranks: send a message to rank 0 and wait for its reply."""
    failed = np.zeros(1, bool)
    try:
        comm.send(np.empty(0), 0, tag, timeout=timeout_s)
        comm.recv(failed, 0, tag, timeout=timeout_s)
    except MessageTimeoutError:
        failed[0] = True
    if failed[0]:
        raise MessageTimeoutError(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            "from rank 0. Please check rank 0's messages for the rank that is late"
        )
