"""The benchmark runner: times slices of all competitors in turn, row by row, while the other competitors sleep."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shmring.launch.processes import adopting_orphans, children

from . import metrics
from .competitors import CEILING, Competitor, RankLayout, ceiling
from .processes import CompetitorFailure, CompetitorProcesses

MOST_FAILURES = 3  # of one competitor in a run, before it is dropped
TRIPS = 200


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    ops: Sequence[str]
    sizes: Sequence[int]
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
    version: str = ""
    """The version that the competitor reported."""
    statement: str = ""
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
    tasks = [(op, n) for op in settings.ops for n in ([0] if op in metrics.WITHOUT_SIZE else settings.sizes)]
    with _contained() as folder:
        all_competitors = [ceiling(), *competitors]
        groups = [CompetitorProcesses(one, layout, folder / f"{n}") for n, one in enumerate(all_competitors)]
        participants = [_Participant(processes) for processes in groups]
        try:
            for number, (op, nbytes) in enumerate(tasks):
                on_step(f"{op} {metrics.size_text(nbytes)}", number / len(tasks))
                on_row(_RowRun(participants, settings, Row(op, settings.dtype, layout.size, nbytes)).measure())
        finally:
            for processes in groups:
                processes.end()


@contextlib.contextmanager
def _contained() -> Iterator[Path]:
    """Provide a folder for files of the competitors, and kill all their processes at the end."""
    older = children()
    folder = Path(tempfile.mkdtemp(prefix="shmring-bench-"))

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with adopting_orphans():
            try:
                yield folder
            finally:
                while orphans := children() - older:  # a killed process may leave more orphans
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
        self.participants = participants
        self.random = random.Random(f"{settings.seed} {row.op} {row.nbytes}")

    def measure(self) -> Row:
        ready = [participant for participant in self.participants if self._try(participant, self._prepare)]
        ready = [participant for participant in ready if self._try(participant, self._calibrate)]
        deadline = time.monotonic() + self.settings.seconds
        cycle = 0
        while ready and not self._is_enough(cycle, deadline):
            ready = [participant for participant in self._in_turn(ready) if self._try(participant, self._slice)]
            cycle += 1
        for participant in ready:
            self._try(participant, self._check)
        self._close()
        return self.row

    def _is_enough(self, cycle: int, deadline: float) -> bool:
        if self.settings.cycles is not None:
            return cycle >= self.settings.cycles
        return cycle >= self.settings.min_cycles and time.monotonic() > deadline

    def _in_turn(self, participants: list[_Participant]) -> list[_Participant]:
        """A new random order, so that no competitor always follows the same one; the ceiling is first."""
        others = [participant for participant in participants if participant.name != CEILING]
        self.random.shuffle(others)
        return [participant for participant in participants if participant.name == CEILING] + others

    def _try(self, participant: _Participant, step: Callable[[_Participant], bool]) -> bool:
        """Run ``step``; returns whether the participant stays in this row."""
        try:
            return step(participant)
        except CompetitorFailure as failure:
            participant.failures += 1
            participant.problem = str(failure)
            self._fail(participant, str(failure))
            return False

    def _fail(self, participant: _Participant, why: str) -> None:
        result = self._result(participant)
        result.problem, result.failed = why, True

    def _result(self, participant: _Participant) -> Result:
        return self.row.results.setdefault(participant.name, Result())

    def _prepare(self, participant: _Participant) -> bool:
        row, settings, result = self.row, self.settings, self._result(participant)
        if not participant.processes.is_up:
            if participant.failures >= MOST_FAILURES:
                self._fail(
                    participant, f"dropped after {participant.failures} failures, the last: {participant.problem}"
                )
                return False
            participant.processes.start(3 * settings.patience)
        result.version = participant.processes.version
        order = {"op": row.op, "dtype": row.dtype, "nbytes": row.nbytes, "rewrite": settings.rewrite}
        if participant.name == CEILING:
            order.update(op="copy", rewrite=False)
        answers = participant.processes.ask(settings.patience, do="prepare", **order)
        reasons = [answer["unsupported"] for answer in answers if "unsupported" in answer]
        if reasons:
            result.problem = reasons[0]
            return False
        result.statement, result.calls = answers[0]["statement"], answers[0]["calls"]
        if participant.name != CEILING:
            row.nbytes = answers[0]["nbytes"]  # a whole number of elements for each rank
        return self._is_right(participant, answers)

    def _is_right(self, participant: _Participant, answers: list[dict]) -> bool:
        wrong = [rank for rank, answer in enumerate(answers) if not answer["right"]]
        if wrong:
            self._fail(participant, f"WRONG answer on rank {', '.join(map(str, wrong))}")
        return not wrong

    def _calibrate(self, participant: _Participant) -> bool:
        """Find the number of calls that fill a slice."""
        result = self._result(participant)
        for _ in range(6):
            us = self._time(participant, "call", result.times, warmup=1)
            wanted = int(self.settings.slice_s * 1e6 / (us * result.calls))
            if wanted <= 2 * result.times:
                result.times = max(1, min(wanted, result.times))
                break
            result.times = min(wanted, 32 * result.times)
        return True

    def _slice(self, participant: _Participant) -> bool:
        result = self._result(participant)
        # Caches hold data of other competitors, and a processor that has slept is slow for milliseconds.
        warmup = (result.times + 1) // 2
        if participant.name == CEILING:
            trips = participant.processes.ask(self.settings.patience, do="round_trip", times=TRIPS)[0]["ns"]
            if trips:
                self.row.trip_ns.append(max(trips))  # to the farthest rank
        result.us.append(self._time(participant, "call", result.times, warmup))
        if self.settings.rewrite and participant.name != CEILING:
            result.rewrite_us.append(self._time(participant, "rewrite", result.times, warmup))
        return True

    def _time(self, participant: _Participant, what: str, times: int, warmup: int) -> float:
        """Microseconds per call of the slowest rank."""
        answers = participant.processes.ask(self.settings.patience, do="slice", what=what, times=times, warmup=warmup)
        return max(answer["ns"] for answer in answers) / (times * self._result(participant).calls) / 1e3

    def _check(self, participant: _Participant) -> bool:
        return self._is_right(participant, participant.processes.ask(self.settings.patience, do="check"))

    def _close(self) -> None:
        """Separate the ceiling from the competitors, and drop the times of competitors that failed."""
        row = self.row
        machine = row.results.pop(CEILING)
        row.ceiling_problem = machine.problem
        if row.nbytes:
            row.copy_us = machine.us
        for result in row.results.values():
            if result.problem:
                result.us, result.rewrite_us = [], []
