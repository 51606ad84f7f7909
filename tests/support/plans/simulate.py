"""Simulator of plans: executes the steps of all ranks over NumPy buffers in a chosen order, and checks every step.

Errors:

- `Deadlock`: no rank can take its next step.
- `Misuse`: a slot written or a round published without claim, or after publish; another rank's bytes replaced that it
  has not written, or after they were released; a round awaited that is empty or
  released; a slot read that holds another round, or bytes never written, or that was released; rounds out of order; the
  last round released before the end; buffers out of bounds; a private plan that touches a peer's buffer; operands that
  overlap other than exactly.
- `Race`: two ranks touch the same byte, one of them storing, and no publish/await or release/claim pair orders them.
  Clocks are vector clocks (Fidge 1988, Mattern 1989), checked per byte as in FastTrack (Flanagan and Freund 2009). Only
  the order that the plan guarantees counts, not the order of this run, so any schedule finds a race.

Counters only grow, so a rank that can take its next step stays able to. Hence deadlocks, and the results of plans
without races, do not depend on the schedule either: one schedule is proof, and more of them test the simulator.

The fold is neither associative nor commutative: ``mix((x0 * A + x1) * A + x2)``, where ``mix`` stands for the single
rounding of 16-bit floats. A result is right only if each operand was folded once, in rank order, by one Reduce or by
several of which only the last closes the fold, and if no prefix lost its upper half.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmring.collectives.plan.limits import Limits
from shmring.collectives.plan.steps import (
    ALL,
    IN,
    OUT,
    SLOT,
    Await,
    AwaitRelease,
    Claim,
    Copy,
    Operand,
    Plan,
    Publish,
    Reduce,
    Release,
    Step,
)

Bytes = NDArray[np.uint8]
Clock = NDArray[np.int64]
# Picks the next rank from the ready ones, which are in ascending order.
Schedule = Callable[[Sequence[int]], int]
# A plan, the buffers of all ranks, the collective's first round, the step (None: the end of the plan), the iteration.
Action = tuple[Plan, "Sequence[RankBuffers]", int, Step | None, int]


class Deadlock(AssertionError):
    """No rank can take its next step, and not all ranks have finished."""


class Misuse(AssertionError):
    """A plan breaks a rule of rounds, slots or buffers."""


class Race(AssertionError):
    """Two ranks touch the same bytes, at least one stores, and nothing orders them."""


def fold(operands: Sequence[Bytes], itemsize: int, *, opens: bool = True, closes: bool = True, wide: int = 1) -> Bytes:
    """The result of a Reduce step in the simulator."""
    word = np.dtype(f"u{min(itemsize, 8)}")
    room = np.dtype(f"u{wide * word.itemsize}")
    acc = operands[0].view(word).astype(room) if opens else operands[0].view(room)
    factor = room.type(0x9E3779B97F4A7C15 & int(np.iinfo(room).max))
    for x in operands[1:]:
        acc = acc * factor + x.view(word)
    if not closes:
        return acc.view(np.uint8)
    half = room.type(4 * room.itemsize)
    return ((acc ^ (acc >> half)) * factor ^ half).astype(word).view(np.uint8)


class Memory:
    """Bytes, with the last writer of each, its clock, and the clock of every rank at its last load."""

    def __init__(self, name: str, data: Bytes, size: int) -> None:
        self.name, self.data = name, data
        self.writer = np.zeros(len(data), np.int64)
        self.written_at = np.zeros(len(data), np.int64)
        self.read_at = np.zeros((size, len(data)), np.int64)

    def load(self, lo: int, hi: int, rank: int, clock: Clock) -> Bytes:
        """Their value, after a check that the stores happened before this load."""
        self._check(lo, hi, rank, clock, "loads what")
        self.read_at[rank, lo:hi] = clock[rank]
        return self.data[lo:hi].copy()

    def store(self, lo: int, hi: int, rank: int, clock: Clock, value: Bytes | None) -> None:
        """Store ``value`` (None: record a store only), after a check that earlier loads and stores happened before."""
        self._check(lo, hi, rank, clock, "stores where")
        late = (self.read_at[:, lo:hi] > clock[:, None]).any(axis=1)
        if late.any():
            raise Race(f"rank {rank} stores into {self.name}[{lo}:{hi}] that rank {int(late.argmax())} may still load")
        self.writer[lo:hi] = rank
        self.written_at[lo:hi] = clock[rank]
        if value is not None:
            self.data[lo:hi] = value

    def _check(self, lo: int, hi: int, rank: int, clock: Clock, does: str) -> None:
        if not 0 <= lo <= hi <= len(self.data):
            raise Misuse(f"rank {rank} touches {self.name}[{lo}:{hi}] of {len(self.data)} bytes")
        late = self.written_at[lo:hi] > clock[self.writer[lo:hi]]
        if late.any():
            other = int(self.writer[lo:hi][late.argmax()])
            raise Race(f"rank {rank} {does} rank {other} may still store: {self.name}[{lo}:{hi}]")


class Slot:
    """A slot: the round it holds, and which of its bytes were written in that round."""

    def __init__(self, name: str, nbytes: int, size: int) -> None:
        self.memory = Memory(name, np.zeros(nbytes, np.uint8), size)
        self.round = -1
        self.filled = np.zeros(nbytes, bool)


@dataclass
class RankBuffers:
    """Input and output array of one rank in one collective: each a memory and an offset in it."""

    in_memory: Memory
    in_at: int
    out_memory: Memory
    out_at: int


@dataclass
class Counter:
    """A counter that only its own rank stores to, with the clock of each of its values."""

    values: list[int] = field(default_factory=lambda: [0])
    clocks: list[Clock] = field(default_factory=list)

    @property
    def value(self) -> int:
        """The latest value."""
        return self.values[-1]

    def advance(self, value: int, clock: Clock, what: str) -> None:
        """Store a greater value; a smaller one is a `Misuse`."""
        if value < self.value:
            raise Misuse(f"{what} goes back from {self.value} to {value}")
        if value > self.value:
            self.values.append(value)
            self.clocks.append(clock.copy())

    def clock(self, value: int) -> Clock | None:
        """The clock that a rank acquires when it loads at least ``value``: that of the first value that great."""
        i = bisect_left(self.values, value)
        return self.clocks[i - 1] if i else None


class Simulator:
    """All ranks, their outboxes, and a sequence of collectives, executed step by step.

    Parameters
    ----------
    collectives : sequence of (plans, buffers)
        For each collective in turn, a plan and a `RankBuffers` per rank.
    limits : Limits
    itemsize : int
    seed : int
        For the poison in slots.
    """

    def __init__(
        self,
        collectives: Sequence[tuple[Sequence[Plan], Sequence[RankBuffers]]],
        limits: Limits,
        itemsize: int = 8,
        seed: int = 0,
    ) -> None:
        self.size = size = len(collectives[0][0])
        self.limits, self.itemsize = limits, itemsize
        self.poison = np.random.default_rng(seed)
        self.slots = [
            [Slot(f"slot {n} of rank {r}", limits.slot_nbytes, size) for n in range(limits.nslots)] for r in range(size)
        ]
        self.published = [Counter() for _ in range(size)]
        self.consumed = [Counter() for _ in range(size)]
        self.claimed = [-1] * size
        self.published_rounds: list[set[int]] = [
            set() for _ in range(size)
        ]  # per rank: rounds published by a Publish step
        self.clock = np.zeros((size, size), np.int64)
        np.fill_diagonal(self.clock, 1)
        self.collectives = collectives
        self.scripts = [self._script(r) for r in range(size)]
        # The next action of each rank; None when it has finished.
        self.next = [next(script, None) for script in self.scripts]

    def run(self, schedule: Schedule) -> None:
        """Execute all plans to the end."""
        ready = {r for r in range(self.size) if self._can_go_on(r)}
        while ready:
            rank = schedule(sorted(ready))
            advanced = self._advance(rank)
            # Only an advanced counter can unblock other ranks, and nothing can block them again.
            for r in range(self.size) if advanced else (rank,):
                if r == rank or r not in ready:
                    (ready.add if self._can_go_on(r) else ready.discard)(r)
        if any(self.next):
            raise Deadlock("\n".join(f"rank {r}: {n and n[3]} of {n and n[0].kind}" for r, n in enumerate(self.next)))

    def _next_action(self, rank: int) -> Action:
        action = self.next[rank]
        assert action is not None
        return action

    def _script(self, rank: int) -> Iterator[Action]:
        first = 0
        for plans, buffers in self.collectives:
            plan = plans[rank]
            if (plan.rounds, plan.kind, plan.size) != (plans[0].rounds, plans[0].kind, self.size):
                raise Misuse(f"ranks disagree: {plan.kind}, {plan.rounds} rounds against {plans[0].rounds}")
            if plan.used_nbytes != plans[0].used_nbytes:
                raise Misuse(f"ranks disagree: {plan.kind}, {plan.used_nbytes} bytes against {plans[0].used_nbytes}")
            self._user(rank, buffers[rank])
            for loop in plan.loops:
                for i in range(loop.times):
                    for step in loop.steps:
                        yield plan, buffers, first, step, i
            yield plan, buffers, first, None, 0
            self._user(rank, buffers[rank])
            first += plan.rounds

    def _user(self, rank: int, own: RankBuffers) -> None:
        """Before and after a call the buffers belong to the caller, so this counts as a store to all of them."""
        for memory in (own.in_memory, own.out_memory):
            memory.store(0, len(memory.data), rank, self.clock[rank], None)

    def _waits_for(self, rank: int) -> list[tuple[Counter, int]]:
        """The counters, each with the value it must reach before the rank can take its next step."""
        _, _, first, step, i = self._next_action(rank)
        others = [r for r in range(self.size) if r != rank]
        if isinstance(step, Await):
            ranks = others if step.ranks is ALL else step.ranks
            return [(self.published[r], first + step.round.at(i) + 1) for r in ranks]
        if isinstance(step, Claim):
            return [(self.consumed[r], first + step.round.at(i) + 1 - self.limits.nslots) for r in others]
        if isinstance(step, AwaitRelease):
            return [(self.consumed[r], first + step.round.at(i) + 1) for r in others]
        return []

    def _can_go_on(self, rank: int) -> bool:
        return self.next[rank] is not None and all(c.value >= value for c, value in self._waits_for(rank))

    def _advance(self, rank: int) -> bool:
        """Take the rank's next step. Returns whether that advanced one of its counters."""
        plan, buffers, first, step, i = self._next_action(rank)
        for counter, value in self._waits_for(rank):
            if (seen := counter.clock(value)) is not None:
                np.maximum(self.clock[rank], seen, out=self.clock[rank])
        match step:
            case Copy():
                if not self._same(buffers, i, step.dst, step.src):
                    content = self._load(plan, buffers, first, i, step.src, step.nbytes)
                    self._store(plan, buffers, first, i, (step.dst,), content)
                    self._no_overlap(buffers, i, (step.dst,), (step.src,), step.nbytes)
            case Reduce():
                operands = [self._load(plan, buffers, first, i, source, nbytes) for source, nbytes in step.loads]
                form: dict[str, Any] = {"opens": step.opens, "closes": step.closes, "wide": step.wide}
                self._store(plan, buffers, first, i, (step.dst, *step.also), fold(operands, self.itemsize, **form))
                self._no_overlap(buffers, i, (step.dst, *step.also), step.sources, step.nbytes)
            case Claim():
                self.claimed[rank] = max(self.claimed[rank], first + step.round.at(i))
            case Publish():
                round = first + step.round.at(i)
                if self.claimed[rank] < round or self.published[rank].value > round:
                    state = f"claimed to {self.claimed[rank]}, published {self.published[rank].value}"
                    raise Misuse(f"rank {rank} publishes round {round}: {state}")
                self.published_rounds[rank].add(round)
                self._advance_counter(self.published, rank, first + step.round.at(i) + 1)
            case Await():
                round = first + step.round.at(i)
                if self.consumed[rank].value > round:
                    raise Misuse(f"rank {rank} awaits round {round} after it released it")
                for r in range(self.size) if step.ranks is ALL else step.ranks:
                    if r != rank and round not in self.published_rounds[r]:
                        raise Misuse(f"rank {rank} awaits round {round}, which rank {r} does not publish")
            case Release():
                if step.round.at(i) == plan.rounds - 1:
                    raise Misuse(f"rank {rank} releases the last round before the end")
                self._advance_counter(self.consumed, rank, first + step.round.at(i) + 1)
            case None:
                self._advance_counter(self.published, rank, first + plan.rounds)
                self._advance_counter(self.consumed, rank, first + plan.rounds)
        if isinstance(step, (Claim, Publish, Await, Release, AwaitRelease)) and not 0 <= step.round.at(i) < plan.rounds:
            raise Misuse(f"rank {rank}: {step} in a collective of {plan.rounds} rounds")
        self.next[rank] = next(self.scripts[rank], None)
        return isinstance(step, (Publish, Release)) or step is None

    def _advance_counter(self, counters: list[Counter], rank: int, value: int) -> None:
        what = "published" if counters is self.published else "consumed"
        counters[rank].advance(value, self.clock[rank], f"{what} of rank {rank}")
        self.clock[rank, rank] += 1

    def _place(self, buffers: Sequence[RankBuffers], operand: Operand, i: int) -> tuple[Memory, int]:
        own = buffers[operand.rank]
        if operand.space is IN:
            return own.in_memory, own.in_at + operand.offset.at(i)
        return own.out_memory, own.out_at + operand.offset.at(i)

    def _same(self, buffers: Sequence[RankBuffers], i: int, a: Operand, b: Operand) -> bool:
        if SLOT in (a.space, b.space):
            return False
        (memory, at), (other, there) = self._place(buffers, a, i), self._place(buffers, b, i)
        return memory is other and at == there

    def _load(self, plan: Plan, buffers: Sequence[RankBuffers], first: int, i: int, src: Operand, nbytes: int) -> Bytes:
        rank, clock = plan.rank, self.clock[plan.rank]
        if src.space is not SLOT:
            self._check_private(plan, src)
            memory, at = self._place(buffers, src, i)
            return memory.load(at, at + nbytes, rank, clock)
        round, at = first + src.round.at(i), src.offset.at(i)
        slot = self.slots[src.rank][round % self.limits.nslots]
        if slot.round != round:
            raise Misuse(f"rank {rank} reads round {round} of rank {src.rank}, the slot holds {slot.round}")
        if src.rank != rank and self.consumed[rank].value > round:
            raise Misuse(f"rank {rank} reads round {round} of rank {src.rank} after it released it")
        if not slot.filled[at : at + nbytes].all():
            raise Misuse(f"rank {rank} reads bytes of round {round} that rank {src.rank} has not written")
        return slot.memory.load(at, at + nbytes, rank, clock)

    def _store(
        self, plan: Plan, buffers: Sequence[RankBuffers], first: int, i: int, targets: Sequence[Operand], value: Bytes
    ) -> None:
        rank, clock = plan.rank, self.clock[plan.rank]
        for dst in targets:
            if dst.space is not SLOT:
                self._check_private(plan, dst)
                if dst.space is not OUT:
                    raise Misuse(f"rank {rank} writes into its input")
                memory, at = self._place(buffers, dst, i)
                memory.store(at, at + len(value), rank, clock, value)
                continue
            round, at = first + dst.round.at(i), dst.offset.at(i)
            if dst.rank != rank:
                self._replace(rank, dst.rank, round, at, value)
                continue
            if at + len(value) > plan.used_nbytes:
                raise Misuse(f"rank {rank} writes to byte {at + len(value)} of a slot, past its {plan.used_nbytes}")
            if self.claimed[rank] < round or self.published[rank].value > round:
                state = f"claimed to {self.claimed[rank]}, published {self.published[rank].value}"
                raise Misuse(f"rank {rank} writes round {round}: {state}")
            slot = self.slots[rank][round % self.limits.nslots]
            if slot.round != round:
                slot.round = round
                slot.filled[:] = False
                slot.memory.store(0, self.limits.slot_nbytes, rank, clock, self._garbage(self.limits.slot_nbytes))
            slot.filled[at : at + len(value)] = True
            slot.memory.store(at, at + len(value), rank, clock, value)

    def _replace(self, rank: int, owner: int, round: int, at: int, value: Bytes) -> None:
        """Replace what another rank has staged."""
        slot = self.slots[owner][round % self.limits.nslots]
        if slot.round != round or not slot.filled[at : at + len(value)].all():
            raise Misuse(f"rank {rank} replaces bytes of round {round} that rank {owner} has not written")
        if self.consumed[rank].value > round:
            raise Misuse(f"rank {rank} writes round {round} of rank {owner} after it released it")
        slot.memory.store(at, at + len(value), rank, self.clock[rank], value)

    def _garbage(self, nbytes: int) -> Bytes:
        return self.poison.integers(0, 256, nbytes, np.uint8)

    def _check_private(self, plan: Plan, operand: Operand) -> None:
        if operand.rank != plan.rank and not plan.zero_copy:
            raise Misuse(f"a private plan of rank {plan.rank} touches a buffer of rank {operand.rank}")

    def _no_overlap(
        self,
        buffers: Sequence[RankBuffers],
        i: int,
        targets: Sequence[Operand],
        sources: Sequence[Operand],
        nbytes: int,
    ) -> None:
        """A kernel passes over its operands once, forwards: two of them are the same bytes or do not overlap."""
        places = [self._place(buffers, o, i) for o in targets if o.space is not SLOT]
        for memory, at in [*places, *(self._place(buffers, o, i) for o in sources if o.space is not SLOT)]:
            for other, there in places:
                if memory is other and 0 < abs(at - there) < nbytes:
                    raise Misuse(f"{memory.name}[{at}:{at + nbytes}] overlaps [{there}:{there + nbytes}]")


def lowest(ready: Sequence[int]) -> int:
    """Always the lowest rank that is ready."""
    return ready[0]


def highest(ready: Sequence[int]) -> int:
    """Always the highest rank that is ready."""
    return ready[-1]


def rushing(rank: int) -> Schedule:
    """``rank`` whenever it is ready, else the lowest one."""
    return lambda ready: rank if rank in ready else ready[0]


def delaying(rank: int) -> Schedule:
    """``rank`` only when no other rank is ready."""
    return lambda ready: next((r for r in ready if r != rank), rank)


def in_turn() -> Schedule:
    """Round-robin."""
    last = -1

    def schedule(ready: Sequence[int]) -> int:
        nonlocal last
        last = next((r for r in ready if r > last), ready[0])
        return last

    return schedule


def at_random(seed: int) -> Schedule:
    """A random rank."""
    return random.Random(seed).choice
