"""How bytes are cut into rounds, and how the rounds of a one-sync collective overlap.

A collective of this shape has each rank *say* something in a round and then *hear* what the others said in it.
`stages` cuts the blocks that are to be said so that they fit the slots, and `pipelined` lets every rank say round
r + 1 before it hears round r, so that only the first wait is exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from .limits import LINE
from .steps import IN, OUT, ZERO, Affine, Await, Copy, Loop, Operand, Plan, Reduce, Release, Step

Pieces = list[int]
Load = Callable[[Pieces], int]


def even(nbytes: int, parts: int) -> list[int]:
    """The ``parts + 1`` bounds that cut ``nbytes`` into equal parts, to the line; only the last can be ragged.

    With fewer lines than parts some parts are empty.
    """
    lines = -(-nbytes // LINE)
    return [min(lines * j // parts * LINE, nbytes) for j in range(parts + 1)]


def packing(blocks: int, capacity: int, itemsize: int) -> int:
    """The alignment with which ``blocks`` pieces share a slot: a line, or an item where slots are that small."""
    for alignment in (LINE, itemsize):
        # Twice, so that what `stages` leaves over at least halves from stage to stage.
        if 2 * max(blocks, 1) * alignment <= capacity:
            return alignment
    raise ValueError(f"{capacity} bytes per round are too few for {blocks} blocks of {itemsize}-byte items")


def up(nbytes: int, alignment: int) -> int:
    """``nbytes`` rounded up."""
    return -(-nbytes // alignment) * alignment


def blocks_of(nbytes: int | Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Size and place of every rank's block."""
    sizes = [nbytes] * size if isinstance(nbytes, int) else list(nbytes)
    if len(sizes) != size:
        raise ValueError(f"{len(sizes)} block sizes for {size} ranks")
    return sizes, [0, *accumulate(sizes)][:-1]


class Stage(NamedTuple):
    """``times`` rounds from ``round`` on; in the i-th, ``pieces[b]`` bytes of each block b from ``starts[b] + i *
    pieces[b]`` on, which fill ``load`` bytes of the fullest slot.
    """

    round: int
    times: int
    starts: Pieces
    pieces: Pieces
    load: int


