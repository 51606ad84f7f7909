"""The collectives of a vLLM group on the communicator of its shmring group.

Eager calls go straight into the engine. In code that `torch.compile` traces they are the custom operators of
`shmring.torch.ops` and `shmring.vllm.ops`, which stay in the graph. A group over several machines is left to
`torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from shmring.communicator import Communicator
from shmring.launch.named import set_communicator
from shmring.torch import ops
from shmring.torch.tensor_calls import all_reduce_
from shmring.torch.tensor_list import movable
from shmring.vllm import ops as more_ops


class ShmringCommunicator(CpuCommunicator):
    """Collectives and messages of one vLLM group. Made by vLLM on all ranks of the group.

    Groups may have any number of ranks. All ranks get the same bits, so greedy decoding cannot diverge. When a rank
    dies the others raise `shmring.PeerLostError`; when one is late, `shmring.CollectiveTimeoutError` after the timeout
    that vLLM sets for its groups.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        comm = getattr(self.device_group, "comm", None)
        self._comm = comm if isinstance(comm, Communicator) and comm.nodes is None else None
        self.supports_tensor_dict = self._comm is not None
        self._name = f"vllm {self.unique_name} {self.ranks}"
        if self._comm is not None:
            set_communicator(self._comm, self._name)

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """False: vLLM's own shared memory is not used."""
        return False

    # ---- on tensors of the same size on all ranks ----

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        if self._comm is None:
            return super().all_reduce(input_)
        if is_compiling():
            return ops.all_reduce_(input_, "sum", self._name)
        return all_reduce_(input_, comm=self._comm)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenate the tensors of all ranks along ``dim``."""
        if self._comm is None:
            return super().all_gather(input_, dim)
        if is_compiling():
            parts = ops.all_gather(input_, self._name)
        else:
            parts = input_.new_empty((self.world_size, *input_.shape))
            self._comm.all_gather(movable(input_), movable(parts))
        return _concatenation(parts, dim)

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """Concatenate the tensors of all ranks along ``dim`` on rank ``dst`` of the group; None on the others."""
        if self._comm is None:
            return super().gather(input_, dst, dim)
        parts = self._make("gather", input_, dst)
        return _concatenation(parts, dim) if self.rank_in_group == dst else None

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Sum over all ranks; rank i gets the i-th part along ``dim``."""
        size, dim = self.world_size, dim % input_.dim()
        if self._comm is None or size == 1:
            return super().reduce_scatter(input_, dim)
        if input_.shape[dim] % size:
            raise ValueError(f"dimension {dim} of {tuple(input_.shape)} cannot be divided among {size} ranks")
        rows = input_.movedim(dim, 0).contiguous()
        rows = rows.view(size, rows.shape[0] // size, *rows.shape[1:])
        if is_compiling():
            part = ops.reduce_scatter(rows, "sum", self._name)
        else:
            part = rows.new_empty(rows.shape[1:])
            self._comm.reduce_scatter(rows, part)
        return part.movedim(0, dim).contiguous()

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Copy the tensor of rank ``src`` of the group into the tensors of the others."""
        if self._comm is None:
            return super().broadcast(tensor, src)
        self._make("broadcast_", tensor, src)
        return tensor

    # ---- with different numbers of rows: experts' tokens ----

    def all_gatherv(
        self, input_: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: Sequence[int] | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Concatenate the tensors of all ranks, which have ``sizes[rank]`` rows; each tensor of a list by itself."""
        if isinstance(input_, torch.Tensor):
            return self._gather_rows(input_, dim, sizes)
        return [self._gather_rows(x, dim, sizes) for x in input_]

    def _gather_rows(self, x: torch.Tensor, dim: int, sizes: Sequence[int] | None) -> torch.Tensor:
        if dim != 0:
            raise ValueError(f"all_gatherv(dim={dim}): must be 0")
        if sizes is None:
            return self.all_gather(x, 0)
        if len(sizes) != self.world_size or sizes[self.rank_in_group] != x.shape[0]:
            raise ValueError(f"sizes={list(sizes)}: this rank, {self.rank_in_group}, has {x.shape[0]} rows")
        return self._make("all_gatherv", x, list(sizes))

    def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Sum over all ranks; rank i gets its ``sizes[i]`` rows, in rank order."""
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        rows = input_.movedim(dim, 0).contiguous()
        if len(sizes) != self.world_size or sum(sizes) != rows.shape[0]:
            raise ValueError(f"sizes={list(sizes)}: the tensor has {rows.shape[0]} rows for {self.world_size} ranks")
        return self._make("reduce_scatterv", rows, list(sizes)).movedim(0, dim).contiguous()

    def _make(self, call: str, x: torch.Tensor, how: int | list[int]) -> Any:
        """Make a call of `shmring.vllm.ops`: in a graph its operator."""
        comm = self._direct(call)
        if is_compiling():
            return getattr(torch.ops.shmring_vllm, call)(x, how, self._name)
        return getattr(more_ops, call)(x, how, comm)

    def _direct(self, call: str) -> Communicator:
        if self._comm is None:
            raise NotImplementedError(f"{call} of a group over several machines")
        return self._comm

    # ---- messages between stages of a pipeline; ranks are those of the group ----

    def send_tensor_dict(self, tensor_dict: dict[str, Any], dst: int) -> None:
        """Send tensors, and other objects, by name. Blocks until the receiver has taken what its queue cannot hold."""
        self._direct("send_tensor_dict").send_object(tensor_dict, dst)

    def recv_tensor_dict(self, src: int) -> dict[str, Any]:
        """Receive a dict that `send_tensor_dict` has sent. Blocks until it has arrived."""
        return self._direct("recv_tensor_dict").recv_object(src)


def _concatenation(parts: torch.Tensor, dim: int) -> torch.Tensor:
    """The tensors ``parts[i]`` one after the other along ``dim``: a copy only if others lie between them."""
    dim %= parts.dim() - 1
    return parts.movedim(0, dim).flatten(dim, dim + 1)
