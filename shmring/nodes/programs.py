"""The latest plans of a communicator over several nodes, as programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shmring.communicator import Communicator
from shmring.nodes.exchange import Exchange
from shmring.nodes.form import Form
from shmring.nodes.operand import Operand
from shmring.nodes.plan.layout import Layout
from shmring.nodes.program import Program
from shmring.nodes.trials import NAMES, Trials

MOST_PROGRAMS = 64
MOST_TRIALS = 4096
MOST_KEPT_NBYTES = 64 << 20  # of the memory of plans


class Programs:
    """Kept with their memory, which is used again by the next call: fresh pages would cost page faults."""

    def __init__(self, layout: Layout, rank: int, local: Communicator, exchange: Exchange) -> None:
        self._layout, self._rank, self._local, self._exchange = layout, rank, local, exchange
        self._programs: OrderedDict[tuple, Program] = OrderedDict()
        self._nbytes = 0
        self._trials: dict[str, Trials] = {}  # apart, as all ranks must keep those of the same calls

    def find(self, what: str, build: Callable, key: tuple, operand: Operand, form: Form | None) -> Program:
        """The program of ``build(layout, rank, *key)`` for a call that ``what`` describes."""
        whole = (what, build, key, operand, form)
        program = self._programs.get(whole)
        if program is not None:
            self._programs.move_to_end(whole)
            return program
        plan = build(self._layout, self._rank, *key)
        trials = None if form is None else self._trials_of(what)
        program = self._programs[whole] = Program(plan, operand, what, self._exchange, self._local, form, trials)
        self._nbytes += program.nbytes
        while len(self._programs) > MOST_PROGRAMS or (self._nbytes > MOST_KEPT_NBYTES and len(self._programs) > 1):
            oldest = self._programs.popitem(last=False)[1]
            oldest.retire()  # others may refer to it
            self._nbytes -= oldest.nbytes
        return program

    def _trials_of(self, what: str) -> Trials:
        if what not in self._trials and len(self._trials) >= MOST_TRIALS:
            del self._trials[next(iter(self._trials))]
        return self._trials.setdefault(what, Trials())

    def stats(self) -> list[dict]:
        """For each call that can be made by the wire's own collective: its way, and the time of each."""
        return [
            {"call": what, "way": NAMES[trials.best], "us": dict(zip(NAMES, trials.us, strict=True))}
            for what, trials in self._trials.items()
        ]
