"""How a process becomes a rank: `init`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shmring.collectives.bootstrap.connect import connect
from shmring.collectives.bootstrap.environment import discover
from shmring.communicator import Communicator
from shmring.config import configure
from shmring.core.memory.sweep import sweep_leftovers
from shmring.launch.processes import seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmring.typing import Settings


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    session: str | None = None,
    rendezvous_timeout: float | None = 300.0,
    **settings: Unpack[Settings],
) -> Communicator:
    """Find the other ranks and return the communicator of all of them.

    Parameters
    ----------
    rank, size : int, optional
        Both or neither; by default what the launcher exported: ``shmring run``, torchrun, Open MPI, MPICH, Intel MPI or
        Slurm.
    session : str, optional
        A key that the ranks of this job share and no other job of this user has at the same time; by default derived
        from what the launcher exported.
    rendezvous_timeout : float, optional
        Seconds to wait for the other ranks; None or infinity: no limit.
    **settings
        Fields of `shmring.config.Config`: ``timeout``, ``slot_nbytes``, ``nslots``, ``spin_us``, ... Those that must
        be equal on all ranks are compared.

    Returns
    -------
    Communicator

    Raises
    ------
    TypeError, ValueError
        An unknown or invalid setting or timeout, or rank and size are not found; the message explains how to give them.
    RendezvousTimeoutError
        Some ranks did not join, or stopped right after they had; it names them.
    RendezvousError
        The ranks have different settings.
    PeerLostError
        A rank died after others had attached its segment.
    OutOfSharedMemoryError
        /dev/shm is too small; the message has the size that is needed and how to get it.
    SegmentError
        The session's names are in use by a live job, or a file under one of them fails a check.

    Notes
    -----
    Collective: all ranks call. After it returns nothing of the communicator has a name in /dev/shm any more. May be
    called again; each call makes a communicator of its own.
    """
    job = discover(rank=rank, size=size, session=session)
    config = configure(**settings)
    limit = seconds(rendezvous_timeout, "rendezvous_timeout")
    if job.rank == 0:
        sweep_leftovers()
    return Communicator(connect(job.session, job.rank, job.size, config, None if limit == math.inf else limit))
