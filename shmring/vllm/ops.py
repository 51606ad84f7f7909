"""Calls of a vLLM group that `shmring.torch.ops` does not have: functions, and operators for code that is compiled.

``torch.ops.shmring_vllm.gather(x, root, "name")`` is the operator in a graph, ``gather(x, root, comm)`` the eager call.
They have no gradients, which inference does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx.node import has_side_effect
from torch.library import Library, register_fake

from shmring.communicator import Communicator
from shmring.launch.named import communicator
from shmring.torch.tensor_list import movable


def broadcast_(x: torch.Tensor, root: int, comm: Communicator) -> None:
    """Copy the root's ``x`` into the ``x`` of the others."""
    comm.broadcast(movable(x), root=root)


def gather(x: torch.Tensor, root: int, comm: Communicator) -> torch.Tensor:
    """The tensors of all ranks on the root, of shape (size, *x.shape); of shape (0, *x.shape) on the others."""
    parts = _gathered(x, root, comm)
    comm.gather(movable(x), movable(parts) if comm.rank == root else None, root=root)
    return parts


def all_gatherv(x: torch.Tensor, counts: Sequence[int], comm: Communicator) -> torch.Tensor:
    """The tensors of all ranks, which have ``counts[rank]`` rows, one after the other."""
    rows = _all_rows(x, counts, comm)
    comm.all_gather(movable(x), movable(rows), counts=list(counts))
    return rows


def reduce_scatterv(x: torch.Tensor, counts: Sequence[int], comm: Communicator) -> torch.Tensor:
    """Sum over all ranks; rank i gets its ``counts[i]`` rows, in rank order."""
    part = _own_rows(x, counts, comm)
    comm.reduce_scatter(x, part, counts=list(counts))
    return part


def _gathered(x: torch.Tensor, root: int, comm: Communicator) -> torch.Tensor:
    return x.new_empty((comm.size if comm.rank == root else 0, *x.shape))


def _all_rows(x: torch.Tensor, counts: Sequence[int], comm: Communicator) -> torch.Tensor:
    return x.new_empty((sum(counts), *x.shape[1:]))


def _own_rows(x: torch.Tensor, counts: Sequence[int], comm: Communicator) -> torch.Tensor:
    return x.new_empty((counts[comm.rank], *x.shape[1:]))


def _nothing(*_args: object) -> None:
    """For an operator whose schema is sufficient."""


def _by_name(call: Callable) -> Callable:
    return lambda x, how, comm: call(x, how, communicator(comm))


_library = Library("shmring_vllm", "DEF")
for _schema, _do, _shape in (
    ("broadcast_(Tensor(a!) x, int root, str comm) -> ()", broadcast_, _nothing),
    ("gather(Tensor x, int root, str comm) -> Tensor", gather, _gathered),
    ("all_gatherv(Tensor x, SymInt[] counts, str comm) -> Tensor", all_gatherv, _all_rows),
    ("reduce_scatterv(Tensor x, SymInt[] counts, str comm) -> Tensor", reduce_scatterv, _own_rows),
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_do.__name__, _by_name(_do), "CPU")
    register_fake(f"shmring_vllm::{_do.__name__}", _by_name(_shape), lib=_library)

for _call in (torch.ops.shmring_vllm.broadcast_, torch.ops.shmring_vllm.gather):
    has_side_effect(_call.default)  # stays in the graph of a rank that does not use the result
