"""A communicator over the processes of an MPI communicator."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shmring.communicator import Communicator
from shmring.config import Config, configure
from shmring.core.base.timeouts import timeout_ns
from shmring.errors import BrokenError, RendezvousError
from shmring.nodes.communicator import NodesCommunicator
from shmring.nodes.discovery import agree, discover, forced_node
from shmring.nodes.group import NodesGroup

if TYPE_CHECKING:
    from mpi4py import MPI

_THREADS = (
    "shmring.from_mpi needs MPI.THREAD_MULTIPLE, since a thread makes asynchronous calls beside the program's own, but "
    "this process has thread level {level}. mpi4py asks for it by default: remove what sets mpi4py.rc.thread_level or "
    "mpi4py.rc.threads, or where the program starts MPI itself, ask for it in MPI_Init_thread"
)


class MpiCommunicator(NodesCommunicator):
    """A communicator over several machines, made by `from_mpi`: MPI between them.

    ``mpi`` is a duplicate of the communicator given, which this one uses alone and frees.
    """

    def __init__(self, engine: NodesGroup, parent_ranks: tuple[int, ...] | None, mpi: Any) -> None:
        self.mpi = mpi

    def make_group(self, members: Sequence[int], config: Config, rendezvous_timeout: float | None) -> Any:
        """Make the communicator of some ranks, which call; see `split`, `subgroup` and `dup`."""
        from mpi4py import MPI

        try:
            comm = self.mpi.Create_group(self.mpi.Get_group().Incl(list(members)))
            return _connect(comm, rendezvous_timeout, lambda: config, tuple(members))
        except (BrokenError, MPI.Exception) as error:
            raise RendezvousError(f"{self.name}: no group of the ranks {list(members)}: {error}") from error


def from_mpi(
    comm: MPI.Intracomm | None = None, *, rendezvous_timeout: float | None = 300.0, **settings
) -> Communicator | MpiCommunicator:
    """Make a communicator of the processes of an mpi4py communicator: shared memory inside each machine, MPI between.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        By default ``MPI.COMM_WORLD``. It is duplicated; messages of the program on it do not interfere.
    rendezvous_timeout : float, optional
        Seconds to wait for the other ranks of this machine; None: no limit.
    **settings
        Fields of `shmring.config.Config`, as `init` takes them.

    Returns
    -------
    Communicator or MpiCommunicator
        Where all ranks can map each other's memory an ordinary communicator, which does not use MPI. Else one with the
        same calls; `empty`, `array` and `share` are on its ``local``, the communicator of this machine.

    Raises
    ------
    ImportError
        mpi4py is not installed.
    TypeError, ValueError
        ``comm`` is not an intracommunicator of mpi4py, or a bad setting.
    RuntimeError
        MPI is not initialized, or its thread level is below ``MPI.THREAD_MULTIPLE``, which mpi4py asks for by default.
    RendezvousError
        Another rank could not be connected; the message has its error.
    RendezvousTimeoutError, PeerLostError, OutOfSharedMemoryError, SegmentError
        As `init`.

    Notes
    -----
    Collective over ``comm``. Launch with what starts your MPI: ``mpiexec -n 4 python program.py``, ``srun``, ...
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(
            "shmring.from_mpi needs mpi4py: pip install 'shmring[mpi]' and an MPI, for instance pip install mpich"
        ) from error
    if comm is None:
        comm = MPI.COMM_WORLD
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm={comm!r}: must be an intracommunicator of mpi4py, such as MPI.COMM_WORLD")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise RuntimeError("MPI is not initialized in this process, or ended already")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(_THREADS.format(level=MPI.Query_thread()))
    forced_node(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)  # raises on all ranks alike
    limit = None if timeout_ns(rendezvous_timeout, "rendezvous_timeout") < 0 else rendezvous_timeout
    return _connect(comm.Dup(), limit, partial(configure, **settings))


def _connect(
    comm: Any, rendezvous_timeout: float | None, config: Callable[[], Config], parent_ranks: Any = None
) -> Any:
    """``comm`` is for the new communicator alone. If a rank fails, all ranks raise."""
    from mpi4py import MPI

    comm.Set_errhandler(MPI.ERRORS_RETURN)
    session = f"mpi.{comm.bcast(secrets.token_hex(8))}"
    forced = forced_node(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    local = None
    try:
        places = discover(comm.allgather, comm.rank, comm.size, session, forced)
        joined = lambda: (places.join_node(session, rendezvous_timeout, config()), "")  # noqa: E731
        local, _ = agree(comm.allgather, joined, Communicator.close)
        if len(places.nodes) > 1:
            from shmring.nodes.mpi_wire import MpiWire

            group = NodesGroup(local, places, MpiWire(comm, places), session)
            return MpiCommunicator(group, parent_ranks, comm)
    except BaseException:
        if local is not None:
            local.close()
        raise
    finally:
        if local is None or len(places.nodes) == 1:
            comm.Free()
    return local if parent_ranks is None else Communicator(local._engine, parent_ranks)
