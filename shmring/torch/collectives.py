"""The collectives of `torch.distributed`, under all their names, in terms of the core's."""

from __future__ import annotations

import torch
import torch.distributed.distributed_c10d as c10d

from shmring.torch.dispatch import CallDispatch
from shmring.torch.reduce_ops import finish, is_of_the_core, name_of, reduction, summand
from shmring.torch.sparse import all_reduce_sparse
from shmring.torch.tensor_calls import all_reduce_, allreduce
from shmring.torch.tensor_list import PackedTensors, movable

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

_DENSE = torch.strided


class Collectives(CallDispatch):
    """The collective calls of `shmring.torch.ProcessGroup`, under all names that torch has for them.

    Each takes lists of tensors and an options object, as torch's own do, and returns a `torch.distributed.Work`.
    Results are written into the tensors given.
    """

    # ---- reductions ----

    allreduce = allreduce

    def _perform_all_reduce(self, tensors, opts):
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        return self._perform("all_reduce", _all_reduce, (tensors[0], reduction(opts)), tensors, opts)

    def allreduce_coalesced(self, tensors, opts=_ALL_REDUCE):
        """Reduce several tensors in place; small ones share a call."""
        return self._perform("all_reduce_coalesced", _all_reduce_many, (tensors, reduction(opts)), tensors, opts)

    def reduce(self, tensors, opts=_REDUCE):
        """Reduce into the root's tensor; the tensors of other ranks are unchanged."""
        return self._perform("reduce", _reduce, (tensors[0], opts.rootRank, reduction(opts)), tensors, opts)

    def reduce_scatter(self, outputs, inputs, opts=_REDUCE_SCATTER):
        """Reduce lists of tensors; rank i gets the i-th."""
        return self._perform("reduce_scatter", _reduce_scatter, (outputs, inputs, reduction(opts)), outputs, opts)

    def reduce_scatter_single(self, output, input, opts=_REDUCE_SCATTER):
        """Reduce one tensor; rank i gets the i-th part."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=_REDUCE_SCATTER):
        """The same for several tensors."""
        arguments = (outputs, inputs, reduction(opts))
        return self._perform("reduce_scatter_single", _reduce_scatter_singles, arguments, outputs, opts)

    # ---- movement ----

    def broadcast(self, tensors, opts=_BROADCAST):
        """Copy the root's tensors into those of the other ranks."""
        return self._perform("broadcast", _broadcast, (tensors, opts.rootRank), tensors, opts)

    def allgather(self, outputs, inputs, opts=_ALL_GATHER):
        """Collect the tensors of all ranks, which may differ in size, in a list on every rank."""
        return self._perform("all_gather", _all_gather, (outputs, inputs), [t for ts in outputs for t in ts], opts)

    def all_gather_single(self, output, input, opts=_ALL_GATHER):
        """Collect the tensors of all ranks, one after the other in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=_ALL_GATHER):
        """The same for several tensors."""
        return self._perform("all_gather_single", _all_gather_singles, (outputs, inputs), outputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=_ALL_GATHER):
        """Collect lists of tensors: ``outputs[rank][i]`` is that rank's ``inputs[i]``."""
        by_tensor = [list(column) for column in zip(*outputs, strict=True)]
        return self._perform("all_gather", _all_gather, (by_tensor, inputs), [t for ts in outputs for t in ts], opts)

    def gather(self, outputs, inputs, opts=_GATHER):
        """Collect the tensors of all ranks in a list on the root."""
        results = outputs[0] if outputs else []
        return self._perform("gather", _gather, (results, inputs[0], opts.rootRank), results, opts)

    def scatter(self, outputs, inputs, opts=_SCATTER):
        """Give rank i the i-th tensor of the root's list."""
        arguments = (outputs[0], inputs[0] if inputs else [], opts.rootRank)
        return self._perform("scatter", _scatter, arguments, outputs, opts)

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts=_ALL_TO_ALL):
        """Exchange parts of one tensor: equal ones, or as many rows to and from each rank as the split sizes say."""
        arguments = (output, input, list(output_split_sizes or ()), list(input_split_sizes or ()))
        return self._perform("all_to_all_single", _all_to_all_single, arguments, [output], opts)

    def alltoall(self, outputs, inputs, opts=_ALL_TO_ALL):
        """Exchange lists of tensors, of any sizes."""
        return self._perform("all_to_all", _all_to_all, (outputs, inputs), outputs, opts)

    def barrier(self, opts=None):
        """Complete once every rank has called."""
        return self._perform("barrier", _barrier, (), (), opts or _BARRIER)

    # Names of torch 2.12 and before.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single


