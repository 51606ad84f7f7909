"""Relays: pieces that go from rank to rank, one hop a round.

The bytes go chunk by chunk, a chunk in pieces of *blocks*. What a rank does with one piece is an `Act`: it says the
piece, folds it from what others have said, or fetches it, and the next rank does something with that a round later. An
act has a *delay*: in round t it is done for chunk t - delay, from what others said in round t - 1, and said in
round t. So all acts on all chunks overlap like the stations of an assembly line, a rank has one claim, one await, one
publish and one release a round, and once the line is full a chunk takes one round, however many stations it passes.

No wait can close a circle: a rank in round t waits for what others do in round t - 1 (await) or before round t - 2
(claim, from four slots up).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from .limits import LINE
from .pipeline import awaiting, deaf, even, joined
from .steps import IN, OUT, SLOT, Affine, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Space, Step


class Role(IntEnum):
    """What a piece in a slot is: as it came from an input, folded, or fetched from another slot."""

    SAID = 0
    FOLDED = 1
    FETCHED = 2


SAID, FOLDED, FETCHED = Role.SAID, Role.FOLDED, Role.FETCHED


class Act(NamedTuple):
    """What one rank does with its piece of a block.

    Attributes
    ----------
    delay : int
        In round t it is done for chunk t - delay.
    block : int
    role : Role
        What comes of it. FOLDED: a fold of ``sources``; else a copy of the one source.
    sources : tuple of (rank, Role)
        Whose pieces are taken, from the slots of the round before; the own rank stands for the own input. The first of
        a fold is a prefix if it is FOLDED.
    stages, keeps : bool
        Whether the result goes into the slot, and into the output.
    closes : bool
        Of a fold: whether it is the whole, and not a prefix for another rank to continue.
    """

    delay: int
    block: int
    role: Role
    sources: tuple[tuple[int, Role], ...]
    stages: bool
    keeps: bool
    closes: bool = True


class Cut(NamedTuple):
    """How blocks are cut: ``full`` chunks of ``piece`` bytes a block, and one with what is left.

    Attributes
    ----------
    piece, full, chunks : int
    ins, outs : list of int
        Where each block begins in IN and in OUT, in a chunk of full size.
    stride : int
        How far the next chunk's pieces lie from these.
    tail : list of (int, int, int)
        Where each block's last, smaller piece lies in IN and in OUT, and its bytes.
    """

    piece: int
    full: int
    chunks: int
    ins: list[int]
    outs: list[int]
    stride: int
    tail: list[tuple[int, int, int]]


def cut_vector(nbytes: int, blocks: int, most: int) -> Cut:
    """A vector, cut into chunks and these into ``blocks`` slices of at most ``most`` bytes each, in whole lines."""
    lines = -(-nbytes // LINE)
    chunks = -(-lines // (blocks * (most // LINE)))
    piece = -(-lines // (blocks * chunks)) * LINE  # as many chunks, but equal ones
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


class Relay(NamedTuple):
    """One rank's part in a collective, as acts.

    Attributes
    ----------
    acts : sequence of Act
        Those of this rank.
    place : callable
        ``place(rank, block, role)``: which of the places for pieces in that rank's slots is for this one, in all rounds
        the same.
    places : int
        How many of these places there are; the same on all ranks.
    delay : int
        The longest delay of any rank's act that stages.
    wide : int
        How many of the places a prefix takes.
    """

    acts: Sequence[Act]
    place: Callable[[int, int, Role], int]
    places: int
    delay: int
    wide: int = 1


def relayed(kind: str, algorithm: str, rank: int, size: int, relay: Relay, cut: Cut, in_place: int | None = 0) -> Plan:
    """The plan of one rank."""
    rounds = cut.chunks + relay.delay
    part = _Part(rank, size, relay, cut, rounds)
    return Plan(kind, algorithm, rank, size, rounds, relay.places * cut.piece, part.loops(), in_place)


class _Part:
    """One rank's part: its acts, and what they are in some round."""

    def __init__(self, rank: int, size: int, relay: Relay, cut: Cut, rounds: int) -> None:
        self.rank, self.size, self.cut, self.rounds = rank, size, cut, rounds
        self.acts, self.place, self.wide = relay.acts, relay.place, relay.wide

    def loops(self) -> tuple[Loop, ...]:
        delays = [act.delay for act in self.acts]
        if not delays:
            return deaf(self.rounds)
        # Until its turn comes the others must not wait for it.
        heard = min((act.delay - 1 for act in self.acts if self.others(act)), default=self.rounds - 1)
        loops = [Loop(1, (Release(Affine(heard - 1)),))] if heard else []
        first, last = min(delays), max(delays)
        once: list[Step] = []
        t, end = first, self.cut.chunks + last
        repeats = self.cut.full + first - last  # rounds in which all acts meet chunks of full size
        while t < end:
            if t == last and repeats > 1:
                loops += [Loop(1, tuple(once)), Loop(repeats, tuple(self.round(t, 1, heard)))]
                once, t = [], t + repeats
            else:
                once += self.round(t, 0, heard)
                t += 1
        return tuple(loop for loop in (*loops, Loop(1, tuple(once))) if loop.steps)

    def round(self, t: int, step: int, heard_from: int) -> Iterable[Step]:
        """The steps of round t, or of all rounds from t on if ``step`` is 1 and they stand in a loop.

        All before the round ``heard_from`` are released.
        """
        here = Affine(t, step)
        acts = [act for act in self.acts if self.nbytes(act, t)]
        stages = any(act.stages for act in acts)
        if stages:
            yield Claim(here)
        said = [act for act in acts if not self.others(act)]
        heard = [act for act in acts if self.others(act)]
        if stages:
            yield from joined(self.copy(act, t, step) for act in said if act.stages and not self.widens(act))
            yield from (self.fold(act, t, step) for act in said if self.widens(act))
        ranks = sorted({r for act in heard for r in self.others(act)})
        yield from awaiting(Affine(t - 1, step), ranks, self.size)
        for act in heard:
            if act.role is FOLDED:
                yield self.fold(act, t, step)
            elif act.stages:
                yield self.copy(act, t, step)
        if stages:
            yield Publish(here)
        for act in acts:
            if act.keeps and act.role is not FOLDED:
                yield self.keep(act, t, step)
        if heard_from < t < self.rounds:
            yield Release(Affine(t - 1, step))

    def others(self, act: Act) -> list[int]:
        return [r for r, _ in act.sources if r != self.rank]

    def widens(self, act: Act) -> bool:
        """Whether one operand alone, folded with nothing, is other bytes than before."""
        return act.role is FOLDED and self.wide > 1

    def nbytes(self, act: Act, t: int) -> int:
        chunk = t - act.delay
        if 0 <= chunk < self.cut.full:
            return self.cut.piece
        return self.cut.tail[act.block][2] if self.cut.full <= chunk < self.cut.chunks else 0

    def copy(self, act: Act, t: int, step: int) -> Copy:
        """Into the slot."""
        return Copy(self.slot(self.rank, act, act.role, t, step), self.source(act, t, step), self.nbytes(act, t))

    def keep(self, act: Act, t: int, step: int) -> Copy:
        """Into the output, after the publish: nobody waits for that. What came from afar is in the own slot now."""
        near = act.stages and self.others(act)
        source = self.slot(self.rank, act, act.role, t, step) if near else self.source(act, t, step)
        return Copy(self.buffer(OUT, act, t, step), source, self.nbytes(act, t))

    def fold(self, act: Act, t: int, step: int) -> Reduce:
        sources = tuple(
            self.buffer(IN, act, t, step) if r == self.rank else self.slot(r, act, role, t - 1, step)
            for r, role in act.sources
        )
        targets = [self.buffer(OUT, act, t, step)] if act.keeps else []
        if act.stages:
            targets.append(self.slot(self.rank, act, FOLDED, t, step))
        opens = act.sources[0][1] is not FOLDED
        return Reduce(targets[0], tuple(targets[1:]), sources, self.nbytes(act, t), opens, act.closes, self.wide)

    def source(self, act: Act, t: int, step: int) -> Operand:
        ((r, role),) = act.sources
        return self.buffer(IN, act, t, step) if r == self.rank else self.slot(r, act, role, t - 1, step)

    def slot(self, r: int, act: Act, role: Role, t: int, step: int) -> Operand:
        return Operand(SLOT, r, Affine(self.place(r, act.block, role) * self.cut.piece), Affine(t, step))

    def buffer(self, space: Space, act: Act, t: int, step: int) -> Operand:
        chunk = t - act.delay
        if chunk >= self.cut.full:
            return Operand(space, self.rank, Affine(self.cut.tail[act.block][space is OUT]))
        starts = self.cut.outs if space is OUT else self.cut.ins
        return Operand(space, self.rank, Affine(starts[act.block] + chunk * self.cut.stride, step * self.cut.stride))
