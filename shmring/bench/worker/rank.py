"""A rank's life: be told what to be, be ready, and do what is ordered until told to quit."""

from __future__ import annotations

import importlib
import os
import time
import timeit
import traceback

import numpy as np

from .backend import Unsupported
from .control import Control
from .problem import Problem
from .startline import StartLine

# What launchers call a process's rank: MPICH and Intel MPI, Open MPI, everybody else.
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
CHECKS = 3

REWRITE = "content.fill(one)"  # of the array, whatever the library wraps it in


def main(address: str) -> int:
    """Serve the conductor at ``address``; started once for each rank by the competitor's own launcher."""
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    serve(Control(address, rank), rank)
    return 0


def serve(control: Control, rank: int) -> None:
    """Take orders. What goes wrong is told to the conductor, which decides what becomes of this competitor."""
    task, page = control.take_task()
    if task["processors"]:
        os.sched_setaffinity(0, task["processors"])  # before any library sees the machine
    try:
        line = StartLine(page, rank, task["size"], crowded=task["size"] > task["nprocessors"])
        player = Player(task, line, rank)
        control.answer(version=player.backend.version)
        while (order := control.order())["do"] != "quit":
            control.answer(**getattr(player, order.pop("do"))(**order))
        player.backend.close()
    except Exception as error:
        control.answer(error=f"{type(error).__name__}: {error}".strip(), traceback=traceback.format_exc())
        control.order()  # the conductor may want to see this process alive until it has heard the others


class Player:
    """One rank of a competitor; each public method is an order."""

    def __init__(self, task: dict, line: StartLine, rank: int) -> None:
        self.line = line
        self.problem: Problem | None = None
        self.timers: dict[str, timeit.Timer] = {}
        self.backend = importlib.import_module(f".{task['backend']}", __package__).Backend(task, line, rank)

    def prepare(self, op: str, dtype: str, nbytes: int, rewrite: bool) -> dict:
        """Make the arrays, see that the answers are right, and have the statements ready."""
        backend = self.backend
        self.problem, self.timers = None, {}  # the old arrays go first
        backend.names.update(dict.fromkeys(("x", "y", "parts", "plan", "content")))
        try:
            problem = Problem(op, dtype, nbytes, backend.rank, backend.size, backend.empty)
            statement = backend.statement(problem)
        except Unsupported as reason:
            return {"unsupported": str(reason)}
        self.problem = problem
        self._add("once", statement)
        wrong = [seed for seed in range(CHECKS) if not self._is_right(problem, seed)]
        problem.settle()
        if rewrite and problem.rewrites:
            backend.names.update(content=problem.x, one=problem.number.encode(np.ones(1))[0])
            self._add("rewrite", REWRITE)
            self._add("call", f"{REWRITE}; {statement}")
        else:
            self._add("rewrite", "pass")
            self._add("call", statement)
        facts = {"statement": statement, "calls": backend.calls_in_statement, "nbytes": problem.nbytes}
        return {**facts, "right": not wrong}

    def slice(self, what: str, warmup: int, times: int) -> dict:
        """Time ``times`` calls in a row; all ranks begin together, twice: to warm up, and when the clock starts."""
        timer = self.timers[what]
        self.line.meet()
        timer.timeit(warmup)
        self.line.meet()
        return {"ns": timer.timeit(times)}

    def check(self) -> dict:
        """See again whether the answers are right, now that the calls have been timed."""
        assert self.problem is not None
        right = self._is_right(self.problem, CHECKS)
        self.problem.settle()
        return {"right": right}

    def round_trip(self, times: int) -> dict:
        """One word there and back between processors, in nanoseconds; only of the ceiling's ranks."""
        self.line.meet()
        return {"ns": self.backend.round_trip(times)}

    def _add(self, name: str, statement: str) -> None:
        self.timers[name] = timeit.Timer(statement, timer=time.perf_counter_ns, globals=self.backend.names)

    def _is_right(self, problem: Problem, seed: int) -> bool:
        problem.fill(seed)
        self.line.meet()  # nobody's input is overwritten while a peer still reads it
        self.timers["once"].timeit(1)
        return problem.is_right()
