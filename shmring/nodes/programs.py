"""The latest plans of a communicator over several nodes, as programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shmring.communicator import Communicator
from shmring.nodes.exchange import Exchange
from shmring.nodes.operand import Operand
from shmring.nodes.plan.layout import Layout
from shmring.nodes.program import Program

MOST_PROGRAMS = 64
MOST_KEPT_NBYTES = 64 << 20  # of the memory of plans


class Programs:
    """Kept with their memory, which is used again by the next call: fresh pages would cost page faults."""

    def __init__(self, layout: Layout, rank: int, local: Communicator, exchange: Exchange) -> None:
        self._layout, self._rank, self._local, self._exchange = layout, rank, local, exchange
        self._programs: OrderedDict[tuple, Program] = OrderedDict()
        self._nbytes = 0

    def find(self, what: str, build: Callable, key: tuple, operand: Operand) -> Program:
        """The program of ``build(layout, rank, *key)`` for a call that ``what`` describes."""
        whole = (what, build, key, operand)
        program = self._programs.get(whole)
        if program is not None:
            self._programs.move_to_end(whole)
            return program
        plan = build(self._layout, self._rank, *key)
        program = self._programs[whole] = Program(plan, operand, what, self._exchange, self._local)
        self._nbytes += program.nbytes
        while len(self._programs) > MOST_PROGRAMS or (self._nbytes > MOST_KEPT_NBYTES and len(self._programs) > 1):
            oldest = self._programs.popitem(last=False)[1]
            oldest.retire()  # others may refer to it
            self._nbytes -= oldest.nbytes
        return program
