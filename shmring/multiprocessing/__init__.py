"""The standard library's `multiprocessing` with queues, pipes, pools and executors that go through shared memory.

`get_context` returns a context of the standard library. Its ``Queue``, ``JoinableQueue``, ``SimpleQueue``, ``Pipe`` and
``Pool`` send through rings of shmring, large arrays in the arguments of a ``Process`` are blocks, and memory with a
name (``shared_memory``) ends with its last holder; everything else (``Lock``, ``Event``, ``Value``, ...) is the
standard library's own. This module has the standard module's names, so ``import shmring.multiprocessing as
multiprocessing`` is enough for a program that uses it.
`ProcessPoolExecutor` is that of `concurrent.futures`.

On systems other than Linux the module gives the standard library's classes, with a warning.
"""

import multiprocessing as _standard
import sys as _sys
import warnings as _warnings
from importlib import import_module as _import_module
from importlib import util as _util
from typing import Any

__all__ = list(_standard.__all__)

if _sys.platform == "linux":
    from shmring.core.memory.descriptor import hold_standard
    from shmring.multiprocessing import connection, context, pool, queues  # noqa: F401 as in the standard module
    from shmring.multiprocessing.executor import ProcessPoolExecutor as ProcessPoolExecutor

    hold_standard()
    globals().update((name, getattr(context.default_context, name)) for name in __all__)
else:
    _warnings.warn(
        f"shmring needs Linux, and this system is {_sys.platform}: shmring.multiprocessing gives the standard "
        "library's multiprocessing here",
        RuntimeWarning,
        stacklevel=2,
    )
    from concurrent.futures import ProcessPoolExecutor  # type: ignore[assignment] # noqa: F401

    globals().update((name, getattr(_standard, name)) for name in __all__)
    for _name in ("connection", "context", "pool", "queues", "shared_memory"):
        globals()[_name] = _sys.modules[f"{__name__}.{_name}"] = _import_module(f"multiprocessing.{_name}")


class _StandardModules:
    """Finds the modules that are the standard library's alone: ``import shmring.multiprocessing.dummy``."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        package, _, module = name.rpartition(".")
        if package != __name__ or _util.find_spec(f"multiprocessing.{module}") is None:
            return None
        return _util.spec_from_loader(name, _StandardModules)  # type: ignore[arg-type] # a class serves as well

    @staticmethod
    def create_module(spec: Any) -> None:
        """None: a module as usual, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: Any) -> None:
        _sys.modules[module.__name__] = _import_module(module.__name__.removeprefix("shmring."))


_sys.meta_path.append(_StandardModules)  # after the finders of our own modules


def __getattr__(name: str) -> Any:
    return getattr(_standard, name)
