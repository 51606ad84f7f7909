"""The collectives of `torch.distributed` in terms of the core's: ``call(comm, timeout_s, *arguments)``.

Results are written into the tensors given.
"""

# Inference mode and autograd belong to the thread that runs these functions. In inference mode both kinds of tensors
# can be written, and nothing is recorded. Nothing made there may be left to the program: it could not be changed later.
# A program may have another default device, so every new tensor names the CPU.

from __future__ import annotations

import torch

from shmring.torch.reduce_ops import finish, is_of_the_core, name_of, summand
from shmring.torch.tensor_calls import all_reduce_
from shmring.torch.tensor_list import PackedTensors, movable

_DENSE = torch.strided


def all_reduce(comm, timeout_s, x, op) -> None:
    if x.layout is not _DENSE:
        _all_reduce_sparse(comm, timeout_s, x, op)
    elif op != "sum" and not is_of_the_core(x, op):  # the common case, sum, is tested first
        _all_reduce_dense(comm, timeout_s, x, op)
    else:
        all_reduce_(x, op, comm=comm, timeout=timeout_s)


@torch.inference_mode()
def _all_reduce_dense(comm, timeout_s, x, op) -> None:
    source, name = summand(x, op)
    comm.all_reduce(source, x, op=name, timeout=timeout_s)
    finish(x, op, comm.size)


def all_reduce_many(comm, timeout_s, tensors, op) -> None:
    if all(t.layout is _DENSE and is_of_the_core(t, op) for t in tensors):
        comm.all_reduce_many(tensors, op=op, timeout=timeout_s)
    else:
        for t in tensors:
            all_reduce(comm, timeout_s, t, op)


@torch.inference_mode()
def reduce(comm, timeout_s, x, root, op) -> None:
    source, name = summand(x, op)
    comm.reduce(source, None if source is x else x, root=root, op=name, timeout=timeout_s)
    if comm.rank == root:
        finish(x, op, comm.size)


@torch.inference_mode()
def reduce_scatter(comm, timeout_s, outputs, inputs, op) -> None:
    for out, shares in zip(outputs, inputs, strict=True):
        block = PackedTensors(shares)
        block.pack()
        x, name = summand(block.memory, op)
        if block.even:
            comm.reduce_scatter(x, out, op=name, timeout=timeout_s)
        else:
            target = PackedTensors([out])
            comm.reduce_scatter(x, target.memory, op=name, counts=block.counts, timeout=timeout_s)
            target.unpack()
        finish(out, op, comm.size)


@torch.inference_mode()
def reduce_scatter_singles(comm, timeout_s, outputs, inputs, op) -> None:
    for out, x in zip(outputs, inputs, strict=True):
        source, name = summand(x, op)
        comm.reduce_scatter(source, out, op=name, timeout=timeout_s)
        finish(out, op, comm.size)


def broadcast(comm, timeout_s, tensors, root) -> None:
    for t in tensors:
        comm.broadcast(movable(t), root=root, timeout=timeout_s)


@torch.inference_mode()
def all_gather(comm, timeout_s, outputs, inputs) -> None:
    for outs, x in zip(outputs, inputs, strict=True):
        block, x = PackedTensors(outs), movable(x)
        if block.even:
            comm.all_gather(x, block.memory, timeout=timeout_s)
        else:
            comm.all_gather(x.reshape(-1), block.memory, counts=block.counts, timeout=timeout_s)
        block.unpack()


def all_gather_singles(comm, timeout_s, outputs, inputs) -> None:
    for out, x in zip(outputs, inputs, strict=True):
        comm.all_gather(movable(x), movable(out), timeout=timeout_s)


@torch.inference_mode()
def gather(comm, timeout_s, outputs, x, root) -> None:
    if comm.rank != root:
        comm.gather(movable(x), root=root, timeout=timeout_s)
        return
    block = PackedTensors(outputs)
    comm.gather(movable(x), block.memory, root=root, timeout=timeout_s)
    block.unpack()


