"""The run stored with the package, which ``shmring bench`` prints beside its own, and the peers that a run lacks."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shmring.placement.topology import discover

from . import metrics
from .competitors import Competitor, RankLayout, is_ours
from .metrics import size_text, time_text
from .report import Verdict
from .runner import Row
from .tables import line

FILE = Path(__file__).with_name("stored_run.json")
WHERE = {"mpich": "mpi4py", "openmpi": "mpi4py", "intelmpi": "mpi4py", "gloo": "torch"}
WIDTHS = (9, 17, 15, 8, 24, 24)


@cache
def stored() -> dict[str, Any]:
    """The run: its machine, date and versions, and the median microseconds of each row by competitor."""
    return json.loads(FILE.read_text())


def machine_name(machine: Mapping[str, Any]) -> str:
    """A machine, as a report has it, in a few words."""
    return f"{machine['model'] or machine['architecture']}, {len(machine['processors'])} processors"


def condensed(reports: Iterable[Mapping[str, Any]], date: str, machine: str) -> dict[str, Any]:
    """The form in which a run is stored, of reports that ``--json`` has written."""
    rows: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    for report in reports:
        versions |= {one["name"]: one["title"] for one in report["competitors"]}
        for row in report["rows"]:
            us = {name: float(time_text(one["median_us"])) for name, one in row["results"].items() if one.get("us")}
            trip_us = round(statistics.median(row["round_trip_ns"]) / 1e3, 3)
            rows.append({key: row[key] for key in ("op", "dtype", "ranks", "nbytes")} | {"trip_us": trip_us, "us": us})
    return {"shmring": report["shmring"], "machine": machine, "date": date, "versions": versions, "rows": rows}


def beside(rows: Sequence[Row], competitors: Sequence[Competitor]) -> list[str]:
    """Lines that compare the rows with those of the stored run; none if it has none of them."""
    run = stored()
    there = {(one["op"], one["dtype"], one["ranks"], one["nbytes"]): one for one in run["rows"]}
    lines: list[str] = []
    last = ""
    for row in rows:
        other = there.get((row.op, row.dtype, row.size, row.nbytes))
        ours = next((one.name for one in competitors if one.is_ours and row.results[one.name].us), None)
        if other is None or ours is None or ours not in other["us"]:
            continue
        peers = {name: us for name, us in other["us"].items() if not is_ours(name)}
        peer_there = min(peers, key=peers.__getitem__, default=None)
        peer_here = Verdict.of(row, competitors, ours).peer
        cells = [
            size_text(row.nbytes) if row.nbytes else "-",
            f"{metrics.summary(row.trip_ns)['median'] / 1e3:.2f}, {other['trip_us']:.2f}" if row.trip_ns else "",
            time_text(row.median(ours)),
            time_text(other["us"][ours]),
            "" if peer_here is None else f"{time_text(row.median(peer_here))} {peer_here}",
            "" if peer_there is None else f"{time_text(peers[peer_there])} {peer_there}",
        ]
        if row.op != last:
            lines.append(f"  {row.op}, {row.dtype}, {row.size} processes, microseconds:")
            lines.append(line(("bytes", "trip here, there", ours, "there", "fastest other", "there"), WIDTHS))
        last = row.op
        lines.append(line(cells, WIDTHS))
    here = machine_name(dataclasses.asdict(discover()))
    head = f"\nHere: {here}. There: {run['machine']}, {run['date']}, stored with shmring {run['shmring']}."
    return [head, *lines] if lines else []


def left_out(
    rows: Sequence[Row], found: Sequence[Competitor], problems: Mapping[str, str], layout: RankLayout
) -> list[str]:
    """Lines that name what this run could not measure, each with the reason."""
    lines = [f"{name}: {problem}" for name, problem in problems.items()]
    names = {one.name.partition("@")[0] for one in found}
    ops = {one.op for one in rows}
    there = [row["us"].keys() for row in stored()["rows"] if row["op"] in ops]
    known = {name for us in there if us & names for name in us}  # not those of the other comparison
    for name in sorted(known - names - set(problems)):
        if not is_ours(name):
            lines.append(f"{name}: no Python here has {WHERE.get(name, name)}; --python LABEL=PATH looks in another")
    for name in (one.name for one in found):
        reasons = {row.results[name].problem for row in rows if name in row.results and not row.results[name].us}
        if reasons and not any(name in row.results and row.results[name].us for row in rows):
            lines.append(f"{name}: {next(iter(reasons))}")
    if layout.crowded:
        lines.append(f"{layout.size} ranks with a processor each: there are {layout.nprocessors}")
    elif rows and all(len(row.by_placement()) == 1 for row in rows):
        lines.append("other distances of the processors than this one; --bind 0,2 measures another pair")
    return ["\nNot measured:", *(f"  {text}" for text in lines)] if lines else []
