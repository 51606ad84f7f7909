"""The barrier before the clock starts: the same code for all competitors, independent of their libraries."""

from __future__ import annotations

import mmap
import os
import time

LINE = 16  # words of 8 bytes: words of different ranks lie 128 bytes apart
LOOKS = 64
PATIENCE_S = 60.0


class StartBarrier:
    """Each rank stores the number of its arrivals in its own word and polls the words of the others."""

    def __init__(self, descriptor: int, rank: int, size: int, crowded: bool) -> None:
        self.words = memoryview(mmap.mmap(descriptor, 0)).cast("Q")
        self._own = rank * LINE
        self._others = [other * LINE for other in range(size) if other != rank]
        self._looks = 1 if crowded else LOOKS  # with more ranks than processors, the awaited rank needs this processor
        self._arrivals = 0

    def wait(self) -> None:
        """Return when all ranks have arrived, within a microsecond of each other if each has a processor."""
        words, arrivals = self.words, self._arrivals + 1
        self._arrivals = words[self._own] = arrivals
        deadline = time.monotonic() + PATIENCE_S
        for other in self._others:
            looks = 0
            while words[other] < arrivals:
                looks += 1
                if looks % self._looks == 0:
                    os.sched_yield()
                    if looks % 4096 == 0 and time.monotonic() > deadline:
                        raise TimeoutError(f"rank {other // LINE} did not reach the start barrier")
