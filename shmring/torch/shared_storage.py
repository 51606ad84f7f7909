"""Gradients and parameters of models as shared memory, where torch has allocated them: collectives need no staging."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shmring.collectives.shared.share import Shared
from shmring.communicator import Communicator
from shmring.errors import OutOfSharedMemoryError, SegmentError
from shmring.launch.named import communicator
from shmring.torch.processgroup import ProcessGroup

# No `from __future__ import annotations` here: torch compares a hook's annotations with its classes, not their names.


def share_parameters(model: torch.nn.Module, *, comm: Communicator | str | dist.ProcessGroup | None = None) -> Shared:
    """Make the memory of a model's parameters shared; collectives on them and on views of them need no staging.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU; the same parameters on all ranks, except for their values.
    comm : Communicator, str or torch.distributed.ProcessGroup, optional
        The communicator whose calls use the memory, its name, or its process group. By default the communicator of the
        default group if its backend is shmring, else `communicator()`.

    Returns
    -------
    Shared
        Keeps the memory; its `close` makes it private again. Its ``nbytes`` is the number of shared bytes.

    Raises
    ------
    TypeError
        Parameters are not on the CPU or are DTensors, or the ranks are on several machines: nothing was sent.
    Exception
        As `shmring.Communicator.share`.

    Notes
    -----
    Collective. Each storage is shared once, whole. Storages below 32 KiB stay private. Parameters must keep their
    storage: no `resize_`, no ``model.to(dtype)``.
    """
    group = _communicator_of(comm)
    storages: dict[int, torch.UntypedStorage] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise TypeError(f"{name} is a DTensor; FSDP copies its shards: let FSDP allocate from the group instead")
        if parameter.device.type != "cpu":
            raise TypeError(f"{name} is on {parameter.device}: only memory of the CPU can be shared")
        storage = parameter.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
    memory = torch.empty(0, dtype=torch.uint8, device="cpu")
    return group.share(*(memory.new_empty(0).set_(storage) for storage in storages.values()))


def share_gradients(
    model: DistributedDataParallel, hook: Callable | None = None, state: Any = None
) -> "SharedGradients":
    """Share the memory of the buckets in which DistributedDataParallel averages gradients, which then needs no staging.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
        Its process group has the backend shmring. With ``gradient_as_bucket_view=True`` the gradients themselves lie in
        the buckets, which saves copies.
    hook, state : optional
        A communication hook and its state, as for ``model.register_comm_hook``, to average the buckets instead.

    Returns
    -------
    SharedGradients
        ``close()`` makes the memory private again; training may continue.

    Raises
    ------
    TypeError
        ``model`` is no DistributedDataParallel, or the backend of its group is not shmring.
    RuntimeError
        The model has a communication hook already: pass that as ``hook``.

    Notes
    -----
    Registers a communication hook; all ranks call. Torch replaces the buckets after the first backward pass, so a
    bucket is shared when the hook gets it for the second time. If /dev/shm has no room, all ranks warn, and the buckets
    stay private, as they do on several machines.

    Buckets are averaged in one pass: sum in rank order, then division. Without a hook torch divides first; the bits are
    the same where the number of ranks is a power of two.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"{type(model).__qualname__}: must be a DistributedDataParallel")
    if not isinstance(model.process_group, ProcessGroup):
        raise TypeError(f"the model's process group is {model.process_group!r}; its backend must be shmring")
    gradients = SharedGradients(model.process_group, hook, state)
    model.register_comm_hook(gradients, _average)
    return gradients


class _Bucket(NamedTuple):
    buffer: torch.Tensor  # kept, so that another bucket never has its address
    shared: Shared | None  # once it has come a second time


class SharedGradients:
    """The shared buckets of a model. Made by `share_gradients`; a context manager."""

    def __init__(self, group: ProcessGroup, hook: Callable | None, state: Any) -> None:
        self._group = group
        self._hook = hook
        self._state = state
        self._buckets: dict[int, _Bucket] = {}
        self.closed = group.comm.nodes is not None

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's buckets that are shared now; 0 in the first steps, and on several machines."""
        return sum(bucket.shared.nbytes for bucket in self._buckets.values() if bucket.shared is not None)

    def close(self) -> None:
        """Make the buckets private; no bucket is shared afterwards. All ranks call between the same two steps."""
        self.closed = True
        self._drop(0)

    def _drop(self, first: int) -> None:
        """Forget the buckets from number ``first`` on."""
        for index in [index for index in self._buckets if index >= first]:
            bucket = self._buckets.pop(index)
            if bucket.shared is not None:
                bucket.shared.close()

    def _share(self, index: int, buffer: torch.Tensor, is_last: bool) -> None:
        """Note that bucket ``index`` is averaged next: alike on all ranks, in the same order."""
        known = self._buckets.get(index)
        if known is None or known.buffer.data_ptr() != buffer.data_ptr() or known.buffer.numel() != buffer.numel():
            self._drop(index)  # torch has made other buckets
            self._buckets[index] = _Bucket(buffer, None)
        elif known.shared is None:
            assert self._group.comm.nodes is None
            try:
                self._buckets[index] = _Bucket(buffer, self._group.comm.share(buffer))
            except (OutOfSharedMemoryError, SegmentError, ValueError) as error:  # raised on all ranks alike
                warnings.warn(f"gradients stay in private memory: {error}", RuntimeWarning, stacklevel=2)
                self.close()
                return
        if is_last:
            self._drop(index + 1)

    def __enter__(self) -> "SharedGradients":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _average(gradients: SharedGradients, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook."""
    buffer = bucket.buffer()
    is_dense = buffer.layout == torch.strided
    if is_dense and not gradients.closed:
        gradients._share(bucket.index(), buffer, bucket.is_last())
    if gradients._hook is not None:
        return gradients._hook(gradients._state, bucket)
    if not is_dense:
        buffer = buffer / gradients._group.size()
    op = dist.ReduceOp.AVG if is_dense else dist.ReduceOp.SUM
    work = dist.all_reduce(buffer, op, group=gradients._group, async_op=True)
    return work.get_future().then(_first)


def _first(future: torch.futures.Future) -> torch.Tensor:
    return future.value()[0]


def _communicator_of(comm):
    if comm is None and dist.is_initialized() and isinstance(dist.group.WORLD, ProcessGroup):
        comm = dist.group.WORLD
    if comm is None or isinstance(comm, str):
        comm = communicator(comm or "")
    comm = comm.comm if isinstance(comm, ProcessGroup) else comm
    if comm.nodes is not None:
        raise TypeError("ranks on several machines share no memory")
    return comm
