"""The public surface of shmring, found by introspection: classes, their members, functions.

No call is listed by hand, so a new one is attacked from the day it is added.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import is_dataclass
from functools import cache

import shmring
import shmring.ring
from shmring.collectives.calls.mpi_names import Hint

# Public though not exported by `shmring` or `shmring.ring`: what calls return, and what a page mentions.
DOCUMENTED = ("shmring.dtypes.is_defined",)
# Not attacked: `from_mpi` starts MPI, or has no mpi4py (tests/mpi); a timeline writes files (tests/multiproc/watch).
ELSEWHERE = ("from_mpi", "Timeline")

# Operators and protocols as expressions, `{0}` being the object: special methods are called through these.
PROTOCOLS = {
    "__add__": "{0} + key",
    "__array__": "np.array({0})",
    "__aiter__": "aiter({0})",
    "__anext__": "asyncio.run(awaiting(anext({0}, None)))",
    "__await__": "asyncio.run(awaiting({0}))",
    "__bool__": "bool({0})",
    "__buffer__": "bytes(memoryview({0}))",
    "__bytes__": "bytes({0})",
    "__call__": "{0}()",
    "__class_getitem__": "type({0})[int]",
    "__copy__": "copy.copy({0})",
    "__deepcopy__": "copy.deepcopy({0})",
    "__del__": "{0}.__del__()",
    "__delitem__": "operator.delitem({0}, key)",
    "__dir__": "dir({0})",
    "__dlpack__": "{0}.__dlpack__()",
    "__dlpack_device__": "{0}.__dlpack_device__()",
    "__enter__": "{0}.__enter__()",
    "__eq__": "{0} == {0}",
    "__exit__": "{0}.__exit__(None, None, None)",
    "__floordiv__": "{0} // key",
    "__getattr__": "getattr({0}, 'no_such_name', None)",
    "__getitem__": "{0}[key]",
    "__hash__": "hash({0})",
    "__init__": "{0}.__init__()",
    "__iter__": "list(itertools.islice({0}, 3))",
    "__len__": "len({0})",
    "__lt__": "{0} < {0}",
    "__matmul__": "{0} @ {0}",
    "__mod__": "{0} % key",
    "__mul__": "{0} * key",
    "__neg__": "-{0}",
    "__pow__": "{0} ** key",
    "__radd__": "key + {0}",
    "__rfloordiv__": "key // {0}",
    "__rmatmul__": "np.ones(3) @ {0}",
    "__rmod__": "key % {0}",
    "__rmul__": "key * {0}",
    "__rpow__": "key ** {0}",
    "__rsub__": "key - {0}",
    "__rtruediv__": "key / {0}",
    "__sub__": "{0} - key",
    "__truediv__": "{0} / key",
    "__next__": "next({0})",
    "__reduce_ex__": "pickle.loads(pickle.dumps({0}))",
    "__repr__": "repr({0})",
    "__setitem__": "operator.setitem({0}, key, value)",
    "__sizeof__": "sys.getsizeof({0})",
    "__weakref__": "weakref.ref({0})",
}
# What every object is asked for, whether or not its class has a method for it.
ALWAYS = ("__array__", "__buffer__", "__copy__", "__deepcopy__")


@cache
def exported() -> dict[str, object]:
    """What users get by name, errors and records excluded: from the package, `shmring.ring`, and `DOCUMENTED`."""
    names = {f"shmring.{name}": getattr(shmring, name) for name in shmring.__all__ if name not in ELSEWHERE}
    names |= {f"shmring.ring.{name}": value for name, value in vars(shmring.ring).items() if name[0] != "_"}
    for name in DOCUMENTED:
        module, _, attribute = name.rpartition(".")
        names[name] = getattr(importlib.import_module(module), attribute)
    plain = (BaseException, tuple)  # errors, and records: named tuples have the methods of every tuple
    types = {name: value for name, value in names.items() if isinstance(value, type)}
    is_plain = {name for name, value in types.items() if issubclass(value, plain) or is_dataclass(value)}
    return {name: value for name, value in names.items() if callable(value) and name not in is_plain}


@cache
def classes() -> dict[str, type]:
    """Public classes by name: those whose objects are attacked."""
    return {name: value for name, value in exported().items() if isinstance(value, type)}


@cache
def functions() -> dict[str, object]:
    """Public functions by name."""
    return {name: value for name, value in exported().items() if not isinstance(value, type)}


def methods(cls: type) -> list[str]:
    """Public methods of a class, without those that import torch: a handler that raises in its import breaks it."""
    return [name for name in dir(cls) if name[0] != "_" and name != "tensor" and callable(getattr(cls, name))]


def attributes(cls: type) -> list[str]:
    """Public attributes and properties of a class."""
    found = [name for name in dir(cls) if name[0] != "_" and not callable(getattr(cls, name))]
    return [name for name in found if not isinstance(getattr(cls, name), Hint)]


def protocols(cls: type) -> list[str]:
    """Operators and protocols of a class, and those that it should refuse."""
    return [name for name in PROTOCOLS if hasattr(cls, name) or name in ALWAYS]


def parameters(function) -> list[inspect.Parameter]:
    """Parameters of a function, without ``self``."""
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]