def stages(nbytes: Sequence[int], capacity: int, load: Load = max, alignment: int = LINE) -> list[Stage]:
    """Cut blocks of ``nbytes[b]`` bytes into rounds, all blocks at the same pace.

    ``load`` says how full the fullest slot gets with given pieces (the largest if each lies in a slot of its own, the
    sum if they share one). All blocks last equally many rounds, a long one in long pieces and a short one in
    short pieces: so one loop does for blocks of all lengths, followed by a round with what is left. Where that does not
    fit a slot (blocks of very different lengths in very many rounds), it is cut in turn.
    """
    left = list(nbytes)
    starts = [0] * len(left)
    found: list[Stage] = []
    rounds = 0

    def loaded(pieces: Pieces) -> int:
        return load([up(n, alignment) for n in pieces])

    def go(times: int, pieces: Pieces) -> None:
        nonlocal left, starts, rounds
        if times:
            found.append(Stage(rounds, times, starts, pieces, loaded(pieces)))
            rounds += times
            left = [n - times * piece for n, piece in zip(left, pieces, strict=True)]
            starts = [at + times * piece for at, piece in zip(starts, pieces, strict=True)]

    while any(left):
        least = -(-loaded(left) // capacity) or 1
        longer = [up(-(-n // least), alignment) for n in left]
        shorter = [n // least // alignment * alignment for n in left]
        spare = [up(-(-n // (least + 1)), alignment) for n in left]
        for times, pieces in ((least, longer), (least, shorter), (least + 1, spare)):
            last = [n - (times - 1) * piece for n, piece in zip(left, pieces, strict=True)]
            if min(last) >= 0 and loaded(last) <= capacity and (times == 1 or loaded(pieces) <= capacity):
                go(times if last == pieces else times - 1, pieces)
                if any(left):
                    go(1, left)
                break
        else:
            # Leaves less than least * alignment per block, which is at most half (see `packing`).
            go(least, shorter)
    return found


class Turn(NamedTuple):
    """One round of a stage, or all of them from ``first`` on if ``step`` is 1 and the steps stand in a loop."""

    stage: Stage
    first: int
    step: int

    @property
    def round(self) -> Affine:
        """Its round."""
        return Affine(self.stage.round + self.first, self.step)

    def at(self, block: int, base: int) -> Affine:
        """Where its piece of a block begins, the block beginning at ``base``."""
        piece = self.stage.pieces[block]
        return Affine(base + self.stage.starts[block] + self.first * piece, self.step * piece)


Speech = Callable[[Turn], Iterable[Step]]


def silent(turn: Turn) -> Iterable[Step]:
    """Say, or hear, nothing."""
    return ()


def pipelined(cut: Sequence[Stage], say: Speech, hear: Speech) -> tuple[Loop, ...]:
    """Say round r + 1, then hear round r, for all rounds of all stages."""
    loops: list[Loop] = []
    once = list(say(Turn(cut[0], 0, 0)))
    for stage, following in zip(cut, [*cut[1:], None], strict=True):
        if stage.times > 1:
            loops.append(Loop(1, tuple(once)))
            loops.append(Loop(stage.times - 1, (*say(Turn(stage, 1, 1)), *hear(Turn(stage, 0, 1)))))
            once = []
        if following is not None:
            once += say(Turn(following, 0, 0))
        once += hear(Turn(stage, stage.times - 1, 0))
    if once and isinstance(once[-1], Release):
        once.pop()  # of the last round: the end of the plan does that
    loops.append(Loop(1, tuple(once)))
    return tuple(loop for loop in loops if loop.steps)


def rounds_of(cut: Sequence[Stage]) -> int:
    """How many rounds the stages take together."""
    return cut[-1].round + cut[-1].times


def extent(cut: Sequence[Stage]) -> tuple[int, int]:
    """How many rounds the stages take together, and how full the fullest slot gets: what every `Plan` says."""
    return rounds_of(cut), max(stage.load for stage in cut)


def deaf(rounds: int) -> tuple[Loop, ...]:
    """For a rank that reads nothing: say so at once, or the others would wait for it before they reuse their slots."""
    return (Loop(1, (Release(Affine(rounds - 2)),)),) if rounds > 1 else ()


def peers(rank: int, size: int) -> list[int]:
    """The other ranks from the next one on, so that no two ranks start at the same one."""
    return [*range(rank + 1, size), *range(rank)]


def awaiting(round: Affine, ranks: Sequence[int], size: int) -> list[Step]:
    """Wait for these ranks, none of which is the own: a step, or nothing if there are none."""
    return [Await(round) if len(ranks) == size - 1 else Await(round, tuple(ranks))] if ranks else []


def joined(copies: Iterable[Copy]) -> list[Step]:
    """The same copies, those that continue one another as one. Only for copies outside loops or of one stride."""
    out: list[Copy] = []
    for copy in copies:
        if (
            out
            and _continues(out[-1].dst, copy.dst, out[-1].nbytes)
            and _continues(out[-1].src, copy.src, out[-1].nbytes)
        ):
            out[-1] = Copy(out[-1].dst, out[-1].src, out[-1].nbytes + copy.nbytes)
        else:
            out.append(copy)
    return [*out]


def _continues(a: Operand, b: Operand, nbytes: int) -> bool:
    return (
        a.offset.start + nbytes == b.offset.start
        and a.offset.step == b.offset.step
        and (a.space, a.rank, a.round) == (b.space, b.rank, b.round)
    )


def alone(kind: str, rank: int, size: int, nbytes: int, in_place: int | None = 0, *, folds: bool = False) -> Plan:
    """The plan without peers: input to output. With 0 bytes, the plan that does nothing, for any size.

    A fold of one operand is not a copy: it makes 0 or 1 of truth values, and one NaN of all.
    """
    dst, src = Operand(OUT, rank, ZERO), Operand(IN, rank, ZERO)
    step = Reduce(dst, (), (src,), nbytes) if folds else Copy(dst, src, nbytes)
    return Plan(kind, "alone", rank, size, 0, 0, (Loop(1, (step,)),) if nbytes else (), in_place)
