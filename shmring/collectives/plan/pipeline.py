"""How bytes are cut into rounds, and how the rounds of a one-sync collective overlap.

In such a collective each rank *produces* a round (stages data in its slot and publishes) and then *consumes* the same
round of the others (awaits it and loads from their slots). `round_groups` cuts the blocks so that they fit the slots;
`pipelined` makes every rank produce round r + 1 before it consumes round r, so that only the first wait is exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from .limits import LINE
from .steps import IN, OUT, SLOT, ZERO, Affine, Await, Claim, Copy, Loop, Operand, Plan, Publish, Reduce, Release, Step

BlockSizes: TypeAlias = int | Sequence[int]  # one for all ranks, or one per rank
Pieces = list[int]
Load = Callable[[Pieces], int]


def even(nbytes: int, parts: int) -> list[int]:
    """The ``parts + 1`` bounds that cut ``nbytes`` into equal parts of whole lines; only the last may end in mid-line.

    With fewer lines than parts some parts are empty.
    """
    lines = -(-nbytes // LINE)
    return [min(lines * j // parts * LINE, nbytes) for j in range(parts + 1)]


def slot_alignment(blocks: int, capacity: int, itemsize: int) -> int:
    """The alignment of ``blocks`` pieces that share a slot: a line, or an item where a slot is too small for lines."""
    for alignment in (LINE, itemsize):
        # The factor 2 makes the remainder of `round_groups` at least halve from group to group.
        if 2 * max(blocks, 1) * alignment <= capacity:
            return alignment
    raise ValueError(f"{capacity} bytes per round are too few for {blocks} blocks of {itemsize}-byte items")


def round_up(nbytes: int, alignment: int) -> int:
    """``nbytes`` rounded up to a multiple of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def blocks_of(nbytes: BlockSizes, size: int) -> tuple[list[int], list[int]]:
    """Size and offset of every rank's block, from one size for all or one per rank."""
    sizes = [nbytes] * size if isinstance(nbytes, int) else list(nbytes)
    if len(sizes) != size:
        raise ValueError(f"{len(sizes)} block sizes for {size} ranks")
    return sizes, [0, *accumulate(sizes)][:-1]


class RoundGroup(NamedTuple):
    """``times`` equal rounds from ``round`` on. The i-th moves ``pieces[b]`` bytes of each block b, which begin at
    ``starts[b] + i * pieces[b]``, and fills ``load`` bytes of the fullest slot.
    """

    round: int
    times: int
    starts: Pieces
    pieces: Pieces
    load: int


