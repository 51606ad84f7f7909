"""Sums of sparse tensors: every rank gathers the entries of all and adds them up."""

from __future__ import annotations

import torch


def all_reduce_sparse(comm, x: torch.Tensor, timeout_s: float | None) -> None:
    """Sum the sparse COO tensors of all ranks, in place; their entries and numbers of entries may differ.

    Shape, dtype and number of sparse dimensions are equal on all ranks; if the shapes differ, all ranks get a
    `ValueError` and the communicator stays usable. ``x`` is coalesced afterwards. ``timeout_s`` is that of each of
    three collectives.
    """
    own = x.detach().coalesce()
    indices, values = own.indices(), own.values()
    counts = _entries(comm, own, timeout_s)
    dims = own.sparse_dim()
    all_indices = comm.all_gather(indices.t().contiguous(), counts=counts, timeout=timeout_s)
    all_values = comm.all_gather(values.contiguous(), counts=counts, timeout=timeout_s)
    total = torch.sparse_coo_tensor(all_indices.reshape(-1, dims).t(), all_values, x.shape)
    x.copy_(total.coalesce())  # into `x` itself: an alias of a sparse tensor has its own indices and values


def _entries(comm, x: torch.Tensor, timeout_s: float | None) -> list[int]:
    """The number of entries on each rank, once all shapes are known to be equal."""
    most = 12  # a fixed size, so that ranks with different numbers of dimensions can still exchange them
    if x.dim() > most:
        raise ValueError(f"a sparse tensor of {x.dim()} dimensions: at most {most} are supported")
    own = torch.zeros(most + 3, dtype=torch.int64)
    own[: 3 + x.dim()] = torch.tensor([x._nnz(), x.sparse_dim(), x.dim(), *x.shape])
    shapes_by_rank = comm.all_gather(own, timeout=timeout_s)
    for rank in range(comm.size):
        if not torch.equal(shapes_by_rank[rank, 1:], own[1:]):
            shapes = [tuple(line[3 : 3 + line[2]].tolist()) for line in shapes_by_rank]
            raise ValueError(f"sparse tensors of shapes {shapes} (by rank) cannot be summed: they must be equal")
    return shapes_by_rank[:, 0].tolist()
