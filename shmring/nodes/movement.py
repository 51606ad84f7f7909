"""The collectives over several nodes that move data."""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Sequence

import numpy as np

from shmring.engine.kinds import COLLECTIVES
from shmring.nodes import flat
from shmring.nodes.calls import Arguments, FunctionCall, NodesCalls
from shmring.nodes.form import Form
from shmring.nodes.operand import Operand
from shmring.nodes.plan import movement

_BYTES = Operand("", -1, 1, 1)


class NodesMovement(NodesCalls):
    """The calls of a communicator over several nodes that move data, as `shmring.Communicator` has them."""

    def broadcast(self, x, root=0, *, timeout=..., async_op=False):
        """As `shmring.Communicator.broadcast`."""
        root = self._checked_rank(root, "root")
        if self._repeats.make(self, "broadcast", root, x, None if self.rank == root else x, timeout, async_op):
            return x

        def opened() -> Arguments:
            whole = flat.source(x) if self.rank == root else flat.target(x)
            what = f"broadcast({whole.dtype} x {whole.count}, root {root})"
            out = None if self.rank == root else whole
            key = (whole.count, whole.itemsize, root)
            form = _form("broadcast", whole, None, root)
            return Arguments(what, movement.broadcast, key, _move(whole), form, whole, out, x)

        return self._collective(f"broadcast(root={root})", opened, timeout, async_op, ("broadcast", root))

    def broadcast_many(self, arrays, root=0, *, timeout=..., async_op=False):
        """As `shmring.Communicator.broadcast_many`; one call for each array."""
        arrays, root = list(arrays), self._checked_rank(root, "root")
        for x in arrays:
            flat.source(x) if self.rank == root else flat.target(x)

        def broadcast_all() -> list:
            for x in arrays:
                self.broadcast(x, root=root, timeout=timeout)
            return arrays

        return self._dispatch(FunctionCall(f"broadcast_many(root={root})", broadcast_all), async_op)

    def all_gather(self, x, out=None, *, counts=None, timeout=..., async_op=False):
        """As `shmring.Communicator.all_gather`."""
        if out is not None and counts is None and self._repeats.make(self, "all_gather", 0, x, out, timeout, async_op):
            return out
        rows = row_counts(counts, self.size, "counts")
        if out is None:
            out = flat.empty_like(x, self._whole_shape(x, rows))

        def opened() -> Arguments:
            source, target = flat.source(x), flat.target(out)
            sizes = self._sizes(x, source, rows)
            check_out("out", target, source, sum(sizes))
            offset = sum(sizes[: self.rank]) * source.itemsize
            flat.check_overlap(source, target, offset)
            what = f"all_gather({source.dtype} x {sum(sizes)}{digest(rows)})"
            key = (sizes, source.itemsize)
            form = _form("all_gather", source, rows)
            return Arguments(what, movement.all_gather, key, _move(source), form, source, target, out, offset)

        repeat = ("all_gather", 0) if rows is None else None
        return self._collective("all_gather", opened, timeout, async_op, repeat)

    def gather(self, x, out=None, root=0, *, counts=None, timeout=..., async_op=False):
        """As `shmring.Communicator.gather`."""
        root, rows = self._checked_rank(root, "root"), row_counts(counts, self.size, "counts")
        is_root = self.rank == root
        if not is_root:
            out = None
        elif out is None:
            out = flat.empty_like(x, self._whole_shape(x, rows))

        def opened() -> Arguments:
            source, target = flat.source(x), flat.target(out) if is_root else None
            sizes = self._sizes(x, source, rows)
            if target is not None:
                check_out("out", target, source, sum(sizes))
                flat.check_overlap(source, target, sum(sizes[: self.rank]) * source.itemsize)
            what = f"gather({source.dtype} x {sum(sizes)}{digest(rows)}, root {root})"
            key = (sizes, source.itemsize, root)
            form = _form("gather", source, rows, root)
            return Arguments(what, movement.gather, key, _move(source), form, source, target, out)

        return self._collective(f"gather(root={root})", opened, timeout, async_op)

    def scatter(self, x, out=None, root=0, *, counts=None, timeout=..., async_op=False):
        """As `shmring.Communicator.scatter`."""
        root, rows = self._checked_rank(root, "root"), row_counts(counts, self.size, "counts")
        is_root = self.rank == root
        if out is None:
            if not is_root:
                raise TypeError("out is None: only the root may leave it out, since other ranks cannot know the shape")
            shape = flat.shape(x)
            if rows is None and (not shape or shape[0] != self.size):
                raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {self.size}")
            out = flat.empty_like(x, shape[1:] if rows is None else (rows[root], *shape[1:]))

        def opened() -> Arguments:
            target, source = flat.target(out), flat.source(x) if is_root else None
            sizes = self._sizes(out, target, rows)
            if source is not None:
                check_out("x", source, target, sum(sizes))
                flat.check_overlap(target, source, sum(sizes[: self.rank]) * target.itemsize)
            what = f"scatter({target.dtype} x {sum(sizes)}{digest(rows)}, root {root})"
            key = (sizes, target.itemsize, root)
            form = _form("scatter", target, rows, root)
            return Arguments(what, movement.scatter, key, _move(target), form, source, target, out)

        return self._collective(f"scatter(root={root})", opened, timeout, async_op)

    def all_to_all(self, x, out=None, *, counts=None, out_counts=None, timeout=..., async_op=False):
        """As `shmring.Communicator.all_to_all`; between nodes each rank sends to each."""
        rows = row_counts(counts, self.size, "counts")
        out_rows = row_counts(out_counts, self.size, "out_counts")
        if rows is None and out_rows is not None:
            raise TypeError("out_counts without counts: give both, or none")
        if rows is not None and out_rows is None:
            out_rows = self._exchanged(rows, timeout)
        shape = flat.shape(x)
        if rows is None and out is None and (not shape or shape[0] != self.size):
            raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {self.size}")
        if out is None:
            out = flat.empty_like(x, shape if out_rows is None else (sum(out_rows), *shape[1:]))

        def opened() -> Arguments:
            source, target = flat.source(x), flat.target(out)
            if rows is None or out_rows is None:
                sizes = out_sizes = self._even_sizes(source)
            else:
                width = width_of(x, sum(rows), "x")
                sizes, out_sizes = (tuple(n * width for n in some) for some in (rows, out_rows))
            check_out("x", source, target, sum(sizes))
            check_out("out", target, source, sum(out_sizes))
            in_place = flat.starts_alike(source, target)
            flat.check_overlap(source, target, 0)
            what = f"all_to_all({source.dtype}{'' if rows is not None else f' x {source.count}'})"
            key = (sizes, out_sizes, source.itemsize, in_place)
            form = _form("all_to_all", source, rows, parts=self.size)
            return Arguments(what, movement.all_to_all, key, _move(source), form, source, target, out)

        return self._collective("all_to_all", opened, timeout, async_op)

    def barrier(self, *, timeout=..., async_op=False):
        """As `shmring.Communicator.barrier`."""
        return self._collective("barrier", lambda: _BARRIER, timeout, async_op)

    # ---- what they share ----

    def _exchanged(self, rows: tuple[int, ...], timeout) -> tuple[int, ...]:
        """The rows that each rank sends to this one."""
        column = self.all_to_all(np.array(rows, np.int64).reshape(self.size, 1), timeout=timeout)
        return tuple(column.reshape(-1).tolist())

    def _whole_shape(self, x, rows: Sequence[int] | None) -> tuple[int, ...]:
        shape = flat.shape(x)
        return (self.size, *shape) if rows is None else (sum(rows), *shape[1:])

    def _sizes(self, part, opened: flat.Flat, rows: Sequence[int] | None) -> tuple[int, ...]:
        """The elements of each rank, of an array that has this rank's part."""
        if rows is None:
            return (opened.count,) * self.size
        width = width_of(part, rows[self.rank], "the part of this rank")
        return tuple(n * width for n in rows)

    def _even_sizes(self, whole: flat.Flat) -> tuple[int, ...]:
        if whole.count % self.size:
            raise ValueError(f"x has {whole.count} elements; they must be one part for each of {self.size} ranks")
        return (whole.count // self.size,) * self.size


def _move(opened: flat.Flat) -> Operand:
    return Operand("", opened.code, opened.itemsize, opened.itemsize)


def _form(kind: str, block: flat.Flat, rows: tuple[int, ...] | None, root: int = -1, parts: int = 1) -> Form | None:
    """The form of a call without counts, one of whose blocks is one of so many parts of that array."""
    if rows is not None:
        return None
    return Form(COLLECTIVES[kind].code, root, "", block.code, block.count // parts, block.itemsize)


_EMPTY = flat.source(np.empty(0, np.uint8))
_BARRIER = Arguments("barrier()", movement.barrier, (), _BYTES, None, _EMPTY, None, None)


def row_counts(counts, size: int, name: str) -> tuple[int, ...] | None:
    """``counts`` as a tuple with the number of rows of each rank; None stays None."""
    if counts is None:
        return None
    try:
        numbers = tuple(operator.index(n) for n in counts)
    except TypeError:
        raise TypeError(f"{name}={counts!r}: must be a sequence of integers, one per rank") from None
    if len(numbers) != size:
        raise ValueError(f"{name}={counts!r}: {len(numbers)} numbers for {size} ranks")
    if any(n < 0 for n in numbers):
        raise ValueError(f"{name}={counts!r}: must be numbers of rows, from 0 up")
    return numbers


def width_of(x, rows: int, name: str) -> int:
    """The elements of a row of ``x``, which must have this number of rows."""
    shape = flat.shape(x)
    if not shape:
        raise ValueError(f"{name} has no dimensions; its first one counts the rows")
    if shape[0] != rows:
        raise ValueError(f"{name} has {shape[0]} rows; the counts require {rows}")
    return math.prod(shape[1:])


def check_out(name: str, x: flat.Flat, other: flat.Flat, count: int) -> None:
    """Raise if an array does not have the other's dtype, or not this number of elements."""
    if x.code != other.code or x.itemsize != other.itemsize:
        raise TypeError(f"{name} has dtype {x.dtype}, the other array {other.dtype}; they must be equal")
    if x.count != count:
        raise ValueError(f"{name} has {x.count} elements; it must have {count}")


def digest(rows: Sequence[int] | None) -> str:
    """Counts as text, different for different ones."""
    return "" if rows is None else f", counts {zlib.crc32(repr(rows).encode()):08x}"
