"""Rows as text: one line per size with all competitors side by side, or a block with all numbers."""

from __future__ import annotations

from collections.abc import Sequence

from . import metrics
from .competitors import Competitor
from .metrics import size_text, time_text
from .report import Standing
from .runner import Row

CELL = 14


class Table:
    """Lines for a terminal. ``is_long``: a block with all numbers for each row; ``is_split``: two lines where the
    placement of the processors changed."""

    def __init__(self, competitors: Sequence[Competitor], is_long: bool = False, is_split: bool = False) -> None:
        self.competitors = competitors
        self.is_long = is_long
        self.is_split = is_split
        self._op = ""
        self._reported: set[tuple[str, str, str]] = set()

    def lines(self, row: Row) -> list[str]:
        """The lines of a new row, after a heading if it starts another collective."""
        head = [] if row.op == self._op else self._head(row)
        self._op = row.op
        for one in row.by_placement() if self.is_split else [row]:
            head += self._block(one) if self.is_long else [self._line(one)]
        return head + self._problems(row)

    def _head(self, row: Row) -> list[str]:
        what = "" if row.op == "barrier" else f", {row.dtype}"
        title = f"{row.op}{what}, {row.size} ranks: microseconds per call, median and half the interquartile range"
        if self.is_long:
            return ["", title]
        names = "".join(f"{one.name:>{CELL}}" for one in self.competitors)
        return ["", title, f"{'size':>8} {'trip':>7} {'copy':>7}{names} {'algbw':>7} {'busbw':>7}  ratio"]

    def _line(self, row: Row) -> str:
        cells = "".join(f"{_cell(row, one.name):>{CELL}}" for one in self.competitors)
        standing = Standing.of(row, self.competitors)
        text = f"{_size(row):>8} {_trip(row):>7} {_copy(row):>7}{cells}"
        if standing.ours is None:
            return text
        algorithm, bus = _bandwidths(row, standing.ours)
        text += f" {algorithm:>7} {bus:>7}"
        return text if standing.ratio is None else f"{text}  {standing.ratio:.2f} of {standing.peer}"

    def _block(self, row: Row) -> list[str]:
        lines = [f"  {_size(row)}: round trip {_trip(row)} us, a copy on all ranks {_copy(row)} us"]
        for one in self.competitors:
            if us := row.results[one.name].us:
                s = {name: time_text(value) for name, value in metrics.summary(us).items()}
                algorithm, bus = _bandwidths(row, one.name)
                rewriting = row.results[one.name].rewrite_us
                alone = f"  rewriting alone {time_text(metrics.summary(rewriting)['median'])}" if rewriting else ""
                lines.append(
                    f"    {one.name:<16}{s['median']:>9}   {s['q1']:>8} ..{s['q3']:>8}   min {s['min']:>8}   "
                    f"algbw {algorithm:>6}   busbw {bus:>6} GB/s   {len(us)} cycles{alone}"
                )
        standing = Standing.of(row, self.competitors)
        if standing.ratio is not None:
            lines.append(f"    {standing.ours} takes {standing.ratio:.2f} of the time of {standing.peer}")
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
    s = metrics.summary(us)
    return f"{time_text(s['median'])} ±{50 * (s['q3'] - s['q1']) / s['median']:.0f}%"


def _bandwidths(row: Row, name: str) -> tuple[str, str]:
    us = row.median(name)
    if us is None or not metrics.bus_factor(row.op, row.size):
        return "-", "-"
    return (
        f"{metrics.algorithm_bandwidth(row.op, row.nbytes, us):.3g}",
        f"{metrics.bus_bandwidth(row.op, row.nbytes, us, row.size):.3g}",
    )


def _size(row: Row) -> str:
    return size_text(row.nbytes) if row.nbytes else "-"


def _trip(row: Row) -> str:
    return f"{metrics.summary(row.trip_ns)['median'] / 1e3:.3f}" if row.trip_ns else "-"


def _copy(row: Row) -> str:
    return time_text(metrics.summary(row.copy_us)["median"]) if row.copy_us else "-"
