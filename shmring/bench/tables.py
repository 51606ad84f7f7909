"""The results as tables: for a terminal, row by row, and as Markdown in the form of ``docs/benchmarks.md``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from shmring.placement.topology import Topology
from shmring.version import __version__

from . import metrics
from .competitors import OURS, Competitor, RankLayout
from .metrics import size_text, time_text
from .report import Verdict
from .runner import Row, Settings

CELL = 14
FAR = 2.0  # a round trip at least so many times as long as a near one
_LONG = ("size", "", "median", "q1", "q3", "min", "algbw", "busbw", "cycles", "rewriting")


def line(cells: Sequence[str], widths: Sequence[int] | None = None) -> str:
    """A line of a table: right-aligned in columns of these widths, or Markdown without them."""
    if widths is None:
        return f"| {' | '.join(cells)} |"
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


class Table:
    """Lines for a terminal. ``is_long``: a line with all numbers for each competitor; ``is_split``: rows are divided
    where the placement of the processors changed."""

    def __init__(self, competitors: Sequence[Competitor], is_long: bool = False, is_split: bool = False) -> None:
        self.competitors = competitors
        self.is_long = is_long
        self.is_split = is_split
        cells = [max(CELL, len(one.name)) for one in competitors]
        self.widths = [8, 16, *[9] * 8] if is_long else [8, 7, 7, *cells, 7, 7, 0]
        self._op = ""
        self._reported: set[tuple[str, str, str]] = set()

    def lines(self, row: Row) -> list[str]:
        """The lines of a new row, after a heading if it starts another call."""
        lines = [] if row.op == self._op else self._head(row)
        self._op = row.op
        for one in row.by_placement() if self.is_split else [row]:
            lines += self._long(one) if self.is_long else [line(self._cells(one), self.widths)]
        for name, result in row.results.items():
            if result.trips_us:
                shares = metrics.percentiles(result.trips_us)
                lines.append(f"{name:>24}: " + ", ".join(f"{key} {time_text(us)}" for key, us in shares.items()))
            if result.seen and result.us:
                lines.append(f"{name:>24}: at most {time_text(max(result.us))}, {result.seen}")
        return lines + self._problems(row)

    def _head(self, row: Row) -> list[str]:
        if row.op in metrics.CHANNEL_OPS:
            title = f"{row.op}: {metrics.CHANNEL_OPS[row.op][0]}"
        else:
            what = "" if row.op == "barrier" else f", {row.dtype}"
            title = f"{row.op}{what}, {row.size} ranks: microseconds per call"
        names = [one.name for one in self.competitors]
        heads = list(_LONG) if self.is_long else ["size", "trip", "copy", *names, "algbw", "busbw", " speed"]
        return ["", f"{title}, median and half the interquartile range", line(heads, self.widths)]

    def _cells(self, row: Row) -> list[str]:
        verdict = Verdict.of(row, self.competitors)
        ratio = "" if verdict.ratio is None else f" {times_text(verdict.ratio)} {verdict.peer}"
        bandwidths = ("", "") if verdict.ours is None else _bandwidths(row, verdict.ours)
        return [*_machine_cells(row), *(_cell(row, one.name) for one in self.competitors), *bandwidths, ratio]

    def _long(self, row: Row) -> list[str]:
        size, trip, copy = _machine_cells(row)
        lines = [f"{size:>8}: round trip {trip} us, a copy on all ranks {copy} us"]
        for one in self.competitors:
            result = row.results[one.name]
            if result.us:
                spread = metrics.summary(result.us)
                rewriting = time_text(metrics.summary(result.rewrite_us)["median"]) if result.rewrite_us else ""
                numbers = [time_text(spread[key]) for key in ("median", "q1", "q3", "min")]
                cells = [size, one.name, *numbers, *_bandwidths(row, one.name), f"{len(result.us)}", rewriting]
                lines.append(line(cells, self.widths))
        verdict = Verdict.of(row, self.competitors)
        if verdict.ratio is not None:
            lines.append(f"{'':>8} {verdict.ours} is {times_text(verdict.ratio)} {verdict.peer}")
        return lines

    def _problems(self, row: Row) -> list[str]:
        problems = {"ceiling": row.ceiling_problem, **{name: result.problem for name, result in row.results.items()}}
        new = {(row.op, name, problem) for name, problem in problems.items() if problem} - self._reported
        self._reported |= new
        return [f"{'':>8} {name}: {problem}" for _, name, problem in sorted(new)]


def _cell(row: Row, name: str) -> str:
    us = row.results[name].us
    if not us:
        return "WRONG" if row.results[name].problem.startswith("WRONG") else "-"
    spread = metrics.summary(us)
    return f"{time_text(spread['median'])} ±{50 * (spread['q3'] - spread['q1']) / spread['median']:.0f}%"


def times_text(ratio: float) -> str:
    """A ratio of times in words: 0.0007 is ``1400 times as fast as``."""
    speed = 1 / ratio
    return f"{speed:.2g} times as fast as" if speed < 10 else f"{float(f'{speed:.2g}'):.0f} times as fast as"


def speed_text(ratio: float) -> str:
    """A ratio of times as a number, for tables: 0.0007 is ``1429``."""
    speed = 1 / ratio
    return f"{speed:.2f}" if speed < 2 else f"{speed:.1f}" if speed < 10 else f"{speed:.0f}"


def _bandwidths(row: Row, name: str) -> tuple[str, str]:
    us = row.median(name)
    if us is None or not metrics.bus_factor(row.op, row.size):
        return "-", "-"
    return (
        f"{metrics.algorithm_bandwidth(row.op, row.nbytes, us):.3g}",
        f"{metrics.bus_bandwidth(row.op, row.nbytes, us, row.size):.3g}",
    )


def _machine_cells(row: Row) -> tuple[str, str, str]:
    """Size, round trip, copy."""
    return (
        size_text(row.nbytes) if row.nbytes else "-",
        f"{metrics.summary(row.trip_ns)['median'] / 1e3:.3f}" if row.trip_ns else "-",
        time_text(metrics.summary(row.copy_us)["median"]) if row.copy_us else "-",
    )


# ---- Markdown ----


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
    text = [
        f"### {_machine(machine)}",
        "",
        f"shmring {__version__} and {', '.join(peers) or 'nothing else'}; {_ranks(layout)}, {settings.dtype}{inputs}.",
        "Microseconds per call, medians: shmring, the fastest of all others, and how many times as fast shmring is, "
        "cycle by cycle.",
        "Empty: not measured in that placement.",
    ]
    for title, group in _placements(rows, layout):
        text += ["", f"{title}:", "", *_by_size(group, competitors, letters)]
    return "\n".join(text)


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


def _by_size(rows: Sequence[Row], competitors: Sequence[Competitor], letters: dict[str, str]) -> list[str]:
    """A line for each collective and form of shmring, a column for each size; what has no size is in the first one."""
    sizes = sorted({row.nbytes for row in rows if row.nbytes}) or [0]
    forms = [one.name for one in competitors if one.is_ours]
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        for form in forms:
            if row.results[form].us:
                cell = _compared(row, competitors, form, letters)
                cells.setdefault((row.op, form), {})[row.nbytes or sizes[0]] = cell
    heads = [size_text(nbytes) if nbytes else "" for nbytes in sizes]
    lines = [line(["call", *heads]), line(["---"] * (1 + len(sizes)))]
    for (op, form), by_size in cells.items():
        name = op if form == OURS[0] else f"{op}, {form}"
        lines.append(line([name, *(by_size.get(nbytes, "") for nbytes in sizes)]))
    return lines


def _compared(row: Row, competitors: Sequence[Competitor], form: str, letters: dict[str, str]) -> str:
    verdict = Verdict.of(row, competitors, form)
    ours = time_text(row.median(form))
    if verdict.peer is None or verdict.ratio is None:
        return ours
    return f"{ours}, {time_text(row.median(verdict.peer))} {letters[verdict.peer]}, **{speed_text(verdict.ratio)}**"
