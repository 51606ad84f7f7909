"""Pipelines in which pieces go from rank to rank, one hop a round.

The bytes go chunk by chunk, a chunk in one *piece* of every *block*. A `Task` is the work of one rank on the pieces of
a block: it stages them, folds them with pieces from other slots, or forwards them; the next rank continues one round
later. A task has a *delay*: in round t it processes chunk t - delay, with what other ranks published in round t - 1,
and publishes the result in round t. So the tasks of all ranks work at once, on different chunks; a rank has one claim,
one await, one publish and one release a round, and once the pipeline is full it completes one chunk a round, however
many hops it has.

Waits cannot form a cycle: a rank in round t waits for what others do in round t - 1 (await) or before round t - 2
(claim, from four slots up).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from .limits import LINE
from .pipeline import await_ranks, even, merged, release_all
from .steps import IN, OUT, SLOT, Affine, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Space, Step


class Task(NamedTuple):
    """The work of one rank on the pieces of a block.

    Attributes
    ----------
    delay : int
        In round t the task processes chunk t - delay.
    block : int
    sources : tuple of (rank, place)
        The pieces to load: of another rank the piece in this place of its slot of the previous round, of this rank its
        input, whatever the place.
    place : int or None
        The place in this rank's slot to which the result is stored; None: not stored to the slot.
    to_output : bool
        Whether the result is stored to the output.
    folds : bool
        Whether the result is the fold of the sources; otherwise it is a copy of the only source.
    opens, closes : bool
        For a fold: whether the first source is an operand like the others, not a prefix; whether the result is
        complete, not a prefix for another rank to continue.
    """

    delay: int
    block: int
    sources: tuple[tuple[int, int], ...]
    place: int | None = None
    to_output: bool = False
    folds: bool = False
    opens: bool = True
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


class Hops:
    """The steps of the tasks of one rank, round by round.

    Parameters
    ----------
    rank, size : int
    tasks : sequence of Task
        The tasks of this rank.
    cut : Cut
    hops : int
        The longest delay of any task, on any rank, that stores to a slot.
    wide : int
        Bytes of an element of a prefix, in elements of the operands.
    """

    def __init__(self, rank: int, size: int, tasks: Sequence[Task], cut: Cut, hops: int, wide: int = 1) -> None:
        self.rank, self.size, self.tasks, self.cut, self.wide = rank, size, tasks, cut, wide
        self.rounds = cut.chunks + hops

    def loops(self) -> tuple[Loop, ...]:
        """All rounds: those in which the pipeline fills, a loop while it is full, those in which it empties."""
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
        tasks = [task for task in self.tasks if self.nbytes(task, t)]
        publishes = any(task.place is not None for task in tasks)
        if publishes:
            yield Claim(Affine(t, step))
        # What needs no other rank comes before the await.
        yield from merged(s for task in tasks if not self.others(task) for s in self.staged(task, t, step))
        ranks = sorted({r for task in tasks for r in self.others(task)})
        yield from await_ranks(Affine(t - 1, step), ranks, self.size)
        yield from merged(s for task in tasks if self.others(task) for s in self.staged(task, t, step))
        if publishes:
            yield Publish(Affine(t, step))
        yield from (self.output(task, t, step) for task in tasks if task.to_output and not task.folds)
        if released < t < self.rounds:
            yield Release(Affine(t - 1, step))

    def others(self, task: Task) -> list[int]:
        """The other ranks of which the task loads slots."""
        return [r for r, _ in task.sources if r != self.rank]

    def nbytes(self, task: Task, t: int) -> int:
        """The bytes of its piece in round ``t``."""
        chunk = t - task.delay
        if 0 <= chunk < self.cut.full:
            return self.cut.piece
        return self.cut.tail[task.block][2] if self.cut.full <= chunk < self.cut.chunks else 0

    def staged(self, task: Task, t: int, step: int) -> Iterable[Step]:
        """The step of the task before the publish: the fold, or the copy to the slot."""
        sources, nbytes = self.sources(task, t, step), self.nbytes(task, t)
        targets = [] if task.place is None else [self.slot(self.rank, task.place, t, step)]
        if task.folds:
            if task.to_output:
                targets.insert(0, self.buffer(OUT, task, t, step))
            yield Reduce(targets[0], tuple(targets[1:]), sources, nbytes, task.opens, task.closes, self.wide)
        elif targets:
            yield Copy(targets[0], sources[0], nbytes)

    def output(self, task: Task, t: int, step: int) -> Copy:
        """The copy to the output, after the publish; from this rank's own slot if the piece was copied there."""
        (source,) = self.sources(task, t, step)
        if task.place is not None and self.others(task):
            source = self.slot(self.rank, task.place, t, step)
        return Copy(self.buffer(OUT, task, t, step), source, self.nbytes(task, t))

    def sources(self, task: Task, t: int, step: int) -> tuple[Operand, ...]:
        """The places that the task loads."""
        return tuple(
            self.buffer(IN, task, t, step) if r == self.rank else self.slot(r, place, t - 1, step)
            for r, place in task.sources
        )

    def slot(self, r: int, place: int, t: int, step: int) -> Operand:
        """A place in the slot of rank ``r`` of round ``t``."""
        return Operand(SLOT, r, Affine(place * self.cut.piece), Affine(t, step))

    def buffer(self, space: Space, task: Task, t: int, step: int) -> Operand:
        """The place in the input or output of the piece of round ``t``."""
        chunk = t - task.delay
        if chunk >= self.cut.full:
            return Operand(space, self.rank, Affine(self.cut.tail[task.block][space is OUT]))
        starts = self.cut.outs if space is OUT else self.cut.ins
        return Operand(space, self.rank, Affine(starts[task.block] + chunk * self.cut.stride, step * self.cut.stride))


def hop_plan(kind: str, part: Hops, places: int, in_place: int | None = 0) -> Plan:
    """The plan of one rank, of a collective with so many ``places`` in a slot."""
    used_nbytes = places * part.cut.piece
    return Plan(kind, "hierarchical", part.rank, part.size, part.rounds, used_nbytes, part.loops(), in_place)
