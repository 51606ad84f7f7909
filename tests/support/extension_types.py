"""Every type that is implemented in C, and the use of an object in every way that needs no knowledge of it."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

import numpy as np

import shmring

GUESTS = (
    "shmring.torch",
    "shmring.jax",
    "shmring.vllm",
    "shmring.nodes.mpi_",
    "shmring.cli",
    "shmring.__main__",
)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, not in C


@cache
def extension_types() -> dict[str, type]:
    """Every type that is implemented in C, public or not: one that is half-made must not crash the interpreter."""
    found = {}
    for home in _modules(shmring):
        own = {f"{home.__name__}.{name}": value for name, value in vars(home).items() if isinstance(value, type)}
        found |= {
            name: value
            for name, value in own.items()
            if value.__module__ == home.__name__ and not value.__flags__ & HEAP_TYPE
        }
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of a package and of its packages. `GUESTS` are not imported: that takes longer than an attack."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(GUESTS):
            home = importlib.import_module(module.name)
            yield home
            if module.ispkg:
                yield from _modules(home)


def use_everything(make: Callable[[], object]) -> None:
    """Use an object, made anew for each use, by every method and protocol with few arguments; errors are answers."""
    arguments = [(), (None,), (0,), (b"12345678",), (np.zeros(3),), (1, 2), (None, None, None), ([], 0)]
    for ask in (repr, len, iter, hash, bool, memoryview, bytes, copy.copy, copy.deepcopy, pickle.dumps):
        attempt(ask, make())
    for name in set(dir(type(make()))) - {"__class__", "__init_subclass__", "__subclasshook__", "__new__", "__dir__"}:
        for values in arguments:
            attempt(lambda made, name=name, values=values: getattr(made, name)(*values), make())


def attempt(call: Callable, *values: object) -> object:
    """The result of a call, or None; only errors of the interpreter itself are raised."""
    try:
        return call(*values)
    except Exception as error:
        if isinstance(error, (SystemError, MemoryError)):
            raise
        return None
