"""The results of a run for programs: the comparison in each row, and everything as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shmring.placement.topology import discover
from shmring.version import __version__

from . import metrics
from .competitors import Competitor, RankLayout
from .runner import Row, Settings


class Verdict(NamedTuple):
    """The comparison in a row: the name of the shmring entry, of the fastest peer, and the ratio of their times."""

    ours: str | None
    peer: str | None
    ratio: float | None

    @classmethod
    def of(cls, row: Row, competitors: Sequence[Competitor], ours: str = "shmring") -> Verdict:
        """Compare ``ours`` (or the first shmring entry that was timed) with the fastest of the others."""
        timed = [one for one in competitors if row.results[one.name].us]
        own = [one.name for one in timed if one.is_ours]
        peers = [one.name for one in timed if not one.is_ours]
        name = ours if ours in own else own[0] if own else None
        peer = min(peers, key=lambda one: row.median(one) or 0.0, default=None)
        if name is None or peer is None:
            return cls(name, peer, None)
        own_us, peer_us = row.results[name].us, row.results[peer].us
        if row.op in metrics.ONCE:  # without turns
            return cls(name, peer, statistics.median(own_us) / statistics.median(peer_us))
        return cls(name, peer, metrics.ratio(own_us, peer_us))


def as_json(
    rows: Sequence[Row],
    competitors: Sequence[Competitor],
    problems: Mapping[str, str],
    layout: RankLayout,
    settings: Settings,
) -> dict[str, Any]:
    """Machine, settings, competitors, and for each row the times of all cycles."""
    versions = {name: result.version for row in rows for name, result in row.results.items() if result.version}
    return {
        "shmring": __version__,
        "machine": dataclasses.asdict(discover()),
        "settings": {**dataclasses.asdict(settings), **dataclasses.asdict(layout)},
        "competitors": [
            {"name": one.name, "title": versions.get(one.name, one.title), "python": one.python, "is_ours": one.is_ours}
            for one in competitors
        ],
        "problems": dict(problems),
        "rows": [_row(row, competitors) for row in rows],
    }


def _row(row: Row, competitors: Sequence[Competitor]) -> dict[str, Any]:
    verdict = Verdict.of(row, competitors)
    return {
        "op": row.op,
        "dtype": row.dtype,
        "ranks": row.size,
        "nbytes": row.nbytes,
        "round_trip_ns": row.trip_ns,
        "copy_us": row.copy_us,
        "best_peer": verdict.peer,
        "ratio": verdict.ratio,
        "results": {name: _result(row, name) for name in row.results},
    }


def _result(row: Row, name: str) -> dict[str, Any]:
    result = row.results[name]
    facts: dict[str, Any] = {"statement": result.statement, "problem": result.problem or None}
    if result.us:
        spread = metrics.summary(result.us)
        facts |= {
            "verified": True,
            **{f"{key}_us": value for key, value in spread.items()},
            "algbw_gbs": metrics.algorithm_bandwidth(row.op, row.nbytes, spread["median"]),
            "busbw_gbs": metrics.bus_bandwidth(row.op, row.nbytes, spread["median"], row.size),
            "calls_in_slice": result.times,
            "us": result.us,
        }
        if result.rewrite_us:
            facts["rewrite_us"] = result.rewrite_us
        if result.seen:
            facts["seen"] = result.seen
        if result.trips_us:
            facts["percentiles_us"] = metrics.percentiles(result.trips_us)
    return facts
