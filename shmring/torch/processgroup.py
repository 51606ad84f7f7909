"""The process group: a communicator under the method names of `torch.distributed`.

Each call is made at once or, if it is asynchronous, submitted to the communicator's progress thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

import shmring
from shmring.collectives.calls.async_work import submit
from shmring.collectives.p2p.requests import ANY_SOURCE
from shmring.errors import ShmringError
from shmring.torch import collectives
from shmring.torch.allocator import GroupAllocator
from shmring.torch.barrier import run_monitored_barrier
from shmring.torch.errors import torch_form
from shmring.torch.messages import MessageProgress, MessageWork
from shmring.torch.methods import method
from shmring.torch.operators import METHODS, by_operator, define, first_tensor
from shmring.torch.profiler import FLAG, FLAGS, is_profiled, record_until_over, recording
from shmring.torch.reduce_ops import reduction
from shmring.torch.tensor_calls import allreduce
from shmring.torch.tensor_list import movable
from shmring.torch.work import FINISHED, NO_TIME, CombinedWork, DoneWork, PendingWork, Tensors, seconds

_CPU = torch.device("cpu")
_DAY_S = 86400.0

# The options of a call without options.
_ALL_REDUCE = c10d.AllreduceOptions()
_BROADCAST = c10d.BroadcastOptions()
_REDUCE = c10d.ReduceOptions()
_ALL_GATHER = c10d.AllgatherOptions()
_GATHER = c10d.GatherOptions()
_SCATTER = c10d.ScatterOptions()
_REDUCE_SCATTER = c10d.ReduceScatterOptions()
_ALL_TO_ALL = c10d.AllToAllOptions()
_BARRIER = c10d.BarrierOptions()

# The names of torch 2.12 and before.
_FORMER_NAMES = {
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


class _DeferredCall(partial):
    """A call to be made by the progress thread; ``label`` is its name in errors."""

    label = ""


def forget(group: dist.ProcessGroup) -> None:
    """Remove a group from torch's registers: another one has its backends."""
    world = distributed_c10d._world
    for register in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        register.pop(group, None)
    for groups in world.tags_to_pg.values():
        if group in groups:
            groups.remove(group)
    distributed_c10d._unregister_process_group(group.group_name)


