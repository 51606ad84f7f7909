"""Accounts of the calls and waits of a communicator's ranks, as text, from looks at their outboxes.

The same graph as that of `shmring.core.sync.wait_graph`, which a rank follows at its timeout, but of copies, and for
people.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shmring.collectives.observe.look import OutboxLook, look
from shmring.core.base.text import spans

Looks = Sequence["OutboxLook | None"]
Node = TypeVar("Node", bound=Hashable)

MOST_LINES = 24


class Standing(NamedTuple):
    """The call and the wait of one rank.

    Attributes
    ----------
    state : str
        ``computing`` (in no call), ``in a call``, ``waiting``, ``asleep`` (waiting, and off its processor), ``left``,
        ``dead``, or ``unseen``, where its memory could not be read.
    call : str
        The call it is in; empty outside.
    awaits : tuple of int
        The ranks that it waits for.
    since_ns : int
        When that wait began, by CLOCK_MONOTONIC; 0: unknown.
    place : str
        The line of Python that made the call; empty if it is not known.
    """

    state: str
    call: str = ""
    awaits: tuple[int, ...] = ()
    since_ns: int = 0
    place: str = ""


def standings(looks: Looks) -> list[Standing]:
    """The standing of each rank; ``looks`` are by rank, None where a rank's memory could not be read."""
    return [_standing(looks, rank) for rank in range(len(looks))]


def _standing(looks: Looks, rank: int) -> Standing:
    look = looks[rank]
    if look is None:
        return Standing("unseen")
    if look.has_left:
        # In the middle of a call, after an error: what it was in stands there still.
        return _in_calls(looks, rank, look)._replace(state="left")
    return Standing("dead", look.current) if look.is_dead else _in_calls(looks, rank, look)


def _in_calls(looks: Looks, rank: int, look: OutboxLook) -> Standing:
    asleep = "asleep" if look.is_asleep else "waiting"
    if look.current:
        awaited = _awaited(looks, rank)
        if awaited:
            return Standing(asleep, look.current, awaited, look.waiting_since, look.place)
    if look.message:
        peer = look.message_peer
        others = tuple(r for r in range(len(looks)) if r != rank and (one := looks[r]) and not one.has_left)
        awaited = (peer,) if 0 <= peer < len(looks) else others
        return Standing(asleep, look.message, awaited, look.message_since, look.message_place)
    return Standing("in a call", look.current, place=look.place) if look.current else Standing("computing")


def _awaited(looks: Looks, rank: int) -> tuple[int, ...]:
    """The ranks with a counter below what a rank's last long wait is for; none once it is over."""
    look = looks[rank]
    if look is None or look.wait is None:
        return ()
    wait = look.wait
    others = [r for r in range(len(looks)) if r != rank and wait.rank in (-1, r)]
    seen = tuple(r for r in others if (other := looks[r]) and getattr(other, wait.counter) < wait.need)
    # Whether a rank without a look is awaited is known only while no other one can be.
    return seen if seen or not look.is_asleep else tuple(r for r in others if looks[r] is None)


def culprits(edges: Mapping[Node, Collection[Node]]) -> tuple[set[Node], set[Node]]:
    """The nodes that keep others waiting, and those that wait for one another, so that none of them can go on.

    ``edges``: which nodes each node waits for. A node that others wait for and that waits for none keeps them.
    """
    awaited = {node for targets in edges.values() for node in targets}
    keepers = {node for node in awaited if not edges.get(node)}
    left = {node for node, targets in edges.items() if targets}
    freed = set(keepers)
    while freed:  # nodes with a wait that leads to a keeper are in no cycle that matters
        freed = {node for node in left if freed & set(edges[node])}
        left -= freed
    while True:  # nodes that no other one waits for only wait for the cycle
        awaited = {target for node in left for target in edges[node]} & left
        if awaited == left:
            return keepers, left
        left = awaited


def ranks_text(ranks: Collection[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {spans(sorted(ranks), ', ')}"


def duration(nanoseconds: float) -> str:
    """A time for people."""
    seconds = nanoseconds / 1e9
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def account(looks: Looks) -> str:
    """The standings of all ranks, and the ranks that keep others waiting; equal ranks share a line."""
    now_ns = time.monotonic_ns()
    found = standings(looks)
    shared: dict[str, list[int]] = {}
    for rank, standing in enumerate(found):
        shared.setdefault(_deed(standing, looks[rank]), []).append(rank)
    lines = [f"{ranks_text(ranks)}: {deed}{_since(found, ranks, now_ns)}" for deed, ranks in shared.items()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} more"]
    keepers, cycle = culprits({rank: one.awaits for rank, one in enumerate(found)})
    if keepers:
        lines.append(f"{ranks_text(keepers)} keep{'s' if len(keepers) == 1 else ''} the others waiting")
    if cycle:
        lines.append(f"{ranks_text(cycle)} wait for one another: none of them can go on")
    return "\n".join(lines)


def account_of_copies(pages: Sequence[bytes]) -> str:
    """The account, of copies of the headers and control areas of the ranks (`Engine.account`)."""
    return account([look(one) for one in pages])


def _deed(standing: Standing, look: OutboxLook | None) -> str:
    place = f", called at {standing.place}" if standing.place else ""
    if standing.awaits:
        how = "asleep in" if standing.state == "asleep" else "in"
        left = ", has closed since" if standing.state == "left" else ""
        return f"{how} {standing.call}, waits for {ranks_text(standing.awaits)}{place}{left}"
    if standing.state == "computing" and look is not None and look.last_calls:
        return f"in no call; its last one was {look.last_calls[0]}"
    if standing.state == "unseen":
        return "its memory cannot be read from here"
    names = {"computing": "in no call yet", "in a call": f"in {standing.call}", "dead": "died", "left": "has closed"}
    return names.get(standing.state, standing.state) + place


def _since(found: Sequence[Standing], ranks: Sequence[int], now_ns: int) -> str:
    """For how long the ranks of one line have waited: the longest of them."""
    since = [found[rank].since_ns for rank in ranks if found[rank].awaits and 0 < found[rank].since_ns <= now_ns]
    return f", for {duration(now_ns - min(since))}" if since else ""
