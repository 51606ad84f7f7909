"""The benchmark runner: times slices of all competitors in turn, row by row, while the other competitors sleep."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shmring.launch.processes import adopted, adopting_orphans

from . import metrics
from .competitors import CEILING, Competitor, RankLayout, ceiling
from .processes import CompetitorFailure, CompetitorProcesses
from .turns import calls_in, take_turns, warmup_of

MOST_FAILURES = 3  # of one competitor in a run, before it is dropped
TRIPS = 200
IDLE_S = 1.0


@dataclass(frozen=True)
class Settings:
    """The measurements of a run, and their length."""

    rows: Sequence[tuple[str, int]]
    """The calls, and the bytes of each: a row each."""
    dtype: str
    seconds: float
    """Per row."""
    cycles: int | None
    """Number of cycles, instead of ``seconds``."""
    slice_s: float
    rewrite: bool
    patience: float
    """Seconds to wait for an answer of a competitor; three times as long while it starts."""
    seed: int = 0
    min_cycles: int = 5


@dataclass
class Result:
    """A competitor in a row: microseconds per call, one for each cycle, or the reason that there are none."""

    us: list[float] = field(default_factory=list)
    rewrite_us: list[float] = field(default_factory=list)
    trips_us: list[float] = field(default_factory=list)
    """Each round trip, of calls that time them."""
    version: str = ""
    """The version that the competitor reported."""
    statement: str = ""
    seen: str = ""
    """The outcome for the other ranks after one was killed."""
    problem: str = ""
    times: int = 1
    """Statements per slice."""
    calls: int = 1
    """Calls per statement."""
    failed: bool = False
    """The competitor failed or gave a wrong result. A problem without failure means that it has no such call."""


@dataclass
class Row:
    """One collective at one size."""

    op: str
    dtype: str
    size: int
    nbytes: int
    trip_ns: list[float] = field(default_factory=list)
    copy_us: list[float] = field(default_factory=list)
    ceiling_problem: str = ""
    results: dict[str, Result] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """The median of a competitor, if it was timed."""
        us = self.results[name].us
        return metrics.summary(us)["median"] if us else None

    def by_placement(self) -> list[Row]:
        """This row, or one row for each placement of the processors during the run, the nearest first."""
        groups = metrics.placements(self.trip_ns)
        return [self] if len(groups) == 1 else [self._of(cycles) for cycles in groups]

    def _of(self, cycles: Sequence[int]) -> Row:
        def chosen(times: list[float]) -> list[float]:
            return [times[i] for i in cycles] if times else []

        results = {
            name: replace(one, us=chosen(one.us), rewrite_us=chosen(one.rewrite_us))
            for name, one in self.results.items()
        }
        return replace(self, trip_ns=chosen(self.trip_ns), copy_us=chosen(self.copy_us), results=results)


def run(
    competitors: Sequence[Competitor],
    layout: RankLayout,
    settings: Settings,
    on_row: Callable[[Row], None],
    on_step: Callable[[str, float], None],
) -> None:
    """Time all competitors; no process or file of theirs is left when this returns or raises.

    Parameters
    ----------
    competitors, layout, settings
        The implementations, the ranks and processors, and the measurements.
    on_row : callable
        Called with each row, one for each collective and size, when it is complete.
    on_step : callable
        Called before each row with its title and the fraction of rows that are done.

    Notes
    -----
    To be called from the main thread, because it handles SIGTERM and SIGHUP: they end the run with a clean-up.
    """
    with _contained() as folder:
        all_competitors = [ceiling(), *competitors]
        groups = [CompetitorProcesses(one, layout, folder / f"{n}") for n, one in enumerate(all_competitors)]
        participants = [_Participant(processes) for processes in groups]
        try:
            for number, (op, nbytes) in enumerate(settings.rows):
                on_step(f"{op} {metrics.size_text(nbytes)}", number / len(settings.rows))
                on_row(_RowRun(participants, settings, Row(op, settings.dtype, layout.size, nbytes)).measure())
        finally:
            for processes in groups:
                processes.end()


@contextlib.contextmanager
def _contained() -> Iterator[Path]:
    """Provide a folder for files of the competitors, and kill all their processes at the end."""
    older = adopted()
    folder = Path(tempfile.mkdtemp(prefix="shmring-bench-"))

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with adopting_orphans():
            try:
                yield folder
            finally:
                while orphans := adopted() - older:  # a killed process may leave more orphans
                    for pid in orphans:
                        with contextlib.suppress(ProcessLookupError, ChildProcessError):
                            os.kill(pid, signal.SIGKILL)
                            os.waitpid(pid, 0)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


class _Participant:
    """A competitor's processes, and the number of its failures."""

    def __init__(self, processes: CompetitorProcesses) -> None:
        self.processes = processes
        self.name = processes.competitor.name
        self.failures = 0
        self.problem = ""


