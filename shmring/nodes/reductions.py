"""The collectives over several nodes that reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmring.arrays.dtype_codec import dtype_with_code
from shmring.dtypes import DTYPES
from shmring.engine.kinds import COLLECTIVES
from shmring.nodes import flat
from shmring.nodes.calls import Arguments, FunctionCall
from shmring.nodes.form import Form, keeps_bits
from shmring.nodes.movement import NodesMovement, check_out, digest, row_counts, width_of
from shmring.nodes.operand import Operand
from shmring.nodes.plan import reduction
from shmring.nodes.plan.cost import choose

MOST_DESCRIPTIONS = 1024
_ANY_ORDER = ("band", "bor", "bxor", "land", "lor")


class NodesReductions(NodesMovement):
    """The reductions of a communicator over several nodes, as `shmring.Communicator` has them."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._descriptions: dict[tuple, tuple[str, Callable, tuple, Operand, Form | None]] = {}

    def all_reduce(self, x, out=None, op="sum", *, timeout=..., async_op=False):
        """As `shmring.Communicator.all_reduce`."""
        if self._repeats.make(self, "all_reduce", op, x, x if out is None else out, timeout, async_op):
            return x if out is None else out
        return self._reduction("all_reduce", x, out, op, timeout, async_op)

    def reduce(self, x, out=None, op="sum", root=0, *, timeout=..., async_op=False):
        """As `shmring.Communicator.reduce`."""
        return self._reduction("reduce", x, out, op, timeout, async_op, root=self._checked_rank(root, "root"))

    def scan(self, x, out=None, op="sum", *, timeout=..., async_op=False):
        """As `shmring.Communicator.scan`."""
        return self._reduction("scan", x, out, op, timeout, async_op)

    def exscan(self, x, out=None, op="sum", *, timeout=..., async_op=False):
        """As `shmring.Communicator.exscan`."""
        return self._reduction("exscan", x, out, op, timeout, async_op)

    def reduce_scatter(self, x, out=None, op="sum", *, counts=None, timeout=..., async_op=False):
        """As `shmring.Communicator.reduce_scatter`."""
        is_whole = out is not None and counts is None
        if is_whole and self._repeats.make(self, "reduce_scatter", op, x, out, timeout, async_op):
            return out
        if callable(op):
            if counts is not None:
                raise TypeError("a callable op cannot reduce with counts: pass an op by name, or no counts")
            return self._by_function("reduce_scatter", x, out, op, -1, timeout, async_op)
        rows = row_counts(counts, self.size, "counts")
        if out is None:
            out = flat.empty_like(x, self._part_shape(x, rows))

        def opened() -> Arguments:
            source, target = flat.source(x), flat.target(out)
            name = flat.checked_op(op, source.code)
            width = self._width(x, rows, source.count)
            sizes = tuple([width] * self.size if rows is None else (n * width for n in rows))
            check_out("out", target, source, sizes[self.rank])
            place = sum(sizes[: self.rank]) * source.itemsize
            flat.check_overlap(target, source, place)
            algorithm, merged = self._algorithm("reduce_scatter", source, name)
            key = (sizes, source.itemsize, algorithm, merged)
            form = None
            if rows is None:
                form = _form("reduce_scatter", name, source, merged, parts=self.size)
            what = f"reduce_scatter({name}, {source.dtype} x {source.count}{digest(rows)})"
            operand = _operand(name, source)
            return Arguments(what, reduction.reduce_scatter, key, operand, form, source, target, out, -place)

        repeat = ("reduce_scatter", op) if rows is None else None
        return self._collective(f"reduce_scatter({op})", opened, timeout, async_op, repeat)

    def all_reduce_many(self, arrays, op="sum", *, timeout=..., async_op=False):
        """As `shmring.Communicator.all_reduce_many`; arrays of one dtype share a call."""
        arrays = list(arrays)
        for x in arrays:
            code = flat.target(x).code
            if not callable(op):
                flat.checked_op(op, code)

        def reduce_all() -> list:
            together: dict[int, list] = {}
            for x in arrays:
                target = flat.target(x)
                together.setdefault(target.code, []).append((x, target))
            for same in together.values():
                self._reduce_block([x for x, _ in same], [target for _, target in same], op, timeout)
            return arrays

        return self._dispatch(FunctionCall(f"all_reduce_many({op})", reduce_all), async_op)

    def _reduce_block(self, arrays: list, targets: list[flat.Flat], op, timeout) -> None:
        if len(arrays) == 1 or callable(op):
            for x in arrays:
                self.all_reduce(x, op=op, timeout=timeout)
            return
        block = flat.empty_like(arrays[0], (sum(target.count for target in targets),))
        whole, start = flat.target(block), 0
        for target in targets:
            whole.data[start : start + target.data.nbytes] = target.data
            start += target.data.nbytes
        self.all_reduce(block, op=op, timeout=timeout)
        start = 0
        for target in targets:
            target.data[:] = whole.data[start : start + target.data.nbytes]
            start += target.data.nbytes
            target.copy_back()

    # ---- what they share ----

    def _reduction(self, kind: str, x, out, op, timeout, async_op, root: int = -1) -> Any:
        into = x if out is None else out
        if callable(op):
            return self._by_function(kind, x, out, op, root, timeout, async_op)
        has_out = kind != "reduce" or self.rank == root

        def opened() -> Arguments:
            target = flat.target(into) if has_out else None
            source = target if into is x and target is not None else flat.source(x)
            described = self._described(kind, op, source, root)
            if target is not None and target is not source:
                check_out("out", target, source, source.count)
                flat.check_overlap(target, source, 0)
            return Arguments(*described, source, target, into if has_out else None)

        repeat = (kind, op) if kind == "all_reduce" else None
        return self._collective(f"{kind}({op})", opened, timeout, async_op, repeat)

    def _described(
        self, kind: str, op: str, source: flat.Flat, root: int
    ) -> tuple[str, Callable, tuple, Operand, Form | None]:
        """The first fields of `Arguments`, which depend on these only."""
        given = (kind, op, source.code, source.itemsize, source.count, root)
        found = self._descriptions.get(given)
        if found is not None:
            return found
        name = flat.checked_op(op, source.code)
        at = f", root {root}" if root >= 0 else ""
        what = f"{kind}({name}, {source.dtype} x {source.count}{at})"
        key: tuple = (source.count, source.itemsize)
        if kind in ("scan", "exscan"):
            found = what, reduction.scan, (*key, kind == "exscan"), _operand(name, source), None
        else:
            algorithm, merged = self._algorithm(kind, source, name)
            build = reduction.reduce if kind == "reduce" else reduction.all_reduce
            key = (*key, algorithm, root, merged) if kind == "reduce" else (*key, algorithm, merged)
            found = what, build, key, _operand(name, source), _form(kind, name, source, merged, root)
        if len(self._descriptions) >= MOST_DESCRIPTIONS:
            self._descriptions.clear()
        self._descriptions[given] = found
        return found

    def _algorithm(self, kind: str, source: flat.Flat, op: str) -> tuple[str, bool]:
        """The algorithm, and whether nodes may add their own ranks first: always where the order does not matter."""
        merged = not self.reproducible or op in _ANY_ORDER or DTYPES[source.code].family in "iub"
        return choose(kind, self.layout, source.count * source.itemsize, merged), merged

    def _part_shape(self, x, rows: Sequence[int] | None) -> tuple[int, ...]:
        shape = flat.shape(x)
        if rows is not None:
            return (rows[self.rank], *shape[1:])
        if not shape or shape[0] != self.size:
            raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {self.size}")
        return shape[1:]

    def _width(self, x, rows: Sequence[int] | None, count: int) -> int:
        """Elements of one row, or of one rank's part if there are no rows."""
        if rows is not None:
            return width_of(x, sum(rows), "x")
        if count % self.size:
            raise ValueError(f"x has {count} elements; they must be one part for each of {self.size} ranks")
        return count // self.size

    # ---- functions of the program ----

    def _by_function(self, kind: str, x, out, op: Callable, root: int, timeout, async_op) -> Any:
        """Gather the arrays, and reduce them in rank order by a function of Python."""
        source = flat.source(x)
        if out is None and kind == "reduce_scatter":
            out = flat.empty_like(x, self._part_shape(x, None))
        into = x if out is None else out
        has_out = kind != "reduce" or self.rank == root
        if has_out:
            count = source.count // self.size if kind == "reduce_scatter" else source.count
            check_out("out", flat.target(into), source, count)
        return self._dispatch(
            FunctionCall(f"{kind}({getattr(op, '__name__', op)})",
                         lambda: self._reduce_rows(kind, x, into if has_out else None, op, root, timeout)),
            async_op,
        )  # fmt: skip

    def _reduce_rows(self, kind: str, x, out, op: Callable, root: int, timeout) -> Any:
        source = flat.source(x)
        own = source.data.view(dtype_with_code(source.code))
        if kind == "reduce_scatter":
            rows = self.all_to_all(own.reshape(self.size, -1), timeout=timeout)
        elif kind == "reduce":
            rows = self.gather(own, root=root, timeout=timeout)
        else:
            rows = self.all_gather(own, timeout=timeout)
        if out is None:
            return None
        last = {"scan": self.rank + 1, "exscan": self.rank}.get(kind, self.size)
        if last:
            total = rows[0]
            for row in rows[1:last]:
                total = op(total, row)
            target = flat.target(out)
            target.data[:] = np.ascontiguousarray(total, own.dtype).reshape(-1).view(np.uint8)
            target.copy_back()
        return out


def _operand(op: str, source: flat.Flat) -> Operand:
    return Operand(op, source.code, source.itemsize, flat.partial_itemsize(op, source.code))


def _form(kind: str, op: str, x: flat.Flat, merged: bool, root: int = -1, parts: int = 1) -> Form | None:
    """The form of a reduction whose result has one of so many parts of ``x``, if another library's has its bits."""
    if not keeps_bits(op, x.code, merged):
        return None
    return Form(COLLECTIVES[kind].code, root, op, x.code, x.count // parts, x.itemsize)
