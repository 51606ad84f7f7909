"""Arguments and results of `spawn` whose functions and classes are defined in an interactive session, pickled by value.

A process that is started finds a function by its module. Those of a notebook, of the interpreter and of ``python -c``
have none that it could import: cloudpickle, if it is installed, pickles them by value.
"""

from __future__ import annotations

import pickle
import sys
from collections import ChainMap
from functools import cache, partial
from multiprocessing import reduction
from types import FunctionType, ModuleType
from typing import IO, Any


def is_interactive() -> bool:
    """Whether the functions of ``__main__`` are in no file that another process could import."""
    main = sys.modules.get("__main__")
    return getattr(main, "__spec__", None) is None and not hasattr(main, "__file__")


def check_portable(fn: object) -> None:
    """Raise ImportError if a process that is started could not get this function."""
    while isinstance(fn, partial):
        fn = fn.func
    if is_interactive() and _cloudpickle() is not None:
        return
    if getattr(fn, "__module__", None) == "__main__" and is_interactive():
        raise _not_portable(fn)
    name = getattr(fn, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"{fn.__name__!r}, defined inside another function,"  # type: ignore[attr-defined]
        raise ImportError(
            f"{what} has no name that other processes could import: define a function at the top level of a module, "
            "or use start_method='fork'"
        )


def _not_portable(thing: Any) -> ImportError:
    return ImportError(
        f"{getattr(thing, '__name__', thing)!r} is defined in a notebook or in the interpreter, which other processes "
        "cannot import: `pip install 'shmring[notebook]'` installs cloudpickle, which passes it by value; or move "
        "it into a module; or use start_method='fork'"
    )


class _PortablePickler(reduction.ForkingPickler):
    """The pickler of multiprocessing; refuses objects that a started process could not import."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (type, FunctionType)) and thing.__module__ == "__main__":
            raise _not_portable(thing)
        return NotImplemented


def dump(thing: object, file: IO[bytes]) -> None:
    """Pickle for a process that is being started: also locks, connections and ends of channels."""
    pickler: Any = reduction.ForkingPickler
    if is_interactive():
        pickler = _PortablePickler if _cloudpickle() is None else _pickler()
    pickler(file, pickle.HIGHEST_PROTOCOL).dump(thing)


def dumps(thing: object) -> bytes:
    """Pickle for the process that has started this one."""
    try:
        return pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError):
        found = _cloudpickle() if is_interactive() else None
        if found is None:
            raise
        return found.dumps(thing)


def _cloudpickle() -> ModuleType | None:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


@cache
def _pickler() -> Any:
    """cloudpickle's, with the reducers of multiprocessing."""
    base: Any = _cloudpickle().CloudPickler  # type: ignore[union-attr]
    reducers: Any = reduction.ForkingPickler
    return type("Pickler", (base,), {"dispatch_table": ChainMap({}, reducers._extra_reducers, base.dispatch_table)})
