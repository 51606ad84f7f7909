"""The pickled arguments of a spawned rank, in memory that the parent writes without waiting for the rank."""

from __future__ import annotations

import os
import pickle
from io import BufferedWriter
from typing import Any

from shmring.core.memory.descriptor import above_standard, passed_on
from shmring.launch.cloudpickling import dump


class SpawnArguments:
    """Arguments of a process.

    multiprocessing writes what it pickles for a process into a pipe, which is full after 64 KiB; then it waits for
    the process, which may be stopped. So the pipe gets the descriptor of the memory that has the pickle.
    """

    def __init__(self, *args: Any) -> None:
        self.args = args
        self._memory: BufferedWriter | None = None

    def __reduce__(self) -> tuple:
        # While the process is started, not before: locks and ends of channels can be pickled only then.
        self._memory = os.fdopen(above_standard(os.memfd_create("arguments")), "wb")
        dump(self.args, self._memory)
        self._memory.flush()
        return _load, (passed_on(self._memory.fileno()),)

    def close(self) -> None:
        """Release the memory here; the process has been started, or has not and will not be."""
        if self._memory is not None:
            self._memory.close()


def _load(descriptor: Any) -> SpawnArguments:
    with open(above_standard(descriptor.detach()), "rb") as memory:
        memory.seek(0)  # the parent wrote through the same open file
        return SpawnArguments(*pickle.load(memory))
