"""What the machine can do: all ranks copy memory at once, and one word goes there and back between two processors."""

from __future__ import annotations

import numpy as np

from shmring.bench import machine

from .backend import Backend as Base

SMALL = 64 << 10  # bytes; smaller copies are made several at a time, so that Python is not what is timed


class Backend(Base):
    """A rank that copies. It waits for nobody. Calls on shared arrays may be quicker: they copy nothing."""

    def __init__(self, task: dict, line, rank: int) -> None:
        super().__init__(task, line, rank)
        self._words = np.frombuffer(line.words, np.uint64)[task["size"] * machine.APART :]
        self._players = min(task["size"], task["nprocessors"])  # ranks that take turns on a processor say nothing of it
        self.version = "memcpy"
        self.names = {"copy": machine.copy}

    def statement(self, problem) -> str:
        self.calls_in_statement = max(1, SMALL // problem.nbytes)
        self.names.update(x=problem.x.view(np.uint8), y=problem.y.view(np.uint8), times=self.calls_in_statement)
        return "copy(y, x, times)"

    def round_trip(self, times: int) -> list[float]:
        """Nanoseconds there and back from rank 0 to each other rank in turn; nothing on the others."""
        if self.rank >= self._players:
            return []
        return list(machine.round_trips(self._words, self.rank, self._players, times))
