"""The worked example in `shmring.collectives.plan.two_shot` is the plan that its builder makes."""

import itertools

from shmring.collectives.plan import two_shot
from shmring.collectives.plan.limits import LINE, Limits
from shmring.collectives.plan.reduction import all_reduce_two_shot
from shmring.collectives.plan.steps import IN, OUT, Await, Claim, Copy, Publish, Reduce, Release

RANKS, CHUNKS = 3, 2
# A slot of two lines: a slice has one line, since a rank stages the slices of both other ranks.
LIMITS = Limits(slot_nbytes=(RANKS - 1) * LINE)
NBYTES = CHUNKS * RANKS * LINE
ROUNDS = ("C0", "C1", "R0", "R1")


def slice_name(operand):
    """The chunk and the slice at a place in the vector: ``1b`` is the second slice of chunk 1."""
    chunk, j = divmod(operand.offset.start // LINE, RANKS)
    return f"{chunk}{'abc'[j]}"


def words(step):
    match step:
        case Claim() | Publish() | Await() | Release():
            return [type(step).__name__.lower(), ROUNDS[step.round.start]]
        case Copy() if step.src.space is IN:
            slices = [
                slice_name(step.src._replace(offset=step.src.offset._replace(start=at)))
                for at in range(step.src.offset.start, step.src.offset.start + step.nbytes, LINE)
            ]
            return ["stage", *slices]
        case Copy() if step.dst.space is OUT:
            return ["copy", slice_name(step.dst)]
        case Reduce():
            return ["fold", slice_name(step.dst)]
    raise AssertionError(step)


def example():
    """A row for each step, a column for each rank; copies of the same kind in a row are one step."""
    columns = []
    for rank in range(RANKS):
        (loop,) = all_reduce_two_shot(rank, RANKS, NBYTES, limits=LIMITS).loops
        column = []
        for verb, group in itertools.groupby(map(words, loop.steps), key=lambda found: found[0]):
            column.append(" ".join([verb, *(word for found in group for word in found[1:])]))
        columns.append(column)
    rows = [["rank 0", "rank 1", "rank 2"], *map(list, zip(*columns, strict=True))]
    widths = [max(len(row[k]) for row in rows) for k in range(RANKS)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "  ".join("=" * width for width in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def test_the_worked_example_is_what_the_builder_makes():
    assert example() in two_shot.__doc__, f"write this into shmring/collectives/plan/two_shot.py:\n{example()}"