@torch.inference_mode()
def scatter(comm, timeout_s, out, shares, root) -> None:
    block = None
    if comm.rank == root:
        block = PackedTensors(shares)
        block.pack()
    comm.scatter(block and block.memory, movable(out), root=root, timeout=timeout_s)


@torch.inference_mode()
def all_to_all_single(comm, timeout_s, out, x, out_counts, counts) -> None:
    x, out = movable(x), movable(out)
    if counts or out_counts:
        rows = x.shape[0] // comm.size, out.shape[0] // comm.size
        counts, out_counts = counts or [rows[0]] * comm.size, out_counts or [rows[1]] * comm.size
        comm.all_to_all(x, out, counts=counts, out_counts=out_counts, timeout=timeout_s)
    else:
        comm.all_to_all(x.reshape(comm.size, x.numel() // comm.size), out, timeout=timeout_s)


@torch.inference_mode()
def all_to_all(comm, timeout_s, outputs, inputs) -> None:
    source, target = PackedTensors(inputs), PackedTensors(outputs)
    source.pack()
    comm.all_to_all(source.memory, target.memory, counts=source.counts, out_counts=target.counts, timeout=timeout_s)
    target.unpack()


def barrier(comm, timeout_s) -> None:
    comm.barrier(timeout=timeout_s)


# ---- sums of sparse tensors: every rank gathers the entries of all and adds them up ----------------------------------


@torch.no_grad()
def _all_reduce_sparse(comm, timeout_s: float | None, x: torch.Tensor, op) -> None:
    """Sum the sparse COO tensors of all ranks, in place; their entries and numbers of entries may differ.

    Shape, dtype and number of sparse dimensions are equal on all ranks; if the shapes differ, all ranks get a
    `ValueError` and the communicator stays usable. ``x`` is coalesced afterwards. ``timeout_s`` is that of each of
    three collectives.
    """
    if op != "sum":
        raise RuntimeError(f"all_reduce(op={name_of(op)}) of a sparse tensor: only sums are supported")
    if x.layout is not torch.sparse_coo:
        raise TypeError(f"all_reduce of a tensor with the layout {x.layout}: only torch.sparse_coo is supported")
    with torch.inference_mode(x.is_inference()):  # `x` gets the indices and values of `total`
        own = x.detach().coalesce()
        indices, values = own.indices(), own.values()
        counts = _entries(comm, own, timeout_s)
        dims = own.sparse_dim()
        all_indices = comm.all_gather(indices.t().contiguous(), counts=counts, timeout=timeout_s)
        all_values = comm.all_gather(values.contiguous(), counts=counts, timeout=timeout_s)
        total = torch.sparse_coo_tensor(all_indices.reshape(-1, dims).t(), all_values, x.shape, device="cpu")
        x.copy_(total.coalesce())  # into `x` itself: an alias of a sparse tensor has its own indices and values


def _entries(comm, x: torch.Tensor, timeout_s: float | None) -> list[int]:
    """The number of entries on each rank, once all shapes are known to be equal."""
    most = 12  # a fixed size, so that ranks with different numbers of dimensions can still exchange them
    if x.dim() > most:
        raise ValueError(f"a sparse tensor of {x.dim()} dimensions: at most {most} are supported")
    own = torch.zeros(most + 3, dtype=torch.int64, device="cpu")
    own[: 3 + x.dim()] = torch.tensor([x._nnz(), x.sparse_dim(), x.dim(), *x.shape], device="cpu")
    shapes_by_rank = comm.all_gather(own, timeout=timeout_s)
    for rank in range(comm.size):
        if not torch.equal(shapes_by_rank[rank, 1:], own[1:]):
            shapes = [tuple(line[3 : 3 + line[2]].tolist()) for line in shapes_by_rank]
            raise ValueError(f"sparse tensors of shapes {shapes} (by rank) cannot be summed: they must be equal")
    return shapes_by_rank[:, 0].tolist()
