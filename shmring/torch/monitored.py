"""A barrier that tells who did not come."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from shmring.errors import ShmringError
from shmring.torch.errors import torch_form
from shmring.torch.works import seconds


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
        For compatibility: all ranks that are late are always named, without waiting longer.

    Raises
    ------
    torch.distributed.DistBackendError
        Also a `shmring.CollectiveTimeoutError`, with the ranks in ``late``; or a `shmring.PeerLostError`. On all ranks
        that came, and the group is broken.
    """
    chosen = dist.group.WORLD if group is None else group
    timeout_s = chosen._timeout_s if timeout is None else seconds(timeout)
    try:
        chosen.comm.barrier(timeout=timeout_s)
    except ShmringError as error:
        raise torch_form(error, timeout_s) from error
