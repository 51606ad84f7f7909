"""The standard library's `multiprocessing` with queues, pipes and pools that go through shared memory.

`get_context` returns a context of the standard library. Its ``Queue``, ``JoinableQueue``, ``SimpleQueue``, ``Pipe`` and
``Pool`` send through rings of shmring; everything else (``Process``, ``Lock``, ``Event``, ``Value``, ...) is the
standard library's own. This module has the standard module's names, so ``import shmring.multiprocessing as
multiprocessing`` is enough for a program that uses it.
"""

import multiprocessing as _standard
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shmring.multiprocessing import connection, context, queues  # noqa: F401 as in the standard module

__all__ = list(_standard.__all__)

globals().update((name, getattr(context.default_context, name)) for name in __all__)


def __getattr__(name: str) -> Any:
    if find_spec(f"multiprocessing.{name}") is not None:  # from shmring.multiprocessing import shared_memory
        import_module(f"multiprocessing.{name}")
    return getattr(_standard, name)
