"""The test problem of one row on one rank: arrays, inputs, and the expected result.

Values are small integers, exact in every type, also when summed over all ranks. They repeat with a prime period, so
that swapped or missing parts are detected.
"""

from __future__ import annotations

import numpy as np

PERIOD = 4093

# Elements of x and y: the whole problem, the share of one rank, or none.
WHOLE, SHARE, NONE = "whole", "share", "none"
SHAPES = {
    "all_reduce": (WHOLE, NONE),
    "reduce": (WHOLE, NONE),
    "broadcast": (WHOLE, NONE),
    "all_gather": (SHARE, WHOLE),
    "gather": (SHARE, WHOLE),
    "reduce_scatter": (WHOLE, SHARE),
    "scatter": (WHOLE, SHARE),
    "all_to_all": (WHOLE, WHOLE),
    "ping_pong": (WHOLE, WHOLE),
    "barrier": (NONE, NONE),
    # Of channels, between two ranks: the first sends.
    "message": (WHOLE, WHOLE),
    "array": (WHOLE, WHOLE),
    "records": (WHOLE, WHOLE),
    "round_trip": (WHOLE, WHOLE),
    "think": (WHOLE, WHOLE),
    "idle": (WHOLE, WHOLE),
    "death": (WHOLE, WHOLE),
    "copy": (WHOLE, WHOLE),  # for the ceiling only
}
ONE_WAY = ("message", "array", "records")
SPLIT = {op for op, shapes in SHAPES.items() if SHARE in shapes} | {"all_to_all"}


class Problem:
    """Arrays ``x`` and ``y`` (made by ``empty``) for one collective on one rank; root is rank 0."""

    def __init__(self, op: str, dtype: str, nbytes: int, rank: int, size: int, empty) -> None:
        self.op, self.rank, self.size = op, rank, size
        self.number = Number(dtype)
        count = max(1, nbytes // self.number.itemsize)
        if op in SPLIT:
            count = max(1, count // size) * size
        self.count = count
        self.nbytes = 0 if op == "barrier" else count * self.number.itemsize
        counts = {WHOLE: count, SHARE: count // size, NONE: 0}
        self.x, self.y = (empty(counts[shape], self.number.storage) for shape in SHAPES[op])
        partner = {"ping_pong": rank ^ 1, "copy": rank}.get(op, size)
        self.partner = partner if partner < size else None

    @property
    def rewrites(self) -> bool:
        """Whether this rank has an input in this collective."""
        return self.x.size > 0 and (self.op not in ("broadcast", "scatter") or self.rank == 0)

    def fill(self, seed: int) -> None:
        """Write the inputs, and poison the outputs."""
        rng = np.random.default_rng((seed, self.size))
        self._base = rng.integers(0, min(8, max(2, 100 // self.size)), (self.size, PERIOD))
        self.x[...] = self._input()
        for poisoned in (self.y, self.x[:0] if self.rewrites else self.x):
            poisoned.view(np.uint8)[...] = 0xA5

    def is_right(self) -> bool:
        """Whether the result of the call is right, to the bit."""
        expected = self._expected()
        return expected is None or np.array_equal(*expected)

    def settle(self) -> None:
        """Fill the arrays with zeros, so that repeated sums in place do not grow."""
        self.x.view(np.uint8)[...] = 0
        self.y.view(np.uint8)[...] = 0

    def _share(self) -> slice:
        part = self.count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def _vector(self, period: np.ndarray) -> np.ndarray:
        return np.resize(self.number.encode(period), self.count)

    def _input(self) -> np.ndarray:
        if self.op == "barrier":
            return self.x
        if self.op in ("all_gather", "gather"):
            return self._vector(self._base[0])[self._share()]
        return self._vector(self._base[self.rank])

    def _expected(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The expected result, and the array that has it; None where this rank gets nothing."""
        op, base = self.op, self._base
        if (
            op == "barrier"
            or (op in ("reduce", "gather") and self.rank)
            or (op == "ping_pong" and self.partner is None)
            or (op in ONE_WAY and not self.rank)
            or op in ("round_trip", "think", "idle", "death")
        ):
            return None
        if op in ("all_reduce", "reduce"):
            return self._vector(base.sum(axis=0)), self.x
        if op == "broadcast":
            return self._vector(base[0]), self.x
        if op in ("all_gather", "gather", *ONE_WAY):
            return self._vector(base[0]), self.y
        if op == "scatter":
            return self._vector(base[0])[self._share()], self.y
        if op == "reduce_scatter":
            return self._vector(base.sum(axis=0))[self._share()], self.y
        if op == "all_to_all":
            return np.concatenate([self._vector(row)[self._share()] for row in base]), self.y
        return self._vector(base[self.partner]), self.y


class Number:
    """An element type. bfloat16, which NumPy has not, is stored as the 16 bits that it is."""

    def __init__(self, dtype: str) -> None:
        self.name = dtype
        self.storage = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        self.itemsize = self.storage.itemsize

    def encode(self, integers: np.ndarray) -> np.ndarray:
        """Small integers in this type."""
        if self.name != "bfloat16":
            return integers.astype(self.storage)
        return (integers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
