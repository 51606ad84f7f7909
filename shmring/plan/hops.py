"""Pipelines in which pieces go from rank to rank, one hop a round.

The bytes go chunk by chunk, a chunk in pieces of *blocks*. A `PieceTask` is the work of one rank on a piece: it stages
the piece, folds it with pieces from other slots, or forwards it; the next rank continues one round later. A task has a
*delay*: in round t it processes chunk t - delay, with what other ranks published in round t - 1, and publishes the
result in round t. So the tasks of all ranks work at once, on different chunks; a rank has one claim, one await, one
publish and one release a round, and once the pipeline is full it completes one chunk a round, however many hops it has.

Waits cannot form a cycle: a rank in round t waits for what others do in round t - 1 (await) or before round t - 2
(claim, from four slots up).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from .limits import LINE
from .pipeline import await_ranks, even, merged, release_all
from .steps import IN, OUT, SLOT, Affine, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Space, Step


class Role(IntEnum):
    """The origin of a piece in a slot: staged from an input, folded, or forwarded from another slot."""

    STAGED = 0
    FOLDED = 1
    FORWARDED = 2


STAGED, FOLDED, FORWARDED = Role.STAGED, Role.FOLDED, Role.FORWARDED


class PieceTask(NamedTuple):
    """The work of one rank on its piece of a block.

    Attributes
    ----------
    delay : int
        In round t the task processes chunk t - delay.
    block : int
    role : Role
        The result. FOLDED: a fold of ``sources``; otherwise a copy of the single source.
    sources : tuple of (rank, Role)
        The pieces to load, from the slots of the previous round; for this rank itself, from its input. The first source
        of a fold is a prefix if it is FOLDED.
    to_slot, to_output : bool
        Whether the result is stored to the slot, and to the output.
    closes : bool
        For a fold: whether it completes the result, instead of making a prefix for another rank to continue.
    """

    delay: int
    block: int
    role: Role
    sources: tuple[tuple[int, Role], ...]
    to_slot: bool
    to_output: bool
    closes: bool = True


class Cut(NamedTuple):
    """How blocks are cut: ``full`` chunks of ``piece`` bytes per block, and one chunk with the remainder.

    Attributes
    ----------
    piece, full, chunks : int
    ins, outs : list of int
        Offset of each block in IN and in OUT, in a chunk of full size.
    stride : int
        Distance to the pieces of the next chunk.
    tail : list of (int, int, int)
        For each block, offsets of its last, smaller piece in IN and in OUT, and its bytes.
    """

    piece: int
    full: int
    chunks: int
    ins: list[int]
    outs: list[int]
    stride: int
    tail: list[tuple[int, int, int]]


def cut_vector(nbytes: int, blocks: int, most: int) -> Cut:
    """A vector, cut into chunks of ``blocks`` slices of at most ``most`` bytes each, in whole lines."""
    lines = -(-nbytes // LINE)
    chunks = -(-lines // (blocks * (most // LINE)))
    piece = -(-lines // (blocks * chunks)) * LINE  # the same number of chunks, but equal ones
    full, left = divmod(nbytes, blocks * piece)
    starts = [b * piece for b in range(blocks)]
    bounds = [nbytes - left + at for at in even(left, blocks)]
    tail = [(lo, lo, hi - lo) for lo, hi in pairwise(bounds)]
    return Cut(piece, full, full + (left > 0), starts, starts, blocks * piece, tail)


def cut_blocks(nbytes: int, ins: list[int], outs: list[int], most: int) -> Cut:
    """Blocks of ``nbytes`` that begin at ``ins`` and ``outs``, all cut into pieces of at most ``most`` bytes."""
    lines = -(-nbytes // LINE)
    chunks = -(-lines // (most // LINE))
    piece = -(-lines // chunks) * LINE
    full, left = divmod(nbytes, piece)
    tail = [(i + nbytes - left, o + nbytes - left, left) for i, o in zip(ins, outs, strict=True)]
    return Cut(piece, full, full + (left > 0), ins, outs, piece, tail)


class HopSchedule(NamedTuple):
    """The tasks of one rank in a collective, and the layout of pieces in slots.

    Attributes
    ----------
    tasks : sequence of PieceTask
        The tasks of this rank.
    place : callable
        ``place(rank, block, role)``: index of the piece among the places in that rank's slots, the same in all
        rounds.
    places : int
        Number of places in a slot; the same on all ranks.
    delay : int
        The longest delay of any task, on any rank, that stores to a slot.
    wide : int
        Number of places that a prefix takes.
    """

    tasks: Sequence[PieceTask]
    place: Callable[[int, int, Role], int]
    places: int
    delay: int
    wide: int = 1


def hop_plan(
    kind: str, algorithm: str, rank: int, size: int, schedule: HopSchedule, cut: Cut, in_place: int | None = 0
) -> Plan:
    """The plan of one rank."""
    rounds = cut.chunks + schedule.delay
    part = _Part(rank, size, schedule, cut, rounds)
    return Plan(kind, algorithm, rank, size, rounds, schedule.places * cut.piece, part.loops(), in_place)


class _Part:
    """The steps of the tasks of one rank, round by round."""

    def __init__(self, rank: int, size: int, schedule: HopSchedule, cut: Cut, rounds: int) -> None:
        self.rank, self.size, self.cut, self.rounds = rank, size, cut, rounds
        self.tasks, self.place, self.wide = schedule.tasks, schedule.place, schedule.wide

    def loops(self) -> tuple[Loop, ...]:
        delays = [task.delay for task in self.tasks]
        if not delays:
            return release_all(self.rounds)
        # Release the rounds before the first await at once, so that no claim of another rank waits for them.
        released = min((task.delay - 1 for task in self.tasks if self.others(task)), default=self.rounds - 1)
        loops = [Loop(1, (Release(Affine(released - 1)),))] if released else []
        first, last = min(delays), max(delays)
        once: list[Step] = []
        t, end = first, self.cut.chunks + last
        repeats = self.cut.full + first - last  # rounds in which all tasks process full chunks
        while t < end:
            if t == last and repeats > 1:
                loops += [Loop(1, tuple(once)), Loop(repeats, tuple(self.round(t, 1, released)))]
                once, t = [], t + repeats
            else:
                once += self.round(t, 0, released)
                t += 1
        return tuple(loop for loop in (*loops, Loop(1, tuple(once))) if loop.steps)

    def round(self, t: int, step: int, released: int) -> Iterable[Step]:
        """The steps of round t, or, with ``step`` 1 and inside a loop, of all rounds from t on.

        Rounds before ``released`` are released already.
        """
        here = Affine(t, step)
        tasks = [task for task in self.tasks if self.nbytes(task, t)]
        publishes = any(task.to_slot for task in tasks)
        if publishes:
            yield Claim(here)
        local = [task for task in tasks if not self.others(task)]
        remote = [task for task in tasks if self.others(task)]
        if publishes:
            yield from merged(self.copy(task, t, step) for task in local if task.to_slot and not self.widens(task))
            yield from (self.fold(task, t, step) for task in local if self.widens(task))
        ranks = sorted({r for task in remote for r in self.others(task)})
        yield from await_ranks(Affine(t - 1, step), ranks, self.size)
        for task in remote:
            if task.role is FOLDED:
                yield self.fold(task, t, step)
            elif task.to_slot:
                yield self.copy(task, t, step)
        if publishes:
            yield Publish(here)
        for task in tasks:
            if task.to_output and task.role is not FOLDED:
                yield self.keep(task, t, step)
        if released < t < self.rounds:
            yield Release(Affine(t - 1, step))

    def others(self, task: PieceTask) -> list[int]:
        return [r for r, _ in task.sources if r != self.rank]

    def widens(self, task: PieceTask) -> bool:
        """Whether folding a single operand changes its bytes."""
        return task.role is FOLDED and self.wide > 1

    def nbytes(self, task: PieceTask, t: int) -> int:
        chunk = t - task.delay
        if 0 <= chunk < self.cut.full:
            return self.cut.piece
        return self.cut.tail[task.block][2] if self.cut.full <= chunk < self.cut.chunks else 0

    def copy(self, task: PieceTask, t: int, step: int) -> Copy:
        """The copy to the slot."""
        return Copy(self.slot(self.rank, task, task.role, t, step), self.source(task, t, step), self.nbytes(task, t))

    def keep(self, task: PieceTask, t: int, step: int) -> Copy:
        """The copy to the output, after the publish; from this rank's own slot if the piece was copied there."""
        near = task.to_slot and self.others(task)
        source = self.slot(self.rank, task, task.role, t, step) if near else self.source(task, t, step)
        return Copy(self.buffer(OUT, task, t, step), source, self.nbytes(task, t))

    def fold(self, task: PieceTask, t: int, step: int) -> Reduce:
        sources = tuple(
            self.buffer(IN, task, t, step) if r == self.rank else self.slot(r, task, role, t - 1, step)
            for r, role in task.sources
        )
        targets = [self.buffer(OUT, task, t, step)] if task.to_output else []
        if task.to_slot:
            targets.append(self.slot(self.rank, task, FOLDED, t, step))
        opens = task.sources[0][1] is not FOLDED
        return Reduce(targets[0], tuple(targets[1:]), sources, self.nbytes(task, t), opens, task.closes, self.wide)

    def source(self, task: PieceTask, t: int, step: int) -> Operand:
        ((r, role),) = task.sources
        return self.buffer(IN, task, t, step) if r == self.rank else self.slot(r, task, role, t - 1, step)

    def slot(self, r: int, task: PieceTask, role: Role, t: int, step: int) -> Operand:
        return Operand(SLOT, r, Affine(self.place(r, task.block, role) * self.cut.piece), Affine(t, step))

    def buffer(self, space: Space, task: PieceTask, t: int, step: int) -> Operand:
        chunk = t - task.delay
        if chunk >= self.cut.full:
            return Operand(space, self.rank, Affine(self.cut.tail[task.block][space is OUT]))
        starts = self.cut.outs if space is OUT else self.cut.ins
        return Operand(space, self.rank, Affine(starts[task.block] + chunk * self.cut.stride, step * self.cut.stride))
