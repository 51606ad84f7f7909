"""A progress bar where a terminal shows it, a plain line now and then where not."""

from __future__ import annotations

import sys

WIDTH = 28


class Progress:
    """Called after every epoch. Picklable: it looks for its terminal where it is used."""

    def __init__(self, nepochs: int) -> None:
        self.nepochs = nepochs

    def __call__(self, epoch: int, loss: float, accuracy: float) -> None:
        text = f"epoch {epoch:>{len(str(self.nepochs))}}/{self.nepochs}"
        figures = f"loss {loss:.4f}   test accuracy {accuracy:6.1%}"
        if sys.stdout.isatty():
            filled = WIDTH * epoch // self.nepochs
            # Back to the start of the line, over what stands there, and clear the rest of it.
            print(f"\r  {text} [{'#' * filled}{'.' * (WIDTH - filled)}] {figures}\x1b[K", end="", flush=True)
            if epoch == self.nepochs:
                print(flush=True)
        elif epoch % max(1, self.nepochs // 5) == 0 or epoch in (1, self.nepochs):
            print(f"  {text}   {figures}", flush=True)
