"""Sums of sparse tensors: what all ranks hold, gathered and added up by each."""

from __future__ import annotations

import torch


def all_reduce_sparse(comm, x: torch.Tensor, timeout_s: float | None) -> None:
    """Sum the sparse COO tensors of all ranks, in place; each may have other entries, and another number of them.

    Parameters
    ----------
    comm : shmring.Communicator
    x : torch.Tensor, sparse COO
        Its shape, element type and number of sparse dimensions equal on all ranks. Coalesced afterwards.
    timeout_s : float or None
        For each of the three collectives.

    Raises
    ------
    ValueError
        The ranks' tensors differ in shape; on all ranks, and the communicator stays usable.
    """
    own = x.detach().coalesce()
    indices, values = own.indices(), own.values()
    counts = _entries(comm, own, timeout_s)
    dims = own.sparse_dim()
    all_indices = comm.all_gather(indices.t().contiguous(), counts=counts, timeout=timeout_s)
    all_values = comm.all_gather(values.contiguous(), counts=counts, timeout=timeout_s)
    total = torch.sparse_coo_tensor(all_indices.reshape(-1, dims).t(), all_values, x.shape)
    x.copy_(total.coalesce())  # `x` itself: an alias of a sparse tensor has indices and values of its own


def _entries(comm, x: torch.Tensor, timeout_s: float | None) -> list[int]:
    """The number of entries of each rank's tensor, all of which must be shaped alike."""
    most = 12  # a fixed size, so that ranks which disagree about the dimensions can tell each other
    if x.dim() > most:
        raise ValueError(f"a sparse tensor of {x.dim()} dimensions; at most {most} are possible")
    own = torch.zeros(most + 3, dtype=torch.int64)
    own[: 3 + x.dim()] = torch.tensor([x._nnz(), x.sparse_dim(), x.dim(), *x.shape])
    said = comm.all_gather(own, timeout=timeout_s)
    for rank in range(comm.size):
        if not torch.equal(said[rank, 1:], own[1:]):
            shapes = [tuple(line[3 : 3 + line[2]].tolist()) for line in said]
            raise ValueError(f"sparse tensors of shapes {shapes} (by rank) cannot be summed: they must be equal")
    return said[:, 0].tolist()
