"""What every collective must give, bit for bit, in plain NumPy; and `Case`, one call in every detail but the group.

    result(kind, inputs, rank, ...)     the output of a rank, from the inputs of all ranks
    reduce_model(operands, op)          a reduction, in rank order
    draw(number, seed, takes)           cases that together show every kind, dtype, operation, size, layout, ...
    check(driver, case)                 one rank's part of a case: arrays, the call, every byte compared

A *driver* (`support.drivers`) makes the call of a case in one of the ways that shmring has. Nothing here asks shmring
for a result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce

import numpy as np

from shmring.collectives.plan.kinds import ON_ARRAYS, Blocks
from shmring.dtypes import DTYPES, OPS, is_defined
from support import sampling
from support.inputs import LAYOUTS, NUMPY_DTYPES, cut, same_bits

# ---- results ---------------------------------------------------------------------------------------------------------


def result(
    kind: str,
    inputs: Sequence,
    rank: int,
    *,
    root: int = 0,
    op: str | Callable = "sum",
    counts: Sequence | None = None,
):
    """The output of ``rank``; None where the call leaves the output as it was.

    ``op`` is a name, or a function of a list of operands in rank order. ``counts`` are rows of the first axis for each
    rank; of all_to_all a list of them for each rank.
    """

    def fold(operands):
        return reduce_model(operands, op) if isinstance(op, str) else op(operands)

    match kind:
        case "all_reduce":
            return fold(inputs)
        case "reduce":
            return fold(inputs) if rank == root else None
        case "scan":
            return fold(inputs[: rank + 1])
        case "exscan":
            return fold(inputs[:rank]) if rank else None
        case "reduce_scatter":
            return fold([part(x, rank, counts) for x in inputs])
        case "broadcast":
            return inputs[root]
        case "gather" if rank != root:
            return None
        case "all_gather" | "gather":
            return np.stack(inputs) if counts is None else np.concatenate(inputs)
        case "scatter":
            return part(inputs[root], rank, counts)
        case "all_to_all" if counts is None:
            return np.stack([x[rank] for x in inputs])
        case "all_to_all":
            return np.concatenate([part(x, rank, sent) for x, sent in zip(inputs, counts, strict=True)])
    raise ValueError(kind)


def part(x, rank: int, counts: Sequence | None = None):
    """The block of ``rank`` in an array of blocks for all ranks: a view."""
    if counts is None:
        return x[rank]
    begin = sum(counts[:rank])
    return x[begin : begin + counts[rank]]


ARITHMETIC = ("sum", "prod", "avg")
NARROW = tuple(d.name for d in DTYPES if d.family == "f" and d.itemsize < 4)
LOGICAL = {"land": np.logical_and, "lor": np.logical_or}
FOLDS = {
    "sum": np.add,
    "prod": np.multiply,
    "avg": np.add,
    "min": lambda a, b: np.where((a <= b) | (a != a), a, b),
    "max": lambda a, b: np.where((a >= b) | (a != a), a, b),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    **LOGICAL,
    "absmax": lambda a, b: np.where((a >= b) | (a != a), a, b),
}
BOOL_FOLDS = FOLDS | dict.fromkeys(("sum", "max"), np.logical_or) | dict.fromkeys(("prod", "min"), np.logical_and)


def reduce_model(sources, op):
    """Fold ``sources``, arrays of one shape and dtype, in rank order with ``op`` (a name in ``shmring.dtypes.OPS``)."""
    dtype = sources[0].dtype
    if dtype.kind == "c" and op in ("sum", "avg"):
        return reduce_model([x.view(part_of(dtype)) for x in sources], op).view(dtype)
    with np.errstate(all="ignore"):
        acc, *others = (accumulator(x, op) for x in sources)
        for x in others:
            acc = fold_of(dtype, op)(acc, x)
        if op == "avg":
            acc = acc / acc.dtype.type(len(sources))
        return with_one_nan(acc.astype(dtype)) if op in ARITHMETIC else acc.astype(dtype)


def accumulator(x, op):
    """``x`` as it is accumulated: narrow floats as float32, truth as truth; any byte but 0 is a true bool."""
    if x.dtype.kind == "b":
        return x.view(np.uint8) != 0
    if op in LOGICAL:
        return x != 0
    if op == "absmax":
        return np.abs(x)
    return x.astype(np.float32 if x.dtype.name in NARROW and op in ARITHMETIC else x.dtype)


def fold_of(dtype, op):
    """One step of the fold."""
    if dtype.kind == "c" and op == "prod":  # NumPy's own may fuse multiplications and additions
        return lambda a, b: join(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real, dtype)
    return (BOOL_FOLDS if dtype.kind == "b" else FOLDS)[op]


def join(real, imag, dtype):
    """A complex array; ``real + 1j * imag`` would spread infinities and lose signs of zeros."""
    joined = np.empty(real.shape, dtype)
    joined.real, joined.imag = real, imag
    return joined


def with_one_nan(x):
    """NaNs that arithmetic made are the one positive quiet NaN, whatever the processor made of them."""
    if x.dtype.kind in "iub":
        return x
    parts = x.view(part_of(x.dtype)) if x.dtype.kind == "c" else x
    parts[parts != parts] = np.nan
    return x


def part_of(dtype):
    """The dtype of the real part."""
    return np.dtype(f"float{4 * dtype.itemsize}")


# ---- cases -----------------------------------------------------------------------------------------------------------


KINDS = {name: kind for name, kind in ON_ARRAYS.items() if kind.inputs != "no_rank"}


def affine(a, b):
    """A function of users: neither commutative nor associative."""
    return (2 * a - b).astype(a.dtype)


FUNCTIONS = {"affine": affine, "subtract": np.subtract}  # more operations, by name
# Elements or rows of a block: none, one, odd, at the ends of an eager's lines and of the eager, one round and many.
COUNTS = (0, 1, 2, 5, 6, 7, 13, 100, 511, 512, 513, 1025, 4099, 20_011, 65_537, 300_007)
LARGEST_NBYTES = 1 << 20  # of an array of blocks for each rank
# Rows for each rank, of a count.
PATTERNS: dict[str, Callable[[int, int], list[int]]] = {
    "equal": lambda count, size: [count] * size,
    "ascending": lambda count, size: [count * rank // max(1, size - 1) for rank in range(size)],
    "first": lambda count, size: [count * (rank == 0) for rank in range(size)],
    "holes": lambda count, size: [count * (rank % 2) for rank in range(size)],
    "steep": lambda count, size: [max(1, count >> 3 * rank) for rank in range(size)],
}


@dataclass(frozen=True)
class Case:
    """One collective. ``root`` is taken modulo the size of the group.

    The block of a rank has ``count`` rows of shape ``row``. ``counts`` is the pattern of rows for each rank: a name in
    `PATTERNS`, or the numbers themselves; empty: all have one block of equal size. The output is given (``place`` is
    "out"), made by the call ("new"), or shares memory with the input ("in").
    """

    kind: str
    count: int = 5
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    counts: str | tuple = ""
    row: tuple[int, ...] = ()
    place: str = "out"
    layout: str = "plain"
    fill: str = "usual"
    salt: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the arrays are contiguous and aligned."""
        return self.layout == "plain"

    @property
    def is_exact(self) -> bool:
        """Whether the result has the same bits in any order, or is made in rank order."""
        is_float = NUMPY_DTYPES[self.dtype].kind not in "iub"
        rounds = is_float and (self.fill != "small" or self.dtype.startswith("float8"))
        return not (KINDS[self.kind].takes_op and rounds)

    def counts_of(self, size: int, rank: int) -> list[int] | None:
        """The rows for (all_to_all: to) each rank, as ``rank`` passes them."""
        if not self.counts:
            return None
        if not isinstance(self.counts, str):
            return list(self.counts[rank] if self.kind == "all_to_all" else self.counts)
        rows = PATTERNS[self.counts](self.count, size)
        if self.kind != "all_to_all":
            return rows
        step = 1 if self.place == "in" else 2  # in place, two ranks exchange as many rows as they get
        return [rows[(rank + step * other) % size] for other in range(size)]

    def all_counts(self, size: int):
        """``counts`` of `result`."""
        if self.kind == "all_to_all" and self.counts:
            return [self.counts_of(size, rank) for rank in range(size)]
        return self.counts_of(size, 0)

    def shape_in(self, size: int, rank: int) -> tuple[int, ...]:
        """The shape of a rank's input."""
        return self._shape(KINDS[self.kind].blocks_in, size, rank, self.counts_of(size, rank))

    def shape_out(self, size: int, rank: int) -> tuple[int, ...]:
        """The shape of a rank's output."""
        counts = self.counts_of(size, rank)
        if self.counts and self.kind == "all_to_all":
            counts = [sent[rank] for sent in self.all_counts(size)]
        return self._shape(KINDS[self.kind].blocks_out, size, rank, counts)

    def _shape(self, blocks: Blocks, size: int, rank: int, counts) -> tuple[int, ...]:
        if counts is not None:
            return (sum(counts) if blocks else counts[rank], *self.row)
        return (blocks.among(size), self.count, *self.row) if blocks else (self.count, *self.row)

    def inputs(self, size: int) -> list[np.ndarray]:
        """The inputs of all ranks."""
        return [cut(self.dtype, self.shape_in(size, rank), rank, self, fill=self.fill) for rank in range(size)]

    def keywords(self, size: int, rank: int) -> dict:
        """What the method of a communicator takes beside the arrays."""
        kind, found = KINDS[self.kind], {}
        if kind.takes_op:
            found["op"] = FUNCTIONS.get(self.op, self.op)
        if kind.has_root:
            found["root"] = self.root % size
        if self.counts:
            found["counts"] = self.counts_of(size, rank)
            if self.kind == "all_to_all" and (self.place == "in" or self.salt % 2):  # else the receivers do not know
                found["out_counts"] = [sent[rank] for sent in self.all_counts(size)]
        return found

    def expected(self, inputs: Sequence, rank: int):
        """`result` for this case."""
        size, op = len(inputs), self.op
        if op in FUNCTIONS:
            op = partial(reduce, FUNCTIONS[op])
        return result(self.kind, inputs, rank, root=self.root % size, op=op, counts=self.all_counts(size))

    def has_operation(self) -> bool:
        """Whether the operation is defined, here."""
        if self.op in FUNCTIONS:
            return NUMPY_DTYPES[self.dtype].kind in "iufc" and not self.counts and self.fill == "usual"
        return is_defined(self.op if KINDS[self.kind].takes_op else "land", self.dtype)

    def may_share_rows(self) -> bool:
        """Whether one argument may be a block of the other though that is not contiguous."""
        kind = KINDS[self.kind]
        return not self.counts and (kind.blocks_in or not kind.blocks_out)

    def is_sensible(self) -> bool:
        """Whether there is such a call, and it is not too large for a test."""
        kind = KINDS[self.kind]
        dtype = NUMPY_DTYPES[self.dtype]
        nbytes = self.count * int(np.prod(self.row, dtype=np.int64)) * dtype.itemsize
        return (
            self.has_operation()
            and nbytes <= (LARGEST_NBYTES // 4 if kind.has_blocks else 2 * LARGEST_NBYTES)
            and (kind.has_root or not self.root)
            and (kind.takes_counts or not self.counts)
            and (kind.takes_op or self.op == "sum")
            and (self.place != "new" or kind.has_blocks)
            and (self.place == "in" or self.kind != "broadcast")
            and (self.is_plain or self.place != "in" or self.may_share_rows())
            and (self.fill == "usual" or (dtype.kind not in "iub" and self.op not in LOGICAL))
        )


AXES = {
    "count": COUNTS,
    "dtype": tuple(NUMPY_DTYPES),
    "op": (*OPS, *FUNCTIONS),
    "root": (0, 1, -1),
    "counts": ("", "", *PATTERNS),
    "row": ((), (), (3,), (2, 2)),
    "place": ("in", "out", "new"),
    "layout": ("plain", "plain", "plain", *LAYOUTS),
    "fill": ("usual", "usual", "special"),
}


def axes_of(kind: str) -> dict[str, tuple]:
    """The values of each field that cases of a kind may have."""
    has = KINDS[kind]
    left_out = {"op": has.takes_op, "root": has.has_root, "counts": has.takes_counts}
    return {name: values if left_out.get(name, True) else values[:1] for name, values in AXES.items()}


def draw(number: int, seed, takes: Callable[[Case], bool] = Case.is_sensible, **fixed) -> list[Case]:
    """About so many cases, equally many of each kind, that show many values of `AXES`; ``fixed`` gives some values."""
    rng = random.Random(f"{seed} {sorted(fixed)}")
    found = {}
    for kind in [fixed["kind"]] if "kind" in fixed else KINDS:
        axes, cases, tries = axes_of(kind), [], 0
        while len(cases) < max(number // 2, 8) and (tries := tries + 1) < 20 * number:
            values = {name: rng.choice(values) for name, values in axes.items() if name not in fixed}
            case = Case(**{"kind": kind, **values, **fixed}, salt=rng.randrange(1000))
            if takes(case) and case.is_sensible():
                cases.append(case)
        if cases:
            found[kind] = cases
    drawn = []
    for cases in found.values():
        shown = [{(field.name, getattr(case, field.name)) for field in fields(case)} for case in cases]
        drawn += sampling.draw(cases, shown, -(-number // len(found)), rng)
    rng.shuffle(drawn)
    return drawn


# ---- one rank's part -------------------------------------------------------------------------------------------------


def arrays(case: Case, inputs: Sequence, rank: int, put: Callable):
    """The arguments ``x`` and ``out`` of a rank; ``put(x, layout)`` gives a copy of an array in memory."""
    size, kind = len(inputs), KINDS[case.kind]
    is_root = not kind.has_root or rank == case.root % size
    counts = case.counts_of(size, rank)

    def blank():
        return put(cut(case.dtype, case.shape_out(size, rank), rank, case, "out"), case.layout)

    def source():
        return put(inputs[rank], case.layout)

    if case.kind == "broadcast" or (case.place == "in" and not kind.has_blocks):
        return source(), None
    if case.kind == "scatter" and not is_root:
        return None, blank()
    if case.kind == "gather" and not is_root:
        return source(), None
    if case.place == "new":
        return source(), None
    if case.place == "out":
        return source(), blank()
    if kind.blocks_in == kind.blocks_out:
        x = source()
        return x, x
    if kind.blocks_in:
        x = source()
        return x, part(x, rank, counts)
    out = blank()
    part(out, rank, counts)[...] = inputs[rank]
    return part(out, rank, counts), out


def check(driver, case: Case) -> None:
    """Make the call of a case by a driver on this rank; compare every byte of what it has written, or must not."""
    for _ in attempt(driver, case):
        pass


def attempt(driver, case: Case) -> Iterator[None]:
    """`check` in two steps: up to the ``yield`` nothing has been called."""
    size, rank = driver.size, driver.rank
    inputs = case.inputs(size)
    x, out = arrays(case, inputs, rank, driver.put)
    before = [None if a is None else np.array(a) for a in (x, out)]
    wanted = case.expected(inputs, rank)
    yield
    found = driver.call(case, x, out, case.keywords(size, rank))
    what = f"{case} by {driver.name} on rank {rank} of {size}"
    if wanted is None and case.kind != "exscan":
        assert found is None, f"{what}: {found!r} instead of None"
    else:
        if wanted is None:
            wanted = before[0] if out is None else before[1]
        got = np.asarray(found)
        assert same_bits(got, wanted), f"{what}: {differences(got, wanted)}"
    if driver.is_functional:
        return
    target = x if out is None and (case.place == "in" or case.kind == "broadcast") else out
    assert found is None or target is None or found is target, f"{what} returned another array"
    if found is not None and case.place == "in" and case.kind in ("reduce_scatter", "scatter") and x is not None:
        part(before[0], rank, case.counts_of(size, rank))[...] = wanted
        assert same_bits(np.array(x), before[0]), f"{what} wrote beside its block"
    for array, old in ((x, before[0]), (out, before[1])):
        if array is not None and (found is None or (array is x and case.place != "in")):
            now = np.array(array)
            assert same_bits(now, old), f"{what} wrote where it must not: {differences(now, old)}"


def differences(a, b) -> str:
    """Where two arrays differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    bytes_of = [each.view(np.uint8).reshape(each.size, -1) for each in (a, b)]
    unlike = np.flatnonzero((bytes_of[0] != bytes_of[1]).any(1))
    first = unlike[0]
    return f"{len(unlike)} of {a.size} elements differ, from {first} to {unlike[-1]}: {a[first]} instead of {b[first]}"
