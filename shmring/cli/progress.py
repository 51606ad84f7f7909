"""A progress bar, on a terminal."""

from __future__ import annotations

from typing import TextIO

WIDTH = 28
_CLEAR = "\r\x1b[K"  # back to the start of the line, and clear it


def show(stream: TextIO, done: float, before: str = "", after: str = "") -> bool:
    """Show that the fraction ``done`` is complete, in place of the line before; False, and nothing, on no terminal."""
    if not stream.isatty():
        return False
    filled = int(WIDTH * done)
    print(f"{_CLEAR}{before}[{'#' * filled}{'.' * (WIDTH - filled)}]{after}", end="", file=stream, flush=True)
    return True


def clear(stream: TextIO) -> None:
    """Clear the bar before other output."""
    if stream.isatty():
        print(_CLEAR, end="", file=stream, flush=True)
