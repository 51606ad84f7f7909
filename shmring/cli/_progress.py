"""A progress bar on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import sys

WIDTH = 28


class Progress:
    """Called after every epoch. Picklable: it checks for a terminal in the process that calls it."""

    def __init__(self, nepochs: int) -> None:
        self.nepochs = nepochs

    def __call__(self, epoch: int, loss: float, accuracy: float) -> None:
        text = f"epoch {epoch:>{len(str(self.nepochs))}}/{self.nepochs}"
        results = f"loss {loss:.4f}   test accuracy {accuracy:6.1%}"
        if sys.stdout.isatty():
            filled = WIDTH * epoch // self.nepochs
            # Overwrite the line and clear the rest of it.
            print(f"\r  {text} [{'#' * filled}{'.' * (WIDTH - filled)}] {results}\x1b[K", end="", flush=True)
            if epoch == self.nepochs:
                print(flush=True)
        elif epoch % max(1, self.nepochs // 5) == 0 or epoch in (1, self.nepochs):
            print(f"  {text}   {results}", flush=True)
