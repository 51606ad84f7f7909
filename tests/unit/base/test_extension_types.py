"""Every extension type: half-made objects survive all their methods, and nothing is copied by accident."""

import copy
import importlib
import inspect
import pickle
import pkgutil

import numpy as np
import pytest
from support.children import in_child, status_of

import shmring

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code
NOT_IMPORTED = (
    "shmring.torch",
    "shmring.jax",
    "shmring.vllm",
    "shmring.nodes.mpi_wire",
    "shmring.__main__",
    "shmring.cli",
    "shmring.bench",
)


def extension_types():
    """The types that compiled modules of the package define, by qualified name."""
    found = {}
    for info in pkgutil.walk_packages(shmring.__path__, "shmring."):
        if info.name.startswith(NOT_IMPORTED):
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name and not value.__flags__ & HEAP_TYPE:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


TYPES = extension_types()


def half_made(kind):
    """An object without __init__; None if it cannot be made without arguments."""
    try:
        return kind.__new__(kind)
    except TypeError:
        return None


def use_everything(kind):
    """Use an object without __init__ in every way that needs no knowledge of it; errors are answers, too."""
    arguments = [(), (None,), (0,), (b"12345678",), (np.zeros(3),), (1, 2), (None, None, None)]
    for name in [None, *dir(kind)]:
        for values in arguments:
            made = half_made(kind)
            for ask in (repr, len, iter, hash, bool, memoryview, bytes) if name is None else ():
                attempt(ask, made)
            if name is not None and name not in ("__class__", "__init_subclass__", "__new__"):
                attempt(lambda made=made, name=name, values=values: getattr(made, name)(*values))
    attempt(lambda: kind.__init__(half_made(kind)))


def attempt(call, *values):
    try:
        call(*values)
    except Exception as error:
        if isinstance(error, (SystemError, MemoryError)):
            raise


def test_there_are_extension_types():
    assert {"shmring.arrays.lease.Lease", "shmring.ring.end.Producer", "shmring.channels.sender.Sender"} <= set(
        TYPES
    )


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_an_object_without_init_survives_every_call(kind):
    if half_made(kind) is not None:
        assert status_of(in_child(use_everything, kind)) == 0


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_an_object_is_copied_only_where_its_class_defines_how(kind):
    made = half_made(kind)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return
    assert not hasattr(kind, "__setstate__")
    assert inspect.ismethoddescriptor(kind.__reduce__)
    if made is None:
        assert kind.__basicsize__ > object.__basicsize__  # of such objects Python copies none by itself
        return
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(made)
