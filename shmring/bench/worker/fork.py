"""Start the ranks of a library by fork, since they must inherit their connections: this process is rank 0."""

from __future__ import annotations

import importlib
import json
import os

from .control import Control
from .rank import serve


def main(address: str, text: str) -> int:
    """Connect, fork the other ranks, and serve the runner in each; ``text`` is the task as JSON."""
    task = json.loads(text)
    backend = importlib.import_module(f".{task['backend']}", __package__).Backend
    backend.connect(task)
    children = []
    for rank in range(1, task["size"]):
        if (pid := os.fork()) == 0:
            try:
                serve(Control(address, rank), rank)
            finally:
                os._exit(0)
        children.append(pid)
    serve(Control(address, 0), 0)
    return max((os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children), default=0)
