"""The process group: a communicator of the core under the names by which torch knows a group."""

from __future__ import annotations

import secrets
from datetime import timedelta

import torch

import shmring
from shmring.errors import ShmringError
from shmring.torch.allocator import Buffers
from shmring.torch.barrier import come_together
from shmring.torch.collectives import Collectives
from shmring.torch.errors import torch_form
from shmring.torch.messages import Messages, Mover
from shmring.torch.multinode.communicator import NodesCommunicator, join
from shmring.torch.multinode.discovery import nodes
from shmring.torch.work import seconds

_CPU = torch.device("cpu")


class ProcessGroup(Collectives, Messages):
    """A `torch.distributed` group on CPUs. Made by torch, not by calling this class.

    Attributes
    ----------
    comm : shmring.Communicator, or shmring.torch.multinode.communicator.NodesCommunicator if the ranks do not share a machine
        What the calls are made on. Usable beside them, as long as all ranks make the same calls in the same order.
    """

    # What torch asks of a backend, which this is as well (`_get_backend`).
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, comm: shmring.Communicator | NodesCommunicator, store, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._store = store
        self._timeout_s = seconds(timeout)
        self._mover = Mover(comm)
        self._buffers = None if isinstance(comm, NodesCommunicator) else Buffers(comm)
        self._name = self._desc = ""
        self._nmonitored = 0

    @property
    def comm(self) -> shmring.Communicator | NodesCommunicator:
        """The communicator beneath."""
        return self._comm

    # ---- who it is: the base class asks its registered backends, of which there is none ----

    def getBackendName(self) -> str:
        """The name it is registered by."""
        return "shmring"

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:
        """This process's number in the group."""
        return self._comm.rank

    def getSize(self) -> int:
        """How many ranks there are."""
        return self._comm.size

    def getGroupName(self) -> str:
        """Torch's name of the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Torch's description of the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Called by torch."""
        self._desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self):
        """The store by which the ranks met."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}: shmring is for the CPU")
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self._comm.engine.rounds

    def _set_sequence_number_for_group(self) -> None:
        """Rounds count themselves."""

    def _has_hooks(self) -> bool:
        return False

    # ---- buffers ----

    def supports_tensor_alloc(self, device) -> bool:
        """Whether `allocate_tensor` makes tensors on this device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype=None, device=None) -> torch.Tensor:
        """Make a tensor of one dimension in shared memory, contents undefined. All ranks call; see `Buffers`.

        In ordinary memory where the ranks do not share a machine.
        """
        if self._buffers is None:
            return torch.empty(size, dtype=dtype)
        try:
            return self._buffers.tensor(size, dtype or torch.get_default_dtype())
        except ShmringError as error:
            raise torch_form(error, self._timeout_s) from error

    # ---- time and end ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return once every rank has called, or name those who did not: see `shmring.torch.monitored_barrier`."""
        timeout_s = self._timeout_s if timeout is None else max(0.0, timeout.total_seconds())
        self._nmonitored += 1
        come_together(self._comm, self._nmonitored, timeout_s, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls wait for peers that live."""
        self._timeout_s = seconds(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """End the group on all ranks at once; what is pending fails."""
        if not self._comm.is_closed:
            self._comm.abort("torch.distributed aborted the group")
            self.shutdown()

    def shutdown(self) -> None:
        """Leave the group once what is pending is done; called by `torch.distributed.destroy_process_group`."""
        self._mover.close(self._timeout_s)
        self._comm.close()


def make(options, settings) -> ProcessGroup:
    """Meet the other ranks of a group. Called by `torch.distributed` on all of them.

    Parameters
    ----------
    options : torch.distributed's _DistributedBackendOptions
        Who, how many, and the store to meet by.
    settings : dict or None
        What the program gave as ``pg_options``: fields of `shmring.config.Config`.
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    if settings is not None and not isinstance(settings, dict):
        raise TypeError(f"pg_options={settings!r}: for shmring it is a dict of settings, such as {{'nslots': 4}}")
    session = _session(store, rank, size, options.group_id)
    timeout_s = seconds(options.timeout)
    settings = {"timeout": timeout_s, **(settings or {})}
    machines = nodes(store, rank, size, session, options.timeout)
    comm: shmring.Communicator | NodesCommunicator
    if len(machines) > 1:
        comm = join(machines, rank, session, store, timeout_s, settings)
    else:
        comm = shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=timeout_s, **settings)
    return ProcessGroup(comm, store, options.timeout)


def _session(store, rank: int, size: int, group: str) -> str:
    """A name that only the ranks of this group share; another one each time that a group is made by this store."""
    turn = (store.add("shmring/came", 1) - 1) // size
    key = f"shmring/session/{turn}"
    if rank == 0:
        store.set(key, f"torch.{group}.{secrets.token_hex(8)}")
    return store.get(key).decode()
