"""Collectives of bytes with the fold of the simulator, and the check of plans against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shmring.collectives.plan.kinds import Blocks
from shmring.collectives.plan.limits import DEFAULT_LIMITS, Limits
from shmring.collectives.plan.steps import Plan
from support.oracle import KINDS, result
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
        if KINDS[self.kind].inputs == "root" and rank != self.root:
            return 0
        return self._nbytes(KINDS[self.kind].blocks_in, rank, 1)

    def out_nbytes(self, rank: int) -> int:
        """The size of the output on a rank."""
        if KINDS[self.kind].outputs == "root" and rank != self.root:
            return 0
        return self._nbytes(KINDS[self.kind].blocks_out, rank, 0)

    def _nbytes(self, blocks: Blocks, rank: int, axis: int) -> int:
        if not KINDS[self.kind].takes_counts:
            return int(self.nbytes) * blocks.among(self.size)  # type: ignore[arg-type]
        if self.kind == "all_to_all":
            return int(self.blocks().sum(axis)[rank])
        counts = self.blocks()[:, 0]
        return int(counts.sum() if blocks else counts[rank])

    def folded(self, operands: Sequence[Bytes]) -> Bytes:
        """The fold of all of them, in rank order."""
        return fold(operands, self.itemsize, wide=self.wide)

    def results(self, inputs: Sequence[Bytes]) -> list[Bytes | None]:
        """The output of every rank; None where the output is not touched."""
        counts = self.blocks() if self.kind == "all_to_all" else self.blocks()[:, 0]
        kind = KINDS[self.kind]
        if kind.blocks_in and not kind.takes_counts:  # the counts of the others tell where a block ends
            inputs = [x.reshape(kind.blocks_in.among(self.size), -1) for x in inputs]
        found = [
            result(self.kind, inputs, rank, root=self.root, op=self.folded, counts=counts) for rank in range(self.size)
        ]
        if self.kind == "broadcast":
            found[self.root] = None
        return [x if x is None else x.reshape(-1) for x in found]


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
    for own, wanted in zip(buffers, call.results(inputs), strict=True):
        out = own.out_memory.data.copy()
        if wanted is not None:
            out[own.out_at :][: len(wanted)] = wanted
        # In place the two are one memory; out of place the input must stay as it is.
        expected.append((out if own.in_memory is own.out_memory else own.in_memory.data.copy(), out))
    return plans, buffers, expected
