"""Arguments and results of `spawn` whose functions and classes no other process could import, pickled by value.

A process that is started finds a function by its module. Those of a notebook, of the interpreter, of ``python -c``, of
a program on standard input and of the ``__main__.py`` of a package or archive have none that it could import:
cloudpickle, if it is installed, pickles them by value.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import reduction
from multiprocessing.resource_sharer import DupFd
from types import FunctionType, ModuleType
from typing import IO, Any

from shmring.core.objects.open_files import ENDED, refusing
from shmring.core.objects.tensors import registered


def place_of_main() -> str:
    """Where the functions of ``__main__`` are defined, if other processes cannot import that; else an empty text."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return "the __main__.py of a package or archive" if spec.name.rpartition(".")[2] == "__main__" else ""
    if file is None:
        return "a notebook or in the interpreter"
    return "" if os.path.exists(file) else "a program on standard input"


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """While a process is started: keep it from importing a program on standard input, under a name that is no file."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None or not hasattr(main, "__file__") or not place_of_main():
        yield
        return
    file = main.__file__
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def check_portable(fn: object) -> None:
    """Raise ImportError if a process that is started could not get this function."""
    while isinstance(fn, partial):
        fn = fn.func
    if place_of_main() and _cloudpickle() is not None:
        return
    if getattr(fn, "__module__", None) == "__main__" and place_of_main():
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
        f"{getattr(thing, '__name__', thing)!r} is defined in {place_of_main()}, which other processes "
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
    if place_of_main():
        pickler = _PortablePickler if _cloudpickle() is None else _pickler()
    pickler(file, pickle.HIGHEST_PROTOCOL).dump(thing)


def dumps(thing: object) -> bytes:
    """Pickle for the process that has started this one, and unpickles when this one has ended."""
    file = io.BytesIO()
    try:
        pickler: Any = pickle.Pickler(file)
        pickler.dispatch_table = registered(False, ENDED)
        pickler.dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError):
        if not place_of_main() or _cloudpickle() is None:
            raise
        file = io.BytesIO()
        _pickler()(file).dump(thing)
    return file.getvalue()


def _cloudpickle() -> ModuleType | None:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


@cache
def _pickler() -> Any:
    """cloudpickle's, with the reducers of multiprocessing.

    While a process is started, open files are passed to it by another class than the one that is refused.
    """
    base: Any = _cloudpickle().CloudPickler  # type: ignore[union-attr]
    reducers = {**reduction.ForkingPickler._extra_reducers, DupFd: refusing(ENDED)}  # type: ignore[attr-defined]
    return type("Pickler", (base,), {"dispatch_table": ChainMap({}, reducers, base.dispatch_table)})