# ---- each in terms of the core ---------------------------------------------------------------------------------------
# Inference mode and autograd belong to the thread that runs these functions. In inference mode both kinds of tensors
# can be written, and nothing is recorded.


def _all_reduce(comm, timeout_s, x, op) -> None:
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


@torch.inference_mode()
def _all_reduce_sparse(comm, timeout_s, x, op) -> None:
    if op != "sum":
        raise RuntimeError(f"all_reduce(op={name_of(op)}) of a sparse tensor: only sums are supported")
    all_reduce_sparse(comm, x, timeout_s)


def _all_reduce_many(comm, timeout_s, tensors, op) -> None:
    if all(t.layout is _DENSE and is_of_the_core(t, op) for t in tensors):
        comm.all_reduce_many(tensors, op=op, timeout=timeout_s)
    else:
        for t in tensors:
            _all_reduce(comm, timeout_s, t, op)


@torch.inference_mode()
def _reduce(comm, timeout_s, x, root, op) -> None:
    source, name = summand(x, op)
    comm.reduce(source, None if source is x else x, root=root, op=name, timeout=timeout_s)
    if comm.rank == root:
        finish(x, op, comm.size)


@torch.inference_mode()
def _reduce_scatter(comm, timeout_s, outputs, inputs, op) -> None:
    for out, shares in zip(outputs, inputs, strict=True):
        block = PackedTensors(shares)
        block.pack()
        x, name = summand(block.memory, op)
        counts = None if block.even else block.counts
        target = out if block.even else PackedTensors([out])
        if counts is None:
            comm.reduce_scatter(x, target, op=name, timeout=timeout_s)
        else:
            comm.reduce_scatter(x, target.memory, op=name, counts=counts, timeout=timeout_s)
            target.unpack()
        finish(out, op, comm.size)


@torch.inference_mode()
def _reduce_scatter_singles(comm, timeout_s, outputs, inputs, op) -> None:
    for out, x in zip(outputs, inputs, strict=True):
        source, name = summand(x, op)
        comm.reduce_scatter(source, out, op=name, timeout=timeout_s)
        finish(out, op, comm.size)


def _broadcast(comm, timeout_s, tensors, root) -> None:
    for t in tensors:
        comm.broadcast(movable(t), root=root, timeout=timeout_s)


@torch.inference_mode()
def _all_gather(comm, timeout_s, outputs, inputs) -> None:
    for outs, x in zip(outputs, inputs, strict=True):
        block = PackedTensors(outs)
        counts = None if block.even else block.counts
        comm.all_gather(_flat_if(counts, movable(x)), block.memory, counts=counts, timeout=timeout_s)
        block.unpack()


def _flat_if(counts, x) -> torch.Tensor:
    return x if counts is None else x.reshape(-1)


def _all_gather_singles(comm, timeout_s, outputs, inputs) -> None:
    for out, x in zip(outputs, inputs, strict=True):
        comm.all_gather(movable(x), movable(out), timeout=timeout_s)


@torch.inference_mode()
def _gather(comm, timeout_s, outputs, x, root) -> None:
    if comm.rank != root:
        comm.gather(movable(x), root=root, timeout=timeout_s)
        return
    block = PackedTensors(outputs)
    comm.gather(movable(x), block.memory, root=root, timeout=timeout_s)
    block.unpack()


@torch.inference_mode()
def _scatter(comm, timeout_s, out, shares, root) -> None:
    block = None
    if comm.rank == root:
        block = PackedTensors(shares)
        block.pack()
    comm.scatter(block and block.memory, movable(out), root=root, timeout=timeout_s)


@torch.inference_mode()
def _all_to_all_single(comm, timeout_s, out, x, out_counts, counts) -> None:
    x, out = movable(x), movable(out)
    if counts or out_counts:
        rows = x.shape[0] // comm.size, out.shape[0] // comm.size
        counts, out_counts = counts or [rows[0]] * comm.size, out_counts or [rows[1]] * comm.size
        comm.all_to_all(x, out, counts=counts, out_counts=out_counts, timeout=timeout_s)
    else:
        comm.all_to_all(x.reshape(comm.size, x.numel() // comm.size), out, timeout=timeout_s)


@torch.inference_mode()
def _all_to_all(comm, timeout_s, outputs, inputs) -> None:
    source, target = PackedTensors(inputs), PackedTensors(outputs)
    source.pack()
    comm.all_to_all(source.memory, target.memory, counts=source.counts, out_counts=target.counts, timeout=timeout_s)
    target.unpack()


def _barrier(comm, timeout_s) -> None:
    comm.barrier(timeout=timeout_s)