class ProcessGroup(dist.ProcessGroup):
    """A `torch.distributed` group on CPUs. Made by torch, not by calling this class.

    Attributes
    ----------
    comm : shmring.Communicator
        On several machines a `shmring.nodes.communicator.NodesCommunicator`. It can be used directly, as
        long as all ranks make the same calls in the same order.
    """

    # Torch reads these from the backend of a group: this object is both (`_get_backend`).
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    _recorded_as = "shmring"  # prefix of event names in profiles
    _in_background = "{} in the background"  # the name of the event that lasts until such a call is over
    _coalesced: list[dist.Work] | None = None

    def __init__(self, comm: shmring.Communicator, store, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._store = store
        self._timeout_s = seconds(timeout)
        self._progress = MessageProgress(comm)
        self._allocator = GroupAllocator(comm) if comm.nodes is None else None
        self._name = self._desc = ""
        self._others: dict[str, c10d.Backend] = {}  # the backends of other devices, by the device's type
        self._names: dict[str, str] | None = None  # and their names, once they have been looked up
        self._nmonitored = 0
        self._register_for_operators()

    def _register_for_operators(self) -> None:
        """Give torch's functional operators in C++ the backend that they look for in the group.

        `batch_p2p_ops` asks it whether it coalesces and, as it does not, calls `send` and `recv` of this class. All
        other calls on the backend are errors.
        """
        options = c10d.FakeProcessGroup.Options()
        options.error_on_collective = True
        backend = c10d.FakeProcessGroup._create_internal(self._comm.rank, self._comm.size, options)
        self._register_backend(_CPU, c10d.ProcessGroup.BackendType.UNDEFINED, backend)

    def _other_names(self) -> dict[str, str]:
        """The names of the backends that the program wants for other devices, as in ``"cpu:shmring,cuda:nccl"``."""
        if self._names is None:
            asked = distributed_c10d._world.pg_map.get(self, ("",))[0]
            pairs = [pair.split(":") for pair in asked.split(",")] if "," in asked else []
            self._names = {device: name for device, name in pairs if device != "cpu"}
        return self._names

    def _other_backend(self, kind: str) -> c10d.Backend | None:
        """Torch's backend of another type of device, made by all ranks at the first call that needs it."""
        names = self._other_names()
        if kind not in self._others and kind in names:
            group, _ = distributed_c10d._new_process_group_helper(
                self._comm.size,
                self._comm.rank,
                dist.get_process_group_ranks(self),
                f"{kind}:{names[kind]}",
                self._store,
                f"{self._name}/{kind}",
                timeout=timedelta(seconds=self._timeout_s or _DAY_S),
            )
            forget(group)
            self.add_backends(group)
        return self._others.get(kind)

    def add_backends(self, group: dist.ProcessGroup) -> None:
        """Leave the calls on tensors of other devices to the backends of another group."""
        if group.bound_device_id is not None:
            self.bound_device_id = group.bound_device_id
        for device in group._device_types:
            backend = group._get_backend(device)
            kind = dist.Backend.backend_type_map.get(backend.name(), c10d.ProcessGroup.BackendType.CUSTOM)
            self._register_backend(device, kind, backend)
            self._others[device.type] = backend
            self._names = {**(self._names or {}), device.type: backend.name()}

    def _is_elsewhere(self, arguments: tuple) -> bool:
        """Whether a call with these arguments is for another device."""
        if not self._other_names():
            return False
        x = first_tensor(arguments)
        device = getattr(arguments[-1] if x is None and arguments else x, "device", None)
        return device is not None and device.type != "cpu" and self._other_backend(device.type) is not None

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
        """The devices. Torch asks for them before it pickles an object: nothing in it may still be written to."""
        if self._comm._engine.has_backlog:
            with suppress(TimeoutError):  # the call that follows raises, too
                self._comm._engine.progress.drain(self._timeout_s)
        return [_CPU, *map(torch.device, self._other_names())]

    def _get_backend(self, device: torch.device):
        kind = torch.device(device).type
        backend = self if kind == "cpu" else self._other_backend(kind)
        if backend is None:
            raise RuntimeError(f"No backend type associated with device type {device}: shmring has CPU tensors only")
        return backend

    def _get_sequence_number_for_group(self) -> int:
        return self._comm._engine.rounds

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: the engine counts rounds."""

    def _has_hooks(self) -> bool:
        return False

    # ---- any call ----

    def _perform(self, name: str, function: Callable, arguments: tuple, results: Tensors, opts, seen=False):
        """Call ``function(comm, timeout, *arguments)``, at once or, if ``opts.asyncOp``, in the background."""
        if FLAGS[FLAG] and not seen and is_profiled():
            label = f"{self._recorded_as}:{name}"
            with recording(label, arguments):
                work = self._perform(name, function, arguments, results, opts, True)
            if not work.is_completed():
                record_until_over(self._in_background.format(label), work)
            return work
        timeout = opts.timeout
        timeout_s = timeout.total_seconds() if timeout > NO_TIME else self._timeout_s
        is_async = opts.asyncOp
        if is_async and not self._is_in_callback():
            call = _DeferredCall(function, self._comm, timeout_s, *arguments)
            call.label = name
            return self._record(PendingWork(submit(self._comm._engine, call), results, timeout_s))
        try:
            function(self._comm, timeout_s, *arguments)
        except ShmringError as error:
            raise torch_form(error, timeout_s) from error.__cause__
        return DoneWork(results) if is_async else FINISHED

    def _is_in_callback(self) -> bool:
        """Whether a callback of an earlier call makes this one. It may wait by a future, which would block the only
        thread that could make the call, so the call is made at once."""
        progress = self._comm._engine.progress
        return progress is not None and progress.is_own_thread()

    def _record(self, work: dist.Work) -> dist.Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # ---- several calls as one ----

    def _start_coalescing(self, device) -> None:
        if self._other_backend(torch.device(device).type) is not None:
            super()._start_coalescing(device)
        else:
            self._coalesced = []

    def _end_coalescing(self, device) -> dist.Work:
        if self._other_backend(torch.device(device).type) is not None:
            return super()._end_coalescing(device)
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)

    # ---- reductions ----

    def allreduce(self, tensors, opts=_ALL_REDUCE):
        """Reduce one tensor, dense or sparse, in place."""
        if len(tensors) != 1:
            return self._reduce_many(tensors, opts)
        return self._perform("all_reduce", collectives.all_reduce, (tensors[0], reduction(opts)), tensors, opts)

    def allreduce_coalesced(self, tensors, opts=_ALL_REDUCE):
        """Reduce several tensors in place; small ones share a call."""
        return self._reduce_many(tensors, opts)

    def _reduce_many(self, tensors, opts):
        arguments = (tensors, reduction(opts))
        return self._perform("all_reduce_coalesced", collectives.all_reduce_many, arguments, tensors, opts)

    def reduce(self, tensors, opts=_REDUCE):
        """Reduce into the root's tensor; the tensors of other ranks are unchanged."""
        return self._perform("reduce", collectives.reduce, (tensors[0], opts.rootRank, reduction(opts)), tensors, opts)

    def reduce_scatter(self, outputs, inputs, opts=_REDUCE_SCATTER):
        """Reduce lists of tensors; rank i gets the i-th."""
        arguments = (outputs, inputs, reduction(opts))
        return self._perform("reduce_scatter", collectives.reduce_scatter, arguments, outputs, opts)

    def reduce_scatter_single(self, output, input, opts=_REDUCE_SCATTER):
        """Reduce one tensor; rank i gets the i-th part."""
        arguments = ([output], [input], reduction(opts))
        return self._perform("reduce_scatter_single", collectives.reduce_scatter_singles, arguments, [output], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=_REDUCE_SCATTER):
        """Reduce several tensors; rank i gets the i-th part of each."""
        arguments = (outputs, inputs, reduction(opts))
        return self._perform("reduce_scatter_single", collectives.reduce_scatter_singles, arguments, outputs, opts)

    # ---- movement ----

    def broadcast(self, tensors, opts=_BROADCAST):
        """Copy the root's tensors into those of the other ranks."""
        return self._perform("broadcast", collectives.broadcast, (tensors, opts.rootRank), tensors, opts)

    def allgather(self, outputs, inputs, opts=_ALL_GATHER):
        """Collect the tensors of all ranks, which may differ in size, in a list on every rank."""
        results = [t for ts in outputs for t in ts]
        return self._perform("all_gather", collectives.all_gather, (outputs, inputs), results, opts)

    def all_gather_single(self, output, input, opts=_ALL_GATHER):
        """Collect the tensors of all ranks, one after the other in one tensor."""
        arguments = ([output], [input])
        return self._perform("all_gather_single", collectives.all_gather_singles, arguments, [output], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=_ALL_GATHER):
        """Collect several tensors: ``outputs[i]`` gets the ``inputs[i]`` of all ranks, one after the other."""
        return self._perform("all_gather_single", collectives.all_gather_singles, (outputs, inputs), outputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=_ALL_GATHER):
        """Collect lists of tensors: ``outputs[rank][i]`` is that rank's ``inputs[i]``."""
        by_tensor = [list(column) for column in zip(*outputs, strict=True)]
        results = [t for ts in outputs for t in ts]
        return self._perform("all_gather", collectives.all_gather, (by_tensor, inputs), results, opts)

    def gather(self, outputs, inputs, opts=_GATHER):
        """Collect the tensors of all ranks in a list on the root."""
        results = outputs[0] if outputs else []
        return self._perform("gather", collectives.gather, (results, inputs[0], opts.rootRank), results, opts)

    def scatter(self, outputs, inputs, opts=_SCATTER):
        """Give rank i the i-th tensor of the root's list."""
        arguments = (outputs[0], inputs[0] if inputs else [], opts.rootRank)
        return self._perform("scatter", collectives.scatter, arguments, outputs, opts)

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts=_ALL_TO_ALL):
        """Exchange parts of one tensor: equal parts, or the numbers of rows in the split sizes."""
        arguments = (output, input, list(output_split_sizes or ()), list(input_split_sizes or ()))
        return self._perform("all_to_all_single", collectives.all_to_all_single, arguments, [output], opts)

    def alltoall(self, outputs, inputs, opts=_ALL_TO_ALL):
        """Exchange lists of tensors, of any sizes."""
        return self._perform("all_to_all", collectives.all_to_all, (outputs, inputs), outputs, opts)

    def barrier(self, opts=_BARRIER):
        """Complete once every rank has called."""
        return self._perform("barrier", collectives.barrier, (), (), opts)

    # ---- messages; ranks are those of the group ----

    def send(self, tensors, dst, tag=0):
        """Begin to send a tensor; it must not be changed until the work is done."""
        if self._comm.nodes is not None:
            return self._by_gloo("send", tensors, dst, tag)
        x = movable(tensors[0])
        return self._make_work(self._begin("send", self._comm.isend, x, dst, tag), tensors[0], None)

    def recv(self, tensors, src, tag=0):
        """Begin to receive a tensor of exactly this size from one rank."""
        if self._comm.nodes is not None:
            return self._by_gloo("recv", tensors, src, tag)
        return self._receive("recv", tensors[0], src, tag)

    def recv_anysource(self, tensors, tag=0):
        """Begin to receive a tensor of exactly this size from any rank."""
        if self._comm.nodes is not None:
            return self._by_gloo("recv_anysource", tensors, tag)
        return self._receive("recvAnySource", tensors[0], ANY_SOURCE, tag)

    def _by_gloo(self, name, *arguments):
        """A message over several nodes is gloo's own."""
        self._comm._engine.check_usable()
        return self._record(getattr(self._comm._engine.wire.whole.gloo, name)(*arguments))

    def _receive(self, name, tensor, src, tag):
        x = movable(tensor)
        return self._make_work(self._begin(name, self._comm.irecv, x, src, tag), tensor, x.nbytes)

    def _begin(self, name, start, x, peer, tag, seen=False):
        if FLAGS[FLAG] and not seen and is_profiled():
            with recording(f"{self._recorded_as}:{name}", (x,)):
                return self._begin(name, start, x, peer, tag, True)
        try:
            return start(x, peer, tag)
        except ShmringError as error:
            raise torch_form(error, self._timeout_s) from error.__cause__

    def _make_work(self, request, tensor, nbytes):
        if not request.done():
            if nbytes is None:
                self._progress.add(request, is_send=True)  # longer than its pair queue
            else:
                self._progress.note(request, nbytes)
        return self._record(MessageWork(request, tensor, nbytes, self._timeout_s, self._progress))

    # ---- buffers ----

    def supports_tensor_alloc(self, device) -> bool:
        """Whether `allocate_tensor` makes tensors on this device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype=None, device=None) -> torch.Tensor:
        """Allocate a tensor of one dimension, contents undefined, in shared memory if one machine has all ranks.

        Collective: all ranks call.
        """
        if self._allocator is None:
            return torch.empty(size, dtype=dtype, device="cpu")
        try:
            return self._allocator.tensor(size, dtype or torch.get_default_dtype())
        except ShmringError as error:
            raise torch_form(error, self._timeout_s) from error.__cause__

    # ---- timeouts and leaving ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return once every rank has called, or name the ranks that have not: see `shmring.torch.monitored_barrier`."""
        timeout_s = self._timeout_s if timeout is None else max(0.0, timeout.total_seconds())
        self._nmonitored += 1
        if self._comm.nodes is not None:
            self._comm._engine.check_usable()
            gloo = self._comm._engine.wire.whole.gloo
            gloo.monitored_barrier(timedelta(seconds=timeout_s or _DAY_S), wait_all_ranks)
            return
        run_monitored_barrier(self._comm, self._nmonitored, timeout_s, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls wait for live peers, on all devices."""
        self._timeout_s = seconds(timeout)
        for backend in self._others.values():
            backend.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Break the group on all ranks at once; pending calls fail."""
        for backend in self._others.values():
            backend.abort()
        if not self._comm.closed:
            self._comm.abort("torch.distributed aborted the group")
            self.shutdown()

    def shutdown(self) -> None:
        """Leave the group once pending calls are done; called by `torch.distributed.destroy_process_group`."""
        for backend in self._others.values():
            backend.shutdown()
        self._progress.close(self._timeout_s)
        self._comm.close()


_OWN = {name: getattr(ProcessGroup, name) for name in METHODS}
for _name, (_, *_forms) in METHODS.items():
    # Where torch has both names, its method of the former name calls this one.
    _known = _name if hasattr(dist.ProcessGroup, _name) else _FORMER_NAMES[_name]
    setattr(ProcessGroup, _known, method(_OWN[_name], by_operator(_known), *_forms))
ProcessGroup._allreduce = ProcessGroup.allreduce
setattr(ProcessGroup, "allreduce", allreduce)  # noqa: B010  the shortest path
_operators = define(ProcessGroup, _OWN)
