"""Collectives over several nodes: shared memory within each node, gloo between nodes.

Results have the same bits as on one node, so floats are added in the order of the ranks of all nodes. There are two
algorithms:

- *All-gather.* Small vectors are gathered on every rank, and each rank reduces them: one message between nodes.
- *Chain.* A large vector is cut into slices, one for each *leader* of a node. The leaders are a node's first ranks, the
  same number on every node. A leader gets its slice from all ranks of its node, adds them to the partial result that it
  receives from the previous node, and sends that to the next one; the result returns along the chain. A slice is
  pipelined in pieces, so all nodes work at the same time. Where the ranks of a node are not consecutive, the chain
  visits the node once for each *run* of consecutive ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shmring.torch.dense import copy_back, dense, joined
from shmring.torch.multinode.discovery import runs
from shmring.torch.multinode.lifecycle import AFTER_S, MultinodeLifecycle, collective
from shmring.torch.multinode.transport import RESULT, RUNS, CallExchange
from shmring.torch.tensor_reduce import checked, fold, partial_dtype

ALL_GATHER_NBYTES = 1024 * 1024  # vectors of at most this size in all may be gathered,
MORE_NBYTES = 64 * 1024  # if at most this much more crosses the network than with the chain
PIECE_NBYTES = 1024 * 1024  # of a slice, in the chain
CUT_NBYTES = 64 * 1024  # smaller vectors are not cut: the first leader sends them


class MultinodeCollectives(MultinodeLifecycle):
    """The collective calls of a communicator of several nodes, as `shmring.Communicator` has them, on tensors."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._others = [i for i in range(len(self.nodes)) if i != self.node]
        self._order = [r for ranks in self.nodes for r in ranks]
        self._is_ordered = self._order == list(range(self.size))
        self._nleaders = min(map(len, self.nodes))
        self._runs = runs(self.nodes)

    # ---- reductions ----

    @collective
    def all_reduce(self, x, out=None, *, op="sum", timeout=...):
        """As `shmring.Communicator.all_reduce`."""
        target = x if out is None else out
        op = checked(op, x)
        with self._call("all_reduce", timeout, x, op, count=x.numel()) as call:
            flat = dense(x)
            result = dense(target)
            if self._is_small(flat):
                result.copy_(self._fold_gathered(call, flat, op, slice(None)))
            else:
                piece = self._fold_along_chain(call, flat, op, range(len(self.nodes)))
                counts = self._slices(flat.numel())
                self.local.all_gather(piece, result, counts=counts, timeout=call.left_s(AFTER_S))
            copy_back(result, target)
        return target

    def all_reduce_many(self, tensors, *, op="sum", timeout=...):
        """As `shmring.Communicator.all_reduce_many`; small tensors of one dtype share a call."""
        together: dict[torch.dtype, list] = {}
        for t in tensors:
            if self._is_small(t):
                together.setdefault(t.dtype, []).append(t)
            else:
                self.all_reduce(t, op=op, timeout=timeout)
        for few in together.values():
            with torch.inference_mode():
                block = torch.cat([dense(t) for t in few])
                self.all_reduce(block, op=op, timeout=timeout)
                for t, piece in zip(few, block.split([t.numel() for t in few]), strict=True):
                    t.copy_(piece.view(t.shape))

    @collective
    def reduce(self, x, out=None, *, root=0, op="sum", timeout=...):
        """As `shmring.Communicator.reduce`."""
        target = x if out is None else out
        op = checked(op, x)
        home, local_rank = self.locate(root)
        with self._call("reduce", timeout, x, op, root, x.numel()) as call:
            flat = dense(x)
            if self._is_small(flat):
                result = self._fold_gathered(call, flat, op, slice(None))
            else:
                piece = self._fold_along_chain(call, flat, op, [home])
                result = torch.empty_like(flat) if self.rank == root else None
                if self.node == home:
                    counts = self._slices(flat.numel())
                    self.local.gather(piece, result, root=local_rank, counts=counts, timeout=call.left_s(AFTER_S))
            if self.rank == root:
                target.copy_(result.view(target.shape))
        return target if self.rank == root else None

    @collective
    def reduce_scatter(self, x, out, *, op="sum", counts=None, timeout=...):
        """As `shmring.Communicator.reduce_scatter`."""
        op = checked(op, x)
        sizes = self._sizes(out.numel(), out.shape, counts)
        _check_size("x", x, out, sum(sizes))
        with self._call("reduce_scatter", timeout, x, op, count=x.numel()) as call:
            flat = dense(x)
            blocks = flat.split(sizes)
            if self._is_small(flat):
                start = sum(sizes[: self.rank])
                own = self._fold_gathered(call, flat, op, slice(start, start + sizes[self.rank]))
            else:
                for node, ranks in enumerate(self.nodes):
                    part = joined([blocks[r] for r in ranks])
                    piece = self._fold_along_chain(call, part, op, [node])
                    if node == self.node:
                        whole = torch.empty_like(part)
                        shares = self._slices(part.numel())
                        self.local.all_gather(piece, whole, counts=shares, timeout=call.left_s(AFTER_S))
                        own = whole.split([sizes[r] for r in ranks])[self.local_rank]
            out.copy_(own.view(out.shape))
        return out

    # ---- movement ----

    @collective
    def broadcast(self, x, *, root=0, timeout=...):
        """As `shmring.Communicator.broadcast`."""
        home, local_rank = self.locate(root)
        with self._call("broadcast", timeout, x, root=root, count=x.numel()) as call:
            flat = dense(x)
            if self.node == home:
                self.local.broadcast(flat, root=local_rank, timeout=call.left_s())
            self._broadcast_slices(call, flat, home)
            if self.node != home:
                self._share_slices(call, flat)
            if self.rank != root:
                copy_back(flat, x)
        return x

    @collective
    def all_gather(self, x, out=None, *, counts=None, timeout=...):
        """As `shmring.Communicator.all_gather`."""
        sizes = self._sizes(x.numel(), x.shape, counts)
        if out is None:
            out = x.new_empty((self.size, *x.shape) if counts is None else (sum(counts), *x.shape[1:]))
        _check_size("out", out, x, sum(sizes))
        with self._call("all_gather", timeout, x, count=sum(sizes)) as call:
            result = dense(out)
            self._gather_all(call, dense(x), result, sizes)
            copy_back(result, out)
        return out

    @collective
    def gather(self, x, out=None, *, root=0, timeout=...):
        """As `shmring.Communicator.gather`; the root passes ``out``."""
        home, local_rank = self.locate(root)
        if self.rank == root:
            _check_size("out", out, x, self.size * x.numel())
        with self._call("gather", timeout, x, root=root, count=x.numel()) as call:
            flat = dense(x)
            if self.node != home:
                block = flat.new_empty(self.local.size * flat.numel()) if self.local_rank == 0 else None
                self.local.gather(flat, block, root=0, timeout=call.left_s())
                if self.local_rank == 0:
                    call.send(block, root)
            elif self.rank != root:
                self.local.gather(flat, root=local_rank, timeout=call.left_s())
            else:
                block = flat.new_empty(self.size * flat.numel())
                spans = block.split([len(ranks) * flat.numel() for ranks in self.nodes])
                awaited = [call.recv(spans[node], self.nodes[node][0]) for node in self._others]
                self.local.gather(flat, spans[home], root=local_rank, timeout=call.left_s())
                for wait in awaited:
                    wait()
                result = dense(out)
                self._put_in_order(block, result, [flat.numel()] * self.size)
                copy_back(result, out)
        return out if self.rank == root else None

    @collective
    def scatter(self, x, out, *, root=0, timeout=...):
        """As `shmring.Communicator.scatter`."""
        home, local_rank = self.locate(root)
        if self.rank == root:
            _check_size("x", x, out, self.size * out.numel())
        with self._call("scatter", timeout, out, root=root, count=out.numel()) as call:
            own = dense(out)
            block = None
            if self.rank == root:
                rows = dense(x).view(self.size, own.numel())
                for node in self._others:
                    call.send(joined([rows[r] for r in self.nodes[node]]), self.nodes[node][0])
                block = joined([rows[r] for r in self.nodes[home]])
            elif self.node != home and self.local_rank == 0:
                block = own.new_empty(self.local.size * own.numel())
                call.recv(block, root)()
            if block is not None:
                block = block.view(self.local.size, own.numel())
            first = local_rank if self.node == home else 0
            self.local.scatter(block, own, root=first, timeout=call.left_s(AFTER_S))
            copy_back(own, out)
        return out

    @collective
    def all_to_all(self, x, out, *, counts=None, out_counts=None, timeout=...):
        """As `shmring.Communicator.all_to_all`; between nodes each rank sends to each."""
        sizes = self._sizes(x.numel() // self.size, x.shape, counts)
        out_sizes = self._sizes(out.numel() // self.size, out.shape, out_counts)
        _check_size("x", x, out, sum(sizes))
        _check_size("out", out, x, sum(out_sizes))
        with self._call("all_to_all", timeout, x) as call:
            result = dense(out)
            source = dense(x)
            if source.data_ptr() == result.data_ptr():
                source = source.clone()
            pieces, targets = source.split(sizes), result.split(out_sizes)
            awaited = [call.recv(targets[r], r) for node in self._others for r in self.nodes[node]]
            for node in self._others:
                for r in self.nodes[node]:
                    call.send(pieces[r], r)
            self._all_to_all_local(call, pieces, targets)
            for wait in awaited:
                wait()
            copy_back(result, out)
        return out

    @collective
    def barrier(self, *, timeout=...):
        """As `shmring.Communicator.barrier`."""
        with self._call("barrier", timeout) as call:
            self.local.barrier(timeout=call.left_s())
            self._exchange_slices(call, [torch.empty(0)] * len(self.nodes))
            self.local.barrier(timeout=call.left_s(AFTER_S))

    # ---- building blocks ----

    def _is_small(self, x: torch.Tensor) -> bool:
        more = (len(self.nodes) - 1) * (self.size - 2) * x.nbytes
        return self.size * x.nbytes <= ALL_GATHER_NBYTES and more <= MORE_NBYTES

    def _fold_gathered(self, call: CallExchange, flat: torch.Tensor, op: str, part: slice) -> torch.Tensor:
        """Gather the vectors of all ranks and reduce this part of them."""
        rows = flat.new_empty((self.size, flat.numel()))
        self._gather_all(call, flat, rows.view(-1), [flat.numel()] * self.size)
        parts = [row[part] for row in rows]
        result = torch.empty_like(parts[0])
        fold(parts, op, result, total=self.size)
        return result

    def _fold_along_chain(
        self, call: CallExchange, part: torch.Tensor, op: str, targets: Sequence[int]
    ) -> torch.Tensor:
        """Reduce all ranks' ``part`` along the chain: a leader's slice of the result, valid on the target nodes."""
        rows = self._rows(call, part)
        prefix = rows.new_empty(rows.shape[1], dtype=partial_dtype(part.dtype, op))
        result = prefix if prefix.dtype == part.dtype else torch.empty_like(rows[0])
        if self.local_rank >= self._nleaders:
            return result
        length = PIECE_NBYTES // prefix.itemsize
        pieces = result.split(length)
        last = self._runs[-1][0]
        back = [last, *(node for node in reversed(range(len(self.nodes))) if node in targets and node != last)]
        for finished in self._forward(call, rows.split(length, 1), prefix.split(length), pieces, op):
            if finished is not None and len(back) > 1:
                call.send(finished, self._peer(back[1]), RESULT)
        if self.node in back[1:]:
            self._return_results(call, pieces, back, back.index(self.node))
        return result

    def _forward(self, call: CallExchange, columns, prefixes, pieces, op: str):
        """The chain forwards: add this node's ranks to each piece. Yields finished pieces, None for the others."""
        visits = [(i, local_ranks) for i, (node, local_ranks) in enumerate(self._runs) if node == self.node]
        streams = {i: call.stream(prefixes, self._peer(self._runs[i - 1][0]), RUNS + i) for i, _ in visits if i}
        for rows, prefix, piece in zip(columns, prefixes, pieces, strict=True):
            finished = None
            for i, local_ranks in visits:
                if i:
                    next(streams[i])
                before, sources = prefix if i else None, [rows[local_rank] for local_rank in local_ranks]
                if i + 1 < len(self._runs):
                    fold(sources, op, prefix, before)
                    call.send(prefix, self._peer(self._runs[i + 1][0]), RUNS + i + 1)
                else:
                    fold(sources, op, piece, before, self.size)
                    finished = piece
            yield finished

    def _return_results(self, call: CallExchange, pieces, back: list[int], at: int) -> None:
        """The chain backwards: receive the result from the previous node and forward it."""
        for piece, _ in zip(pieces, call.stream(pieces, self._peer(back[at - 1]), RESULT), strict=True):
            if at + 1 < len(back):
                call.send(piece, self._peer(back[at + 1]), RESULT)

    def _rows(self, call: CallExchange, part: torch.Tensor) -> torch.Tensor:
        """This leader's slice of the ``part`` of each rank of its node."""
        counts = self._slices(part.numel())
        own = counts[self.local_rank]
        if self.local.size == 1:
            return part.view(1, own)
        rows = part.new_empty(self.local.size * own)
        out_counts = [own] * self.local.size
        self.local.all_to_all(part, rows, counts=counts, out_counts=out_counts, timeout=call.left_s())
        return rows.view(self.local.size, own)

    def _gather_all(self, call: CallExchange, x: torch.Tensor, out: torch.Tensor, sizes: list[int]) -> None:
        """Gather the ``x`` of all ranks, ``sizes`` elements each, in ``out`` on every rank; all are dense."""
        block = out if self._is_ordered else torch.empty_like(out)
        spans = block.split([sum(sizes[r] for r in ranks) for ranks in self.nodes])
        ours = [sizes[r] for r in self.nodes[self.node]]
        counts = None if len(set(ours)) == 1 else ours
        self.local.all_gather(x, spans[self.node], counts=counts, timeout=call.left_s())
        self._exchange_slices(call, spans)
        for node in self._others:
            self._share_slices(call, spans[node])
        if block is not out:
            self._put_in_order(block, out, sizes)

    def _exchange_slices(self, call: CallExchange, spans: Sequence[torch.Tensor]) -> None:
        """Send the leaders of other nodes their slices of this node's span, and receive ours of their spans."""
        awaited = []
        for node in self._others:
            theirs = self._slice(spans[node])
            ours = self._slice(spans[self.node])
            if theirs is not None:
                awaited.append(call.recv(theirs, self._peer(node)))
            if ours is not None:
                call.send(ours, self._peer(node))
        for wait in awaited:
            wait()

    def _broadcast_slices(self, call: CallExchange, x: torch.Tensor, home: int) -> None:
        """Send the leaders of all nodes their slices of ``x``, along a binomial tree of nodes."""
        part = self._slice(x)
        if part is None:
            return
        n = len(self.nodes)
        place = (self.node - home) % n
        bit = place & -place
        if place:
            call.recv(part, self._peer((place - bit + home) % n))()
        bit = bit or 1 << n.bit_length()
        while bit := bit >> 1:
            if place + bit < n:
                call.send(part, self._peer((place + bit + home) % n))

    def _share_slices(self, call: CallExchange, x: torch.Tensor) -> None:
        """Give all ranks of the node the slices that its leaders have."""
        if x.nbytes < CUT_NBYTES:
            self.local.broadcast(x, root=0, timeout=call.left_s(AFTER_S))
        elif self.local.size > 1:
            own = x.split(self._slices(x.numel()))[self.local_rank]
            self.local.all_gather(own, x, counts=self._slices(x.numel()), timeout=call.left_s(AFTER_S))

    def _all_to_all_local(self, call: CallExchange, pieces, targets) -> None:
        """The part of an all-to-all that stays on the node."""
        ranks = self.nodes[self.node]
        source = joined([pieces[r] for r in ranks])
        target = source.new_empty(sum(targets[r].numel() for r in ranks))
        counts, out_counts = ([t[r].numel() for r in ranks] for t in (pieces, targets))
        self.local.all_to_all(source, target, counts=counts, out_counts=out_counts, timeout=call.left_s())
        for r, piece in zip(ranks, target.split(out_counts), strict=True):
            targets[r].copy_(piece)

    def _put_in_order(self, block: torch.Tensor, out: torch.Tensor, sizes: list[int]) -> None:
        """Copy the ranks' parts from node order into rank order."""
        targets = out.split(sizes)
        for r, piece in zip(self._order, block.split([sizes[r] for r in self._order]), strict=True):
            targets[r].copy_(piece)

    # ---- peers and sizes ----

    def _peer(self, node: int) -> int:
        """The leader on another node that has the same slice."""
        return self.nodes[node][self.local_rank]

    def _slices(self, count: int) -> list[int]:
        """The elements of each local rank's slice of ``count``; 0 for ranks that are not leaders."""
        few, more = divmod(count, self._nleaders)
        return [few + (i < more) if i < self._nleaders else 0 for i in range(self.local.size)]

    def _slice(self, x: torch.Tensor) -> torch.Tensor | None:
        """The part of ``x`` that this rank sends or receives between nodes; None if it has none."""
        if x.nbytes < CUT_NBYTES:
            return x if self.local_rank == 0 else None
        return x.split(self._slices(x.numel()))[self.local_rank] if self.local_rank < self._nleaders else None

    def _sizes(self, own: int, shape: torch.Size, counts: Sequence[int] | None) -> list[int]:
        """The elements of each rank, from the rows of each; without ``counts``, ``own`` on every rank."""
        if counts is None:
            return [own] * self.size
        width = torch.Size(shape[1:]).numel()
        return [count * width for count in counts]


def _check_size(name: str, x: torch.Tensor, other: torch.Tensor, count: int) -> None:
    if x.dtype != other.dtype:
        raise TypeError(f"{name} has dtype {x.dtype}, the other tensor {other.dtype}; they must be equal")
    if x.numel() != count:
        raise ValueError(f"{name} has {x.numel()} elements; it must have {count}")
