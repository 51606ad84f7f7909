"""Shares: one collective made by several threads of every rank, each of which makes a smaller one.

The vector, or each block of it, is cut into as many shares as there are threads. Thread t of a rank makes the
collective of the t-th shares with the threads t of the other ranks, over slots and counters of its own. Shares have no
byte in common, so the threads of a rank need nothing of one another until all are done; and every element is still
folded by one `Reduce` in rank order, so results have the same bits for any number of threads.

A share's plan is that of a collective of the share's size, its blocks moved apart to where the whole one's lie. The
shares are equal but for the last, so one plan does for all threads but the last one: the engine adds ``t * nbytes`` to
the addresses of IN and OUT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .choose import choose
from .cost import cost
from .limits import DEFAULT_COSTS, LINE, Costs, Limits
from .pipeline import up
from .steps import IN, OUT, Affine, Copy, Loop, Operand, Plan, Reduce, Space, Step

# A strand's outbox unless configured smaller (SHMRING_HELPER_SLOT_NBYTES in _c/layout.h).
SHARE_LIMITS = Limits(slot_nbytes=65536)

# Where the blocks of all ranks lie packed, one behind the other; elsewhere lies a vector, or one block.
BLOCKS: dict[str, tuple[Space, ...]] = {
    "reduce_scatter": (IN,),
    "scatter": (IN,),
    "all_gather": (OUT,),
    "gather": (OUT,),
    "all_to_all": (IN, OUT),
}


class Shares(NamedTuple):
    """Bytes of every thread's share of the vector or block but the last one's, and of the last one's."""

    nbytes: int
    last_nbytes: int


def split_limit(threads: int, costs: Costs = DEFAULT_COSTS) -> float:
    """Bytes of a whole message from which ``threads`` threads are quicker than one.

    Every rank touches at least twice the bytes of the message (broadcast). Of the time that takes, all but one part in
    ``threads`` is saved, and one waking is paid.
    """
    if threads < 2:
        return float("inf")
    return waking(threads, costs) * costs.bytes_per_second / 2 * threads / (threads - 1)


def waking(threads: int, costs: Costs = DEFAULT_COSTS) -> float:
    """Seconds until the helpers of a team of ``threads`` are awake: the depth of the tree in which they are woken."""
    return (threads.bit_length() - 1) * costs.dispatch


def seconds(kind: str, size: int, nbytes: int, threads: int, costs: Costs = DEFAULT_COSTS) -> float:
    """What a large collective takes by the model, as long as memory gives all threads what one of them draws alone.

    Its bytes at the pace of a thread, the synchronisations that nothing hides, and the waking of the helpers.
    """
    shares = cut(kind, size, nbytes, threads, 0)
    part = nbytes if shares is None else shares.nbytes
    limits = Limits() if shares is None else SHARE_LIMITS
    plans = [choose(kind, rank, size, part, limits=limits) for rank in range(size)]
    touched = max(cost(plan).touched_nbytes for plan in plans)
    exposed = (2 if plans[0].algorithm in ("two_shot", "sliced") else 1) * costs.latency
    return touched / costs.bytes_per_second + exposed + waking(threads, costs)


def cut(kind: str, size: int, nbytes: int, threads: int, limit: float) -> Shares | None:
    """The shares of a vector or block of ``nbytes``; None if one thread makes the call alone.

    Equal on all ranks, since it depends on nothing but its arguments. Shares are whole lines but for the last.
    """
    whole = nbytes * size if kind in BLOCKS else nbytes
    if threads < 2 or whole < limit:
        return None
    share = up(-(-nbytes // threads), LINE)
    last = nbytes - (threads - 1) * share
    return Shares(share, last) if last > 0 else None


def spaced(plan: Plan, nbytes: int, pitch: int) -> Plan:
    """The same plan, of blocks of ``nbytes`` each, for buffers in which blocks begin ``pitch`` bytes apart."""
    spaces = BLOCKS.get(plan.kind, ())

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
            # One copy may take several whole blocks, which lie apart now; in a loop it never leaves its block.
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
