"""Where the ranks of a competitor meet before the clock starts: the same line for all competitors, and none's own."""

from __future__ import annotations

import mmap
import os
import time

LINE = 16  # words of 8 bytes: what different ranks write lies 128 bytes apart
LOOKS = 64
PATIENCE_S = 60.0


class StartLine:
    """Ranks count how often they have come; each writes its own word and looks at the others'."""

    def __init__(self, descriptor: int, rank: int, size: int, crowded: bool) -> None:
        self.words = memoryview(mmap.mmap(descriptor, 0)).cast("Q")
        self._own = rank * LINE
        self._others = [other * LINE for other in range(size) if other != rank]
        self._looks = 1 if crowded else LOOKS  # with more ranks than processors the awaited one needs this one
        self._rendezvous = 0

    def meet(self) -> None:
        """Return when all ranks have come here, within a microsecond of each other where each has a processor."""
        words, rendezvous = self.words, self._rendezvous + 1
        self._rendezvous = words[self._own] = rendezvous
        deadline = time.monotonic() + PATIENCE_S
        for other in self._others:
            looks = 0
            while words[other] < rendezvous:
                looks += 1
                if looks % self._looks == 0:
                    os.sched_yield()
                    if looks % 4096 == 0 and time.monotonic() > deadline:
                        raise TimeoutError(f"rank {other // LINE} did not come to the start line")
