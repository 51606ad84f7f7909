"""What a signal handler raises in the middle of a call, told from what the call raises itself."""

from __future__ import annotations

from types import FrameType


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal handler has raised an error, by its traceback: a handler is called with the number of the signal
    and the frame that it interrupts, through which the error then passes."""
    passed: set[FrameType] = set()
    at = error.__traceback__
    while at is not None:
        if passed and _is_handler(at.tb_frame, passed):
            return True
        passed.add(at.tb_frame)
        at = at.tb_next
    return False


def _is_handler(frame: FrameType, interrupted: set[FrameType]) -> bool:
    values = list(frame.f_locals.values())
    for value in values[:]:
        if type(value) is tuple:  # def handler(*args)
            values += value
    frames = [value for value in values if isinstance(value, FrameType)]
    return any(isinstance(value, int) for value in values) and not interrupted.isdisjoint(frames)
