"""The conductor: row after row, in each slices of all competitors in turn; who is not timed sleeps."""

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

from . import metrics as figures
from .competitors import CEILING, Competitor, Stage, ceiling
from .processes import Team, TeamFailure

MOST_FAILURES = 3  # of one competitor in a run, before it is given up
TRIPS = 200


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    ops: Sequence[str]
    sizes: Sequence[int]
    dtype: str
    seconds: float
    """For each row."""
    cycles: int | None
    """Instead of ``seconds``: this many."""
    slice_s: float
    rewrite: bool
    patience: float
    """Seconds that a competitor may be silent; thrice that while it starts."""
    seed: int = 0
    min_cycles: int = 5


@dataclass
class Result:
    """A competitor in a row: times per call in microseconds, one for each cycle; or what was the matter."""

    us: list[float] = field(default_factory=list)
    rewrite_us: list[float] = field(default_factory=list)
    version: str = ""
    """As the competitor named itself while running."""
    statement: str = ""
    problem: str = ""
    times: int = 1
    """Statements in a slice."""
    calls: int = 1
    """Calls in a statement."""
    failed: bool = False
    """It was to be timed and could not be, or was wrong; otherwise a problem is that it has no such call."""


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
        return figures.summary(us)["median"] if us else None

    def by_placement(self) -> list[Row]:
        """This row; or a row for each place where the processors were meanwhile, the nearest first."""
        groups = figures.placements(self.trip_ns)
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
    stage: Stage,
    settings: Settings,
    on_row: Callable[[Row], None],
    on_step: Callable[[str, float], None],
) -> None:
    """Time all competitors; nothing of them is left when this returns or raises.

    Parameters
    ----------
    competitors, stage, settings
        Who, where, and what.
    on_row : callable
        Given each row, one for each collective and size, as soon as it is complete.
    on_step : callable
        Told before each row what it will be, and which part of all is done.

    Notes
    -----
    To be called from the main thread: SIGTERM and SIGHUP end it in an orderly way, too.
    """
    tasks = [(op, n) for op in settings.ops for n in ([0] if op in figures.WITHOUT_SIZE else settings.sizes)]
    with _scene() as folder:
        teams = [Team(one, stage, folder / f"{number}") for number, one in enumerate([ceiling(), *competitors])]
        players = [_Player(team) for team in teams]
        try:
            for number, (op, nbytes) in enumerate(tasks):
                on_step(f"{op} {figures.size_text(nbytes)}", number / len(tasks))
                on_row(_Round(players, settings, Row(op, settings.dtype, stage.size, nbytes)).play())
        finally:
            for team in teams:
                team.end()


@contextlib.contextmanager
def _scene() -> Iterator[Path]:
    """A folder for what competitors write, and the certainty that no process of theirs survives."""
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
                while orphans := children() - older:  # ending one may hand us others
                    for pid in orphans:
                        with contextlib.suppress(ProcessLookupError, ChildProcessError):
                            os.kill(pid, signal.SIGKILL)
                            os.waitpid(pid, 0)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