class _RowRun:
    """The measurement of one row."""

    def __init__(self, participants: list[_Participant], settings: Settings, row: Row) -> None:
        self.settings = settings
        self.row = row
        self.participants = {participant.name: participant for participant in participants}

    def measure(self) -> Row:
        settings, row = self.settings, self.row
        ready = self._those_that(self._prepare, self.participants)
        once = row.op in metrics.ONCE
        timed = self._those_that(self._calibrate, [name for name in ready if not once or name == CEILING])
        deadline = time.monotonic() + settings.seconds

        def is_over(cycle: int) -> bool:
            if once or settings.cycles is not None:
                return cycle >= (settings.cycles or 1)
            return cycle >= settings.min_cycles and time.monotonic() > deadline

        slices = {name: functools.partial(self._attempt, self._slice, name) for name in timed}
        for name, us in take_turns(slices, is_over, f"{settings.seed} {row.op} {row.nbytes}").items():
            self._result(name).us = us
        last = self._once if once else self._check
        self._those_that(last, [name for name in ready if not self._result(name).problem and (name in timed) != once])
        self._close()
        return row

    def _those_that(self, step: Callable[[str], Any], names: Iterable[str]) -> list[str]:
        """The competitors with which the step succeeds."""
        return [name for name in names if self._attempt(step, name)]

    def _result(self, name: str) -> Result:
        return self.row.results.setdefault(name, Result())

    def _attempt(self, step: Callable[[str], Any], name: str) -> Any:
        """The result of a step; None if the competitor fails in it, of which its result in this row has the reason."""
        try:
            return step(name)
        except CompetitorFailure as failure:
            participant = self.participants[name]
            participant.failures += 1
            participant.problem = str(failure)
            self._fail(name, str(failure))
            return None

    def _fail(self, name: str, problem: str) -> None:
        self._result(name).problem = problem
        self._result(name).failed = True

    def _ask(self, name: str, **order: Any) -> list[dict]:
        return self.participants[name].processes.ask(self.settings.patience, **order)

    def _prepare(self, name: str) -> bool:
        row, settings, result, participant = self.row, self.settings, self._result(name), self.participants[name]
        if not participant.processes.is_up:
            if participant.failures >= MOST_FAILURES:
                self._fail(name, f"dropped after {participant.failures} failures, the last: {participant.problem}")
                return False
            participant.processes.start(3 * settings.patience)
        result.version = participant.processes.version
        order = {"op": row.op, "dtype": row.dtype, "nbytes": row.nbytes, "rewrite": settings.rewrite}
        if name == CEILING:
            order.update(op="copy", rewrite=False)
        answers = self._ask(name, do="prepare", **order)
        reasons = [answer["unsupported"] for answer in answers if "unsupported" in answer]
        if reasons:
            result.problem = reasons[0]
            return False
        result.statement, result.calls = answers[0]["statement"], answers[0]["calls"]
        if name != CEILING:
            row.nbytes = answers[0]["nbytes"]  # a whole number of elements for each rank
        return self._is_right(name, answers)

    def _is_right(self, name: str, answers: list[dict]) -> bool:
        wrong = [rank for rank, answer in enumerate(answers) if not answer["right"]]
        if wrong:
            self._fail(name, f"WRONG answer on rank {', '.join(map(str, wrong))}")
        return not wrong

    def _calibrate(self, name: str) -> bool:
        """Find the number of calls that fill a slice."""
        result = self._result(name)
        result.times = calls_in(self.settings.slice_s / result.calls, lambda times: self._time(name, "call", times, 1))
        result.trips_us.clear()
        return True

    def _slice(self, name: str) -> float:
        result = self._result(name)
        warmup = warmup_of(result.times)
        if name == CEILING:
            trips = self._ask(name, do="round_trip", times=TRIPS)[0]["ns"]
            self.row.trip_ns += [max(trips)] if trips else []  # to the farthest rank
        us = self._time(name, "call", result.times, warmup)
        if self.settings.rewrite and name != CEILING:
            result.rewrite_us.append(self._time(name, "rewrite", result.times, warmup))
        return us

    def _time(self, name: str, what: str, times: int, warmup: int) -> float:
        """Microseconds per call of the slowest rank; of the round trips in it, if these are timed."""
        answers = self._ask(name, do="slice", what=what, times=times, warmup=warmup)
        if trips := answers[0]["trips"]:
            self._result(name).trips_us += [ns / 1e3 for ns in trips]
            return sum(trips) / len(trips) / 1e3
        return max(answer["ns"] for answer in answers) / (times * self._result(name).calls) / 1e3

    def _once(self, name: str) -> None:
        """A measurement without turns: of a rank that waits, or of the end of one, in each cycle."""
        result = self._result(name)
        if self.row.op == "idle":
            result.us = [self._ask(name, do="once", what="idle", seconds=IDLE_S)[1]["us"]]
            return
        for cycle in range(self.settings.cycles or 1):
            if cycle and not self._prepare(name):
                return
            for answer in self.participants[name].processes.kill_last(self.settings.patience):
                result.us += [answer["us"]] if "us" in answer else []
                result.seen = result.seen or answer["seen"]
        result.problem = "" if result.us else result.seen

    def _check(self, name: str) -> bool:
        return self._is_right(name, self._ask(name, do="check"))

    def _close(self) -> None:
        """Separate the ceiling from the competitors, and drop the times of competitors that failed."""
        row = self.row
        machine = row.results.pop(CEILING)
        row.ceiling_problem = machine.problem
        if row.nbytes:
            row.copy_us = machine.us
        for result in row.results.values():
            if result.problem:
                result.us, result.rewrite_us, result.trips_us = [], [], []
