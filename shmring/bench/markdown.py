"""The results of a run as Markdown, in the form of the tables in ``docs/benchmarks.md``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from shmring.placement.topology import Topology
from shmring.version import __version__

from .competitors import OURS, Competitor, RankLayout
from .metrics import size_text, time_text
from .report import Standing
from .runner import Row, Settings

FAR = 2.0  # a round trip at least so many times as long as a near one


def as_markdown(
    rows: Sequence[Row],
    competitors: Sequence[Competitor],
    layout: RankLayout,
    settings: Settings,
    machine: Topology,
) -> str:
    """The machine, what was compared, and a table for each placement of the processors that the run has met."""
    letters = _letters([one.name for one in competitors if not one.is_ours])
    versions = {name: result.version for row in rows for name, result in row.results.items() if result.version}
    peers = [f"{versions.get(name, name)} ({letter})" for name, letter in letters.items()]
    inputs = ", inputs rewritten before each call and the time of that included" if settings.rewrite else ""
    lines = [
        f"### {_machine(machine)}",
        "",
        f"shmring {__version__} and {', '.join(peers) or 'nothing else'}; {_ranks(layout)}, {settings.dtype}{inputs}.",
        "Microseconds per call, medians: shmring, the fastest of all others, and the ratio of the two cycle by cycle.",
        "Empty: not measured in that placement.",
    ]
    for title, group in _placements(rows, layout):
        lines += ["", f"{title}:", "", *_table(group, competitors, letters)]
    return "\n".join(lines)


def _machine(machine: Topology) -> str:
    sizes = {cache.level: cache.nbytes for cache in machine.caches if cache.level > 1}
    caches = " and ".join(size_text(sizes[level]) for level in sorted(sizes))
    nodes = f", {len(machine.nodes)} NUMA nodes" if len(machine.nodes) > 1 else ""
    model = machine.model or machine.architecture
    return f"{model}, {len(machine.processors)} processors{nodes}{f', {caches} of cache' if caches else ''}"


def _ranks(layout: RankLayout) -> str:
    if layout.processors is None:
        return f"{layout.size} ranks on {layout.nprocessors} processors, not bound"
    return f"{layout.size} ranks, one on each of the processors {', '.join(str(one) for one, *_ in layout.processors)}"


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Each name's shortest beginning that no other name has, in the order of the names."""
    found = {}
    for name in names:
        lengths = range(1, len(name) + 1)
        others = [other for other in names if other != name]
        found[name] = next((name[:n] for n in lengths if not any(o.startswith(name[:n]) for o in others)), name)
    return found


def _placements(rows: Sequence[Row], layout: RankLayout) -> list[tuple[str, list[Row]]]:
    """The rows, or their cycles, by the distance of the processors; the title of each group."""
    if layout.crowded:  # a round trip then is the scheduler's
        return [("All sizes", list(rows))]
    parts = [part for row in rows for part in row.by_placement()]
    trips = sorted(statistics.median(part.trip_ns) for part in parts if part.trip_ns)
    if not trips:
        return [("All sizes", parts)]
    gap, border = max(((b / a, b) for a, b in pairwise(trips)), default=(1.0, trips[0]))
    if gap < FAR:
        return [(f"Round trips of {_span(trips)} us", parts)]
    groups = [
        (name, [part for part in parts if part.trip_ns and (statistics.median(part.trip_ns) >= border) == is_far])
        for name, is_far in (("Near", False), ("Far", True))
    ]
    return [
        (f"{name}, round trips of {_span([statistics.median(part.trip_ns) for part in group])} us", group)
        for name, group in groups
    ]


def _span(trips_ns: Sequence[float]) -> str:
    low, high = (f"{ns / 1e3:.2f}" for ns in (min(trips_ns), max(trips_ns)))
    return low if low == high else f"{low}-{high}"


def _table(rows: Sequence[Row], competitors: Sequence[Competitor], letters: dict[str, str]) -> list[str]:
    """A line for each collective and form of shmring, a column for each size; what has no size is in the first one."""
    sizes = sorted({row.nbytes for row in rows if row.nbytes}) or [0]
    forms = [one.name for one in competitors if one.is_ours]
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        for form in forms:
            if row.results[form].us:
                cells.setdefault((row.op, form), {})[row.nbytes or sizes[0]] = _cell(row, competitors, form, letters)
    heads = [size_text(nbytes) if nbytes else "" for nbytes in sizes]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(sizes)}"]
    for (op, form), by_size in cells.items():
        name = op if form == OURS[0] else f"{op}, {form}"
        lines.append(f"| {name} | {' | '.join(by_size.get(nbytes, '') for nbytes in sizes)} |")
    return lines


def _cell(row: Row, competitors: Sequence[Competitor], form: str, letters: dict[str, str]) -> str:
    standing = Standing.of(row, competitors, form)
    ours = time_text(row.median(form))
    if standing.peer is None or standing.ratio is None:
        return ours
    return f"{ours}, {time_text(row.median(standing.peer))} {letters[standing.peer]}, **{standing.ratio:.2f}**"
