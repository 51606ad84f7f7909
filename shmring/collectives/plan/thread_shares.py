"""Thread shares: a collective split among the threads of each rank, each of which executes a smaller collective.

The vector, or each block of it, is cut into as many shares as there are threads. Thread t of a rank executes the
collective of the t-th shares with the threads t of the other ranks, over slots and counters of its own. Shares have no
byte in common, so the threads of a rank do not synchronise until all are done; and one `Reduce` in rank order still
folds every element, so results have the same bits for any number of threads.

The plan of a share is that of a collective of the share's size, with its blocks spaced as those of the whole. All
shares but the last are equal, so their threads use the same plan: the engine adds ``t * nbytes`` to the addresses of IN
and OUT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .kinds import COLLECTIVES
from .limits import LINE, Costs
from .pipeline import round_up
from .steps import IN, OUT, Affine, Copy, Loop, Operand, Plan, Reduce, Space, Step

# The buffers that hold the packed blocks of several ranks; the others hold a vector, or one block.
BLOCKS: dict[str, tuple[Space, ...]] = {
    kind.name: tuple(at for at, blocks in ((IN, kind.blocks_in), (OUT, kind.blocks_out)) if blocks)
    for kind in COLLECTIVES.values()
}


class ThreadShares(NamedTuple):
    """Bytes of the share of the last thread, and of the share of every other thread."""

    nbytes: int
    last_nbytes: int


def split_limit(threads: int, costs: Costs) -> float:
    """Bytes of a message from which ``threads`` threads are faster than one.

    Every rank touches at least twice the bytes of the message (broadcast). The threads save the fraction
    ``1 - 1 / threads`` of that time, and add the time to wake the helper threads.
    """
    if threads < 2:
        return float("inf")
    return waking(threads, costs) * costs.bytes_per_second / 2 * threads / (threads - 1)


def waking(threads: int, costs: Costs) -> float:
    """Seconds to wake all helper threads of ``threads`` threads, in a binary tree."""
    return (threads.bit_length() - 1) * costs.dispatch


def cut(kind: str, size: int, nbytes: int, threads: int, limit: float) -> ThreadShares | None:
    """The shares of a vector or block of ``nbytes``; None if one thread executes the whole call.

    Equal on all ranks, since it depends on its arguments only. Shares are whole lines, except for the last.
    """
    whole = nbytes * COLLECTIVES[kind].most_blocks(size)
    if threads < 2 or whole < limit:
        return None
    share = round_up(-(-nbytes // threads), LINE)
    last = nbytes - (threads - 1) * share
    return ThreadShares(share, last) if last > 0 else None


def spaced(plan: Plan, nbytes: int, pitch: int) -> Plan:
    """A plan for blocks of ``nbytes`` each, changed for buffers in which blocks begin ``pitch`` bytes apart."""
    spaces = BLOCKS[plan.kind]

    def moved(o: Operand, by: int = 0) -> Operand:
        at = o.offset.start + by
        if o.space in spaces:
            at = at // nbytes * pitch + at % nbytes
        return o._replace(offset=Affine(at, o.offset.step))

    def parts(step: Step) -> Iterable[Step]:
        if isinstance(step, Reduce):
            also, sources = tuple(map(moved, step.also)), tuple(map(moved, step.sources))
            yield step._replace(dst=moved(step.dst), also=also, sources=sources)
        elif isinstance(step, Copy):
            # A copy may cover several whole blocks, which are no longer adjacent; in a loop it stays within its block.
            ends = [o.offset.start for o in (step.dst, step.src) if o.space in spaces]
            done = 0
            while done < step.nbytes:
                n = min([step.nbytes - done, *(nbytes - (at + done) % nbytes for at in ends)])
                yield Copy(moved(step.dst, done), moved(step.src, done), n)
                done += n
        else:
            yield step

    loops = tuple(Loop(loop.times, tuple(part for step in loop.steps for part in parts(step))) for loop in plan.loops)
    in_place = None if plan.in_place is None else plan.in_place // nbytes * pitch
    return plan._replace(loops=loops, in_place=in_place)
