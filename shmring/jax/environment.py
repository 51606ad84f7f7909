"""The environment variables that jaxlib reads when it is imported, and shmring's cluster for JAX.

Imports nothing of jax by itself.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec

# Registers shmring's exit handlers before jax is imported, so they run after JAX's, which may still have work under
# way.
import shmring.core.base.lifecycle  # noqa: F401

_CLUSTERS = "jax._src.clusters"
_HOW = (
    "start the program with `shmring run --jax -n N script.py` or `python -m shmring.jax script.py`, or call "
    "shmring.jax.initialize() before the first `import jax`"
)


def library() -> str:
    """The path of the library that jaxlib opens."""
    spec = find_spec("shmring.jax._mpi")
    if spec is None or spec.origin is None:
        raise ImportError("shmring.jax._mpi is missing: this shmring was built without it")
    return spec.origin


def prepare() -> None:
    """Set the variables of this process and of those that it starts; RuntimeError if jaxlib was imported without them.

    May be called again.
    """
    if "jaxlib" in sys.modules:
        check_opened()
    os.environ.update(MPITRAMPOLINE_LIB=library(), JAX_CPU_COLLECTIVES_IMPLEMENTATION="mpi")
    # To be looked up among symbols, and opened when jaxlib is loaded; not in a namespace of its own.
    for name in ("MPITRAMPOLINE_DELAY_INIT", "MPITRAMPOLINE_DLOPEN_MODE"):
        os.environ.pop(name, None)
    if _CLUSTERS in sys.modules:
        import shmring.jax.cluster  # noqa: F401  (registers)
    elif not any(isinstance(finder, _AfterClusters) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterClusters())


def check_opened() -> None:
    """Raise if jaxlib, which has been imported, has not opened the library."""
    from shmring.jax._mpi import is_opened

    if not is_opened():
        raise RuntimeError(
            f"jax was imported before shmring.jax could set MPITRAMPOLINE_LIB, which jaxlib reads once: {_HOW}"
        )


class _AfterClusters(MetaPathFinder):
    """Registers shmring's cluster after JAX's own, so that `jax.distributed.initialize()` finds it."""

    def find_spec(self, name, path=None, target=None):
        """Wrap the loader of that one module."""
        if name != _CLUSTERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module) -> None:
            load(module)
            sys.meta_path.remove(self)
            import shmring.jax.cluster  # noqa: F401  (registers)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
