"""The process group: a communicator under the method names of `torch.distributed`."""

from __future__ import annotations

import secrets
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

import shmring
from shmring.errors import ShmringError
from shmring.torch.allocator import GroupAllocator
from shmring.torch.barrier import run_monitored_barrier
from shmring.torch.collectives import Collectives
from shmring.torch.errors import torch_form
from shmring.torch.messages import MessageProgress, TorchMessages
from shmring.torch.nodes import join, nodes
from shmring.torch.work import seconds

_CPU = torch.device("cpu")


class ProcessGroup(Collectives, TorchMessages):
    """A `torch.distributed` group on CPUs. Made by torch, not by calling this class.

    Attributes
    ----------
    comm : shmring.Communicator
        On several machines a `shmring.nodes.communicator.NodesCommunicator`. It can be used directly, as
        long as all ranks make the same calls in the same order.
    """

    # Torch asks a group for its backend and then these of the backend: this object is both (`_get_backend`).
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, comm: shmring.Communicator, store, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._store = store
        self._timeout_s = seconds(timeout)
        self._progress = MessageProgress(comm)
        self._allocator = GroupAllocator(comm) if comm.nodes is None else None
        self._name = self._desc = ""
        self._nmonitored = 0
        self._register_for_operators()

    def _register_for_operators(self) -> None:
        """Give torch's functional operators in C++ the backend that they look for in the group.

        `batch_p2p_ops` asks it whether it coalesces and, as it does not, calls `send` and `recv` of this class. All
        other calls on the backend are errors.
        """
        fake = getattr(c10d, "FakeProcessGroup", None)
        if fake is None or not hasattr(getattr(fake, "Options", None), "error_on_collective"):
            return  # torch before 2.13: the operator raises that the group has no backend
        options = fake.Options()
        options.error_on_collective = True
        backend = fake._create_internal(self._comm.rank, self._comm.size, options)
        self._register_backend(_CPU, c10d.ProcessGroup.BackendType.CUSTOM, backend)

    @staticmethod
    def check_machines(nmachines: int) -> None:
        """Raise if a group of this class cannot be on so many machines. The same on all ranks."""

    @property
    def comm(self) -> shmring.Communicator:
        """The communicator on which the calls are made."""
        return self._comm

    # ---- identity: the base class would ask its registered backends, and there are none ----

    def getBackendName(self) -> str:
        """The name under which it is registered."""
        return "shmring"

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:
        """This process's rank in the group."""
        return self._comm.rank

    def getSize(self) -> int:
        """The number of ranks."""
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
        """The store used for the rendezvous."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}: shmring has CPU tensors only")
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self._comm.engine.rounds

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: the engine counts rounds."""

    def _has_hooks(self) -> bool:
        return False

    # ---- buffers ----

    def supports_tensor_alloc(self, device) -> bool:
        """Whether `allocate_tensor` makes tensors on this device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype=None, device=None) -> torch.Tensor:
        """Allocate a tensor of one dimension in shared memory, contents undefined. All ranks call.

        In ordinary memory if the ranks are on several machines.
        """
        if self._allocator is None:
            return torch.empty(size, dtype=dtype)
        try:
            return self._allocator.tensor(size, dtype or torch.get_default_dtype())
        except ShmringError as error:
            raise torch_form(error, self._timeout_s) from error

    # ---- timeouts and leaving ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return once every rank has called, or name the ranks that have not: see `shmring.torch.monitored_barrier`."""
        timeout_s = self._timeout_s if timeout is None else max(0.0, timeout.total_seconds())
        self._nmonitored += 1
        run_monitored_barrier(self._comm, self._nmonitored, timeout_s, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls wait for live peers."""
        self._timeout_s = seconds(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Break the group on all ranks at once; pending calls fail."""
        if not self._comm.closed:
            self._comm.abort("torch.distributed aborted the group")
            self.shutdown()

    def shutdown(self) -> None:
        """Leave the group once pending calls are done; called by `torch.distributed.destroy_process_group`."""
        self._progress.close(self._timeout_s)
        self._comm.close()


def make(options, settings, kind: type[ProcessGroup] = ProcessGroup) -> ProcessGroup:
    """Connect the ranks of a group. Called by `torch.distributed` on all of them.

    Parameters
    ----------
    options : torch.distributed's _DistributedBackendOptions
        Rank, size and store.
    settings : dict or None
        The program's ``pg_options``: fields of `shmring.config.Config`.
    kind : type
        The class of the group.
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    if settings is not None and not isinstance(settings, dict):
        raise TypeError(f"pg_options={settings!r}: must be a dict of settings, such as {{'nslots': 4}}")
    session = _session(store, rank, size, options.group_id)
    timeout_s = seconds(options.timeout)
    settings = {"timeout": timeout_s, **(settings or {})}
    machines = nodes(store, rank, size, session, options.timeout)
    kind.check_machines(len(machines))
    comm: shmring.Communicator
    if len(machines) > 1:
        comm = join(machines, rank, session, store, timeout_s, settings)
    else:
        comm = shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=timeout_s, **settings)
    return kind(comm, store, options.timeout)


def _session(store, rank: int, size: int, group: str) -> str:
    """A name that only the ranks of this group share; a new one each time a group is made with this store."""
    turn = (store.add("shmring/arrived", 1) - 1) // size
    key = f"shmring/session/{turn}"
    if rank == 0:
        store.set(key, f"torch.{group}.{secrets.token_hex(8)}")
    return store.get(key).decode()
