"""A communicator over the processes of an MPI communicator."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.base.arguments import checked_rank
from shmring.collective.groups import split_members
from shmring.communicator import Communicator
from shmring.errors import BrokenError, ClosedError, PeerLostError, RendezvousError
from shmring.nodes.communicator import NodesCommunicator
from shmring.nodes.discovery import agree, discover_nodes, forced_node
from shmring.nodes.group import NodesGroup, join_node

if TYPE_CHECKING:
    from mpi4py import MPI

_THREADS = (
    "shmring.from_mpi needs MPI.THREAD_MULTIPLE, since a thread makes asynchronous calls beside the program's own, but "
    "this process has thread level {level}. mpi4py asks for it by default: remove what sets mpi4py.rc.thread_level or "
    "mpi4py.rc.threads, or where the program starts MPI itself, ask for it in MPI_Init_thread"
)


class MpiCommunicator(NodesCommunicator):
    """A communicator over several machines, made by `from_mpi`: MPI between them.

    Attributes
    ----------
    mpi : mpi4py.MPI.Intracomm
        A duplicate of the communicator given, which this one uses alone.
    settings : dict
        As given to `from_mpi`.
    """

    def __init__(self, engine: NodesGroup, parent_ranks: tuple[int, ...] | None, mpi: Any, settings: dict) -> None:
        self.mpi, self.settings = mpi, settings

    def split(self, color, key=None, *, rendezvous_timeout=300.0, **settings):
        """As `shmring.Communicator.split`."""
        found = split_members(self, color, key)
        return None if found is None else self._make_group(found[1], rendezvous_timeout, settings)

    def subgroup(self, ranks, *, rendezvous_timeout=300.0, **settings):
        """As `shmring.Communicator.subgroup`."""
        members = [checked_rank(r, self.size, "ranks") for r in ranks]
        if len(set(members)) < len(members):
            raise ValueError(f"ranks={members}: a rank may be listed only once")
        if self.rank not in members:
            raise ValueError(f"ranks={members}: this rank, {self.rank}, is not among them; only the listed ranks call")
        self.engine.check_usable()
        return self._make_group(members, rendezvous_timeout, settings)

    def dup(self, *, rendezvous_timeout=300.0, **settings):
        """As `shmring.Communicator.dup`."""
        self.engine.check_usable()
        return self._make_group(range(self.size), rendezvous_timeout, settings)

    def shrink(self, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of all ranks but the one that the failure of this one is about, if it died.

        All other ranks call. MPI must still work after the death, which most launchers prevent by ending all ranks:
        ``mpiexec -disable-auto-cleanup`` of MPICH does not. `RendezvousError` if MPI cannot make the group.
        """
        failure = self.engine.failure
        lost = {failure.rank} if isinstance(failure, PeerLostError) else set()
        members = [r for r in range(self.size) if r not in lost]
        return self._make_group(members, rendezvous_timeout, settings)

    def _make_group(self, members: Sequence[int], rendezvous_timeout: float | None, settings: dict) -> Any:
        """The members call."""
        from mpi4py import MPI

        if MPI.Is_finalized():
            raise ClosedError(f"{self.name}: MPI is finalized, which has closed this communicator")
        settings = {**self.settings, **settings}
        self.config.changed(**settings)
        try:
            comm = self.mpi.Create_group(self.mpi.Get_group().Incl(list(members)))
        except MPI.Exception as error:
            text = f"{self.name}: MPI cannot make a group of the ranks {list(members)}: {error}"
            raise RendezvousError(text) from error
        try:
            return _connect(comm, self.reproducible, rendezvous_timeout, settings, tuple(members))
        except BrokenError as error:
            raise RendezvousError(f"{self.name}: no group of the ranks {list(members)}: {error}") from error


def from_mpi(
    comm: MPI.Intracomm | None = None,
    *,
    reproducible: bool = True,
    rendezvous_timeout: float | None = 300.0,
    **settings,
) -> Communicator | MpiCommunicator:
    """Make a communicator of the processes of an mpi4py communicator: shared memory inside each machine, MPI between.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        By default ``MPI.COMM_WORLD``. It is duplicated; messages of the program on it do not interfere.
    reproducible : bool
        By default all sums run in rank order and have the bits of one machine. False: the ranks of each machine are
        added first, or MPI's own reduction is used, which moves less between machines; then the bits depend on how
        ranks are distributed, and may change from call to call, but are the same on all ranks.
    rendezvous_timeout : float, optional
        Seconds to wait for the other ranks of this machine; None: no limit.
    **settings
        Fields of `shmring.config.Config`, as `init` takes them.

    Returns
    -------
    Communicator or MpiCommunicator
        Where all ranks can map each other's memory an ordinary communicator, which does not use MPI. Else one with the
        same calls; `empty`, `zeros`, `array` and `share` are on its ``local``, the communicator of this machine.

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
    return _connect(comm.Dup(), reproducible, rendezvous_timeout, settings)


def _connect(
    comm: Any, reproducible: bool, rendezvous_timeout: float | None, settings: dict, parent_ranks: Any = None
) -> Any:
    """``comm`` is for the new communicator alone. If a rank fails, all ranks raise."""
    from mpi4py import MPI

    comm.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        return _connect_ranks(comm, reproducible, rendezvous_timeout, settings, parent_ranks)
    except MPI.Exception:
        raise
    except Exception:
        comm.Free()
        raise


def _connect_ranks(
    comm: Any, reproducible: bool, rendezvous_timeout: float | None, settings: dict, parent_ranks: Any
) -> Any:
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()
    key = np.frombuffer(secrets.token_bytes(8), np.uint8).copy()
    comm.Bcast(key)
    session = f"mpi.{key.tobytes().hex()}"

    def exchange(text: str) -> list[str]:
        own = np.frombuffer(text.encode(), np.uint8)
        lengths = np.empty(size, np.int32)
        comm.Allgather(np.array([len(own)], np.int32), lengths)
        texts = np.empty(lengths.sum(), np.uint8)
        comm.Allgatherv(own, [texts, lengths])
        return [part.tobytes().decode() for part in np.split(texts, np.cumsum(lengths)[:-1])]

    forced = forced_node(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    nodes = discover_nodes(exchange, rank, size, session, forced)
    local, _ = agree(
        exchange, lambda: (join_node(nodes, rank, session, rendezvous_timeout, settings), ""), Communicator.close
    )
    if len(nodes) == 1:
        comm.Free()
        return local if parent_ranks is None else Communicator(local.engine, parent_ranks)
    from shmring.nodes.mpi_wire import MpiWire

    data = comm.Dup()  # the other one makes groups: it has no messages pending after a failure
    data.Set_errhandler(MPI.ERRORS_RETURN)
    group, _ = agree(
        exchange, lambda: (NodesGroup.over(local, nodes, lambda: MpiWire(session, data), reproducible), ""),
        NodesGroup.close,
    )  # fmt: skip
    return MpiCommunicator(group, parent_ranks, comm, settings)