class _Player:
    """A team, and how often it has failed."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.name = team.competitor.name
        self.failures = 0
        self.problem = ""


class _Round:
    """One row."""

    def __init__(self, players: list[_Player], settings: Settings, row: Row) -> None:
        self.settings = settings
        self.row = row
        self.players = players
        self.random = random.Random(f"{settings.seed} {row.op} {row.nbytes}")

    def play(self) -> Row:
        ready = [player for player in self.players if self._try(player, self._prepare)]
        ready = [player for player in ready if self._try(player, self._calibrate)]
        deadline = time.monotonic() + self.settings.seconds
        cycle = 0
        while ready and not self._is_enough(cycle, deadline):
            ready = [player for player in self._in_turn(ready) if self._try(player, self._slice)]
            cycle += 1
        for player in ready:
            self._try(player, self._check)
        self._close()
        return self.row

    def _is_enough(self, cycle: int, deadline: float) -> bool:
        if self.settings.cycles is not None:
            return cycle >= self.settings.cycles
        return cycle >= self.settings.min_cycles and time.monotonic() > deadline

    def _in_turn(self, players: list[_Player]) -> list[_Player]:
        """Another order in each cycle, so that nobody always follows the same one; the ceiling first."""
        others = [player for player in players if player.name != CEILING]
        self.random.shuffle(others)
        return [player for player in players if player.name == CEILING] + others

    def _try(self, player: _Player, step: Callable[[_Player], bool]) -> bool:
        """Whether the player is still in this row."""
        try:
            return step(player)
        except TeamFailure as failure:
            player.failures += 1
            player.problem = str(failure)
            self._fail(player, str(failure))
            return False

    def _fail(self, player: _Player, why: str) -> None:
        result = self._result(player)
        result.problem, result.failed = why, True

    def _result(self, player: _Player) -> Result:
        return self.row.results.setdefault(player.name, Result())

    def _prepare(self, player: _Player) -> bool:
        row, settings, result = self.row, self.settings, self._result(player)
        if not player.team.is_up:
            if player.failures >= MOST_FAILURES:
                self._fail(player, f"given up after {player.failures} failures, the last: {player.problem}")
                return False
            player.team.start(3 * settings.patience)
        result.version = player.team.version
        order = {"op": row.op, "dtype": row.dtype, "nbytes": row.nbytes, "rewrite": settings.rewrite}
        if player.name == CEILING:
            order.update(op="copy", rewrite=False)
        answers = player.team.ask(settings.patience, do="prepare", **order)
        reasons = [answer["unsupported"] for answer in answers if "unsupported" in answer]
        if reasons:
            result.problem = reasons[0]
            return False
        result.statement, result.calls = answers[0]["statement"], answers[0]["calls"]
        if player.name != CEILING:
            row.nbytes = answers[0]["nbytes"]  # a whole number of elements for each rank
        return self._is_right(player, answers)

    def _is_right(self, player: _Player, answers: list[dict]) -> bool:
        wrong = [rank for rank, answer in enumerate(answers) if not answer["right"]]
        if wrong:
            self._fail(player, f"WRONG answer on rank {', '.join(map(str, wrong))}")
        return not wrong

    def _calibrate(self, player: _Player) -> bool:
        """Find out how many calls fill a slice."""
        result = self._result(player)
        for _ in range(6):
            us = self._time(player, "call", result.times, warmup=1)
            wanted = int(self.settings.slice_s * 1e6 / (us * result.calls))
            if wanted <= 2 * result.times:
                result.times = max(1, min(wanted, result.times))
                break
            result.times = min(wanted, 32 * result.times)
        return True

    def _slice(self, player: _Player) -> bool:
        result = self._result(player)
        # Caches hold what the others left, and processors that have slept are slow at first: for milliseconds.
        warmup = (result.times + 1) // 2
        if player.name == CEILING:
            trips = player.team.ask(self.settings.patience, do="round_trip", times=TRIPS)[0]["ns"]
            if trips:
                self.row.trip_ns.append(max(trips))  # to the farthest
        result.us.append(self._time(player, "call", result.times, warmup))
        if self.settings.rewrite and player.name != CEILING:
            result.rewrite_us.append(self._time(player, "rewrite", result.times, warmup))
        return True

    def _time(self, player: _Player, what: str, times: int, warmup: int) -> float:
        """Microseconds per call of the slowest rank."""
        answers = player.team.ask(self.settings.patience, do="slice", what=what, times=times, warmup=warmup)
        return max(answer["ns"] for answer in answers) / (times * self._result(player).calls) / 1e3

    def _check(self, player: _Player) -> bool:
        return self._is_right(player, player.team.ask(self.settings.patience, do="check"))

    def _close(self) -> None:
        """Take the ceiling out of the competitors, and what failed on the way out of the times."""
        row = self.row
        machine = row.results.pop(CEILING)
        row.ceiling_problem = machine.problem
        if row.nbytes:
            row.copy_us = machine.us
        for result in row.results.values():
            if result.problem:
                result.us, result.rewrite_us = [], []
