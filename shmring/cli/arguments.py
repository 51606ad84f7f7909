"""Values of command-line arguments, checked while they are parsed: a bad one ends the command with status 2."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import TypeVar

from shmring.core.base.timeouts import timeout_ns

T = TypeVar("T")


class BadArgument(Exception):
    """An argument that turns out to be impossible once the command has started: the status is 2, as for any other."""


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """An argument; its ``ValueError`` is shown as it is."""

    def argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


def count(text: str) -> int:
    """A whole number of at least 1."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


def ranks(text: str) -> int:
    """A number of ranks."""
    from shmring.collectives.engine.kinds import check_size  # compiled, and a command need not have ranks

    number = count(text)
    try:
        check_size(number)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return number


def whole_number(text: str) -> int:
    """A whole number of at least 0."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} must not be negative")
    return number


def port(text: str) -> int:
    """The number of a port of TCP."""
    number = whole_number(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{number} must be at most 65535")
    return number


def duration(text: str) -> float:
    """Seconds, or whatever the unit is, above 0 and below a million."""
    number = _number(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and below a million")
    return number


def limit(text: str) -> float:
    """Seconds by the rule for all timeouts: 0 or more; ``inf`` is no limit."""
    number = _number(text)
    try:
        timeout_ns(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be 0 or more seconds; inf: no limit") from None
    return number


def output_file(text: str) -> str:
    """The path of a file that can be written; checked before hours are spent on what it is for."""
    folder = os.path.dirname(text) or "."
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {folder!r}")
    if os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    if not os.access(text if os.path.exists(text) else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