def round_groups(nbytes: Sequence[int], capacity: int, load: Load = max, alignment: int = LINE) -> list[RoundGroup]:
    """Cut blocks of ``nbytes[b]`` bytes into rounds, the same number of rounds for all blocks.

    ``load`` computes the bytes of the fullest slot from the pieces: their maximum if each lies in a slot of its own,
    their sum if they share one. A long block goes in long pieces, a short one in short pieces, so that one loop serves
    blocks of all lengths, followed by one round with the remainder. A remainder that does not fit a slot (blocks of
    very different lengths in very many rounds) is cut in the same way.
    """
    left = list(nbytes)
    starts = [0] * len(left)
    found: list[RoundGroup] = []
    rounds = 0

    def loaded(pieces: Pieces) -> int:
        return load([round_up(n, alignment) for n in pieces])

    def add(times: int, pieces: Pieces) -> None:
        nonlocal left, starts, rounds
        if times:
            found.append(RoundGroup(rounds, times, starts, pieces, loaded(pieces)))
            rounds += times
            left = [n - times * piece for n, piece in zip(left, pieces, strict=True)]
            starts = [at + times * piece for at, piece in zip(starts, pieces, strict=True)]

    while any(left):
        least = -(-loaded(left) // capacity) or 1
        longer = [round_up(-(-n // least), alignment) for n in left]
        shorter = [n // least // alignment * alignment for n in left]
        spare = [round_up(-(-n // (least + 1)), alignment) for n in left]
        for times, pieces in ((least, longer), (least, shorter), (least + 1, spare)):
            last = [n - (times - 1) * piece for n, piece in zip(left, pieces, strict=True)]
            if min(last) >= 0 and loaded(last) <= capacity and (times == 1 or loaded(pieces) <= capacity):
                add(times if last == pieces else times - 1, pieces)
                if any(left):
                    add(1, left)
                break
        else:
            # The remainder is less than least * alignment per block, at most half (see `slot_alignment`).
            add(least, shorter)
    return found


class Iteration(NamedTuple):
    """Round ``first`` of a group, or, with ``step`` 1 and inside a loop, all of its rounds from ``first`` on."""

    group: RoundGroup
    first: int
    step: int

    @property
    def round(self) -> Affine:
        """The number of the round in the collective."""
        return Affine(self.group.round + self.first, self.step)

    def at(self, block: int, base: int) -> Affine:
        """Offset of the piece of ``block`` that moves in this round, for a block that begins at ``base``."""
        piece = self.group.pieces[block]
        return Affine(base + self.group.starts[block] + self.first * piece, self.step * piece)


IterationSteps = Callable[[Iteration], Iterable[Step]]


def no_steps(it: Iteration) -> Iterable[Step]:
    """Of a rank that produces, or consumes, nothing."""
    return ()


def staging(rank: int, block: int) -> IterationSteps:
    """Of a rank that stages a block of its input, alone in its slot."""

    def produce(it: Iteration) -> Iterable[Step]:
        if n := it.group.pieces[block]:
            yield Claim(it.round)
            yield Copy(Operand(SLOT, rank, ZERO, it.round), Operand(IN, rank, it.at(block, 0)), n)
            yield Publish(it.round)

    return produce


def packed(it: Iteration, src: int, alignment: int) -> list[int]:
    """Offset of each rank's piece in the slot of ``src``, which stages one for every rank but itself."""
    return [0, *accumulate(round_up(n, alignment) if r != src else 0 for r, n in enumerate(it.group.pieces))]


def staging_packed(rank: int, places: Sequence[int], alignment: int) -> IterationSteps:
    """Of a rank that stages the blocks of the others, which begin at ``places`` of its input, together in its slot."""

    def produce(it: Iteration) -> Iterable[Step]:
        offsets = packed(it, rank, alignment)
        if offsets[-1]:
            yield Claim(it.round)
            yield from merged(
                Copy(Operand(SLOT, rank, Affine(offsets[j]), it.round), Operand(IN, rank, it.at(j, places[j])), n)
                for j, n in enumerate(it.group.pieces)
                if j != rank and n
            )
            yield Publish(it.round)

    return produce


def pipelined(cut: Sequence[RoundGroup], produce: IterationSteps, consume: IterationSteps) -> tuple[Loop, ...]:
    """Produce round r + 1, then consume round r, for all rounds of all groups."""
    loops: list[Loop] = []
    once = list(produce(Iteration(cut[0], 0, 0)))
    for group, following in zip(cut, [*cut[1:], None], strict=True):
        if group.times > 1:
            loops.append(Loop(1, tuple(once)))
            loops.append(Loop(group.times - 1, (*produce(Iteration(group, 1, 1)), *consume(Iteration(group, 0, 1)))))
            once = []
        if following is not None:
            once += produce(Iteration(following, 0, 0))
        once += consume(Iteration(group, group.times - 1, 0))
    if once and isinstance(once[-1], Release):
        once.pop()  # the end of the plan releases the last round
    loops.append(Loop(1, tuple(once)))
    return tuple(loop for loop in loops if loop.steps)


def rounds_of(cut: Sequence[RoundGroup]) -> int:
    """The number of rounds of all groups."""
    return cut[-1].round + cut[-1].times


def extent(cut: Sequence[RoundGroup]) -> tuple[int, int]:
    """Rounds of all groups, and bytes of the fullest slot: ``rounds`` and ``used_nbytes`` of a `Plan`."""
    return rounds_of(cut), max(group.load for group in cut)


def release_all(rounds: int) -> tuple[Loop, ...]:
    """For a rank that reads nothing: release its rounds at once, so that no claim of another rank waits for it."""
    return (Loop(1, (Release(Affine(rounds - 2)),)),) if rounds > 1 else ()


def peers(rank: int, size: int) -> list[int]:
    """The other ranks, starting with the next one, so that no two ranks begin with the same peer."""
    return [*range(rank + 1, size), *range(rank)]


def await_ranks(round: Affine, ranks: Sequence[int], size: int) -> list[Step]:
    """A step that waits for these other ranks; no step if there are none."""
    return [Await(round) if len(ranks) == size - 1 else Await(round, tuple(ranks))] if ranks else []


def merged(steps: Iterable[Step]) -> list[Step]:
    """The steps, with adjacent copies merged where both places continue. Only outside loops, or of equal stride."""
    out: list[Step] = []
    for step in steps:
        last = out[-1] if out else None
        if (
            isinstance(last, Copy)
            and isinstance(step, Copy)
            and _continues(last.dst, step.dst, last.nbytes)
            and _continues(last.src, step.src, last.nbytes)
        ):
            out[-1] = Copy(last.dst, last.src, last.nbytes + step.nbytes)
        else:
            out.append(step)
    return out


def _continues(a: Operand, b: Operand, nbytes: int) -> bool:
    return (
        a.offset.start + nbytes == b.offset.start
        and a.offset.step == b.offset.step
        and (a.space, a.rank, a.round) == (b.space, b.rank, b.round)
    )


def alone(kind: str, rank: int, size: int, nbytes: int, in_place: int | None = 0, *, folds: bool = False) -> Plan:
    """The plan of a rank without peers: input to output. With 0 bytes, the empty plan, for any size.

    A fold of one operand is not a copy: it makes truth values 0 or 1, and NaNs canonical.
    """
    dst, src = Operand(OUT, rank, ZERO), Operand(IN, rank, ZERO)
    step = Reduce(dst, (), (src,), nbytes) if folds else Copy(dst, src, nbytes)
    return Plan(kind, "alone", rank, size, 0, 0, (Loop(1, (step,)),) if nbytes else (), in_place)
