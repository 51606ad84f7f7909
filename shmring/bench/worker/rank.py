"""A rank of a competitor: receive a task, prepare, and execute orders until the order to quit."""

from __future__ import annotations

import functools
import importlib
import os
import time
import timeit
import traceback

import numpy as np

from .backend import Unsupported
from .control import Control
from .problem import Problem
from .start_barrier import StartBarrier

# The variable with the rank of a process: MPICH and Intel MPI, Open MPI, other launchers.
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
CHECKS = 3

REWRITE = "content.fill(one)"  # the memory of the array, whatever object the library wraps it in


def main(address: str) -> int:
    """Serve the runner at ``address``; the competitor's launcher starts one process for each rank."""
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    serve(Control(address, rank), rank)
    return 0


def serve(control: Control, rank: int) -> None:
    """Execute orders. Errors are sent to the runner, which decides how to continue."""
    task, page = control.take_task()
    if task["processors"]:
        os.sched_setaffinity(0, task["processors"])  # before libraries read the affinity mask
    try:
        barrier = StartBarrier(page, rank, task["size"], crowded=task["size"] > task["nprocessors"])
        server = RankServer(task, barrier, rank)
        control.answer(version=server.backend.version)
        while (order := control.order())["do"] != "quit":
            control.answer(**getattr(server, order.pop("do"))(**order))
        server.backend.close()
    except Exception as error:
        control.answer(error=f"{type(error).__name__}: {error}".strip(), traceback=traceback.format_exc())
        control.order()  # stay alive until the runner has read the answers of the other ranks


class RankServer:
    """One rank of a competitor; each public method is an order."""

    def __init__(self, task: dict, barrier: StartBarrier, rank: int) -> None:
        self.barrier = barrier
        self.problem: Problem | None = None
        self.timers: dict[str, timeit.Timer] = {}
        self.backend = importlib.import_module(f".{task['backend']}", __package__).Backend(task, barrier, rank)

    def prepare(self, op: str, dtype: str, nbytes: int, rewrite: bool) -> dict:
        """Allocate the arrays, check the results, and compile the statements."""
        backend = self.backend
        self.problem, self.timers = None, {}  # the old arrays go first
        backend.names.update(dict.fromkeys(("x", "y", "parts", "plan", "content")))
        if op == "death" and op not in backend.calls:
            op = "all_reduce"
        try:
            problem = Problem(op, dtype, nbytes, backend.rank, backend.size, backend.empty)
            statement = backend.statement(problem)
        except Unsupported as reason:
            return {"unsupported": str(reason)}
        self.problem = problem
        self._add("once", backend.checked(problem, statement))
        wrong = [seed for seed in range(CHECKS) if not self._is_right(problem, seed)]
        problem.settle()
        if rewrite and problem.rewrites:
            backend.names.update(content=problem.x, one=problem.number.encode(np.ones(1))[0])
            self._add("rewrite", REWRITE)
            self._add("call", f"{REWRITE}; {statement}")
        else:
            self._add("rewrite", "pass")
            self._add("call", statement)
        backend.call = functools.partial(self.timers["call"].timeit, 1)
        facts = {"statement": statement, "calls": backend.calls_in_statement, "nbytes": problem.nbytes}
        return {**facts, "right": not wrong}

    def slice(self, what: str, warmup: int, times: int) -> dict:
        """Time ``times`` calls in a row. All ranks start together twice: for the warm-up, and when the clock starts.

        If calls time round trips themselves, each of these is in the answer.
        """
        timer, trips = self.timers[what], self.backend.trips
        self.barrier.wait()
        timer.timeit(warmup)
        trips.clear()
        self.barrier.wait()
        return {"ns": timer.timeit(times), "trips": trips}

    def check(self) -> dict:
        """Check the results again after the timed calls."""
        assert self.problem is not None
        right = self._is_right(self.problem, CHECKS)
        self.problem.settle()
        return {"right": right}

    def once(self, what: str, **arguments: float) -> dict:
        """A measurement that the library's adapter makes by itself."""
        self.barrier.wait()
        return getattr(self.backend, what)(**arguments)

    def round_trip(self, times: int) -> dict:
        """Nanoseconds of a round trip of one word; for ranks of the ceiling only."""
        self.barrier.wait()
        return {"ns": self.backend.round_trip(times)}

    def _add(self, name: str, statement: str) -> None:
        self.timers[name] = timeit.Timer(statement, timer=time.perf_counter_ns, globals=self.backend.names)

    def _is_right(self, problem: Problem, seed: int) -> bool:
        problem.fill(seed)
        self.barrier.wait()  # no rank overwrites its input while a peer still reads it
        self.timers["once"].timeit(1)
        return problem.is_right()
