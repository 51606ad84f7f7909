"""The settings in the environment that each command reads, parsed before it starts."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shmring.config import configure

from .arguments import BadArgument

# Command -> what it reads. `run` passes the others on, and `info` shows a bad setting of a communicator in its place.
_READ = {
    "run": ("file prefix",),
    "top": ("kernel", "file prefix"),
    "dump": ("kernel", "file prefix"),
    "trace": ("kernel",),
    "info": ("kernel", "file prefix"),
    "selftest": ("kernel",),
    "demo": ("kernel", "file prefix", "communicator"),
    "bench": ("kernel",),
}


def check(command: str) -> None:
    """Parse what ``command`` reads; a `BadArgument` names the variable and its value.

    An error that names no variable is a defect, and keeps its type.
    """
    for setting in _READ[command]:
        try:
            _PARSERS[setting]()
        except (ValueError, ImportError) as error:
            if not str(error).startswith("SHMRING_"):
                raise
            raise BadArgument(str(error)) from None


def _kernel() -> None:
    importlib.import_module("shmring.core.kernel.reduce")  # which reads SHMRING_KERNEL


def _file_prefix() -> None:
    importlib.import_module("shmring.core.memory.spelling").user_prefix()


_PARSERS: dict[str, Callable[[], object]] = {
    "kernel": _kernel,
    "file prefix": _file_prefix,
    "communicator": configure,
}
