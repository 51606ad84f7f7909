"""The result of every collective in plain NumPy, and the check of plans against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shmring.plan.limits import DEFAULT_LIMITS, Limits
from shmring.plan.steps import Plan
from support.plans.simulate import Bytes, Memory, RankBuffers, Schedule, Simulator, fold, lowest


@dataclass(frozen=True)
class CollectiveCall:
    """The arguments of one collective; ``nbytes`` and ``wide`` as in `choose`."""

    kind: str
    size: int
    nbytes: int | Sequence
    itemsize: int = 8
    root: int = 0
    in_place: bool = False
    wide: int = 1

    def blocks(self) -> np.ndarray:
        """The number of bytes from rank i for rank j, of the kinds that move blocks."""
        n = np.asarray(self.nbytes, dtype=np.int64)
        if n.ndim < 2:
            n = np.broadcast_to(n[:, None] if n.ndim else n, (self.size, self.size))
        return n

    def in_nbytes(self, rank: int) -> int:
        """The size of the input on a rank."""
        match self.kind:
            case "all_reduce" | "reduce" | "scan" | "exscan":
                return int(self.nbytes)  # type: ignore[arg-type]
            case "broadcast":
                return int(self.nbytes) if rank == self.root else 0  # type: ignore[arg-type]
            case "all_to_all":
                return int(self.blocks()[rank].sum())
            case "reduce_scatter":
                return int(self.blocks()[:, 0].sum())
            case "all_gather" | "gather":
                return int(self.blocks()[rank, 0])
            case "scatter":
                return int(self.blocks()[:, 0].sum()) if rank == self.root else 0
        raise ValueError(self.kind)

    def out_nbytes(self, rank: int) -> int:
        """The size of the output on a rank."""
        match self.kind:
            case "all_reduce" | "scan" | "exscan" | "broadcast":
                return int(self.nbytes)  # type: ignore[arg-type]
            case "reduce":
                return int(self.nbytes) if rank == self.root else 0  # type: ignore[arg-type]
            case "reduce_scatter" | "scatter":
                return int(self.blocks()[rank, 0])
            case "all_to_all":
                return int(self.blocks()[:, rank].sum())
            case "all_gather":
                return int(self.blocks()[:, 0].sum())
            case "gather":
                return int(self.blocks()[:, 0].sum()) if rank == self.root else 0
        raise ValueError(self.kind)

    def folded(self, operands: Sequence[Bytes]) -> Bytes:
        """The fold of all of them, in rank order."""
        return fold(operands, self.itemsize, wide=self.wide)

    def results(self, inputs: Sequence[Bytes]) -> list[Bytes | None]:
        """The output of every rank; None where the output is not touched."""
        ranks = range(self.size)
        match self.kind:
            case "all_reduce":
                return [self.folded(inputs)] * self.size
            case "reduce":
                return [self.folded(inputs) if r == self.root else None for r in ranks]
            case "scan":
                return [self.folded(inputs[: r + 1]) for r in ranks]
            case "exscan":
                return [self.folded(inputs[:r]) if r else None for r in ranks]
            case "reduce_scatter":
                ends = np.cumsum(self.blocks()[:, 0])[:-1]
                shares = [np.split(x, ends) for x in inputs]
                return [self.folded([share[r] for share in shares]) for r in ranks]
            case "broadcast":
                return [inputs[self.root] if r != self.root else None for r in ranks]
            case "all_gather":
                return [np.concatenate(inputs)] * self.size
            case "gather":
                return [np.concatenate(inputs) if r == self.root else None for r in ranks]
            case "scatter":
                ends = np.cumsum(self.blocks()[:, 0])[:-1]
                return list(np.split(inputs[self.root], ends))
            case "all_to_all":
                rows = [np.split(x, np.cumsum(n)[:-1]) for x, n in zip(inputs, self.blocks(), strict=True)]
                return [np.concatenate([row[r] for row in rows]) for r in ranks]
        raise ValueError(self.kind)


def verify(
    calls: Sequence[CollectiveCall],
    planner: Callable[[CollectiveCall, int], Plan],
    limits: Limits = DEFAULT_LIMITS,
    schedule: Schedule = lowest,
    seed: int = 0,
) -> None:
    """Run ``planner(call, rank)`` of all ranks, one collective after the other; compare all bytes with the reference.

    Raises AssertionError: `Deadlock`, `Misuse`, `Race`, or a plain one for a wrong result.
    """
    rng = np.random.default_rng(seed)
    prepared = [prepare(call, [planner(call, r) for r in range(call.size)], rng) for call in calls]
    simulator = Simulator([(plans, buffers) for plans, buffers, _ in prepared], limits, calls[0].itemsize, seed)
    simulator.run(schedule)
    for call, (_, buffers, expected) in zip(calls, prepared, strict=True):
        for rank, (own, memories) in enumerate(zip(buffers, expected, strict=True)):
            for memory, wanted in zip((own.in_memory, own.out_memory), memories, strict=True):
                wrong = np.flatnonzero(memory.data != wanted)
                assert not len(wrong), f"{call}: {memory.name} of rank {rank} differs from byte {wrong[0]} on"


def prepare(
    call: CollectiveCall, plans: Sequence[Plan], rng: np.random.Generator
) -> tuple[Sequence[Plan], list[RankBuffers], list[tuple[Bytes, Bytes]]]:
    """Buffers of random bytes for every rank, and the expected contents after the call."""
    buffers = []
    for r, plan in enumerate(plans):
        n_in, n_out = call.in_nbytes(r), call.out_nbytes(r)
        if call.in_place and plan.in_place is not None:
            in_at, out_at = max(plan.in_place, 0), max(-plan.in_place, 0)
            n = max(in_at + n_in, out_at + n_out)
            both = Memory("the buffer", rng.integers(0, 256, n, np.uint8), call.size)
            buffers.append(RankBuffers(both, in_at, both, out_at))
        else:
            in_memory = Memory("the input", rng.integers(0, 256, n_in, np.uint8), call.size)
            out_memory = Memory("the output", rng.integers(0, 256, n_out, np.uint8), call.size)
            buffers.append(RankBuffers(in_memory, 0, out_memory, 0))
    inputs = [b.in_memory.data[b.in_at :][: call.in_nbytes(r)].copy() for r, b in enumerate(buffers)]
    expected = []
    for own, result in zip(buffers, call.results(inputs), strict=True):
        out = own.out_memory.data.copy()
        if result is not None:
            out[own.out_at :][: len(result)] = result
        # In place the two are one memory; out of place the input must stay as it is.
        expected.append((out if own.in_memory is own.out_memory else own.in_memory.data.copy(), out))
    return plans, buffers, expected
