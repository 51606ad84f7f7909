"""Objects that were never made, copied, closed, or interrupted: every use of them is an answer or an error."""

import contextlib
import copy
import importlib
import pickle

import numpy as np
import pytest
from support.harness import start_processes
from support.on_ranks import on_ranks

from shmring import Communicator
from shmring.errors import ClosedError

MODULES = [
    "communicator", "collective.coalesced", "collective.call", "collective.calls", "collective.local",
    "shared.moved", "shared.registry", "shared.zero_copy", "p2p.matching", "p2p.pair_queue",
    "p2p.point_to_point", "p2p.progress", "p2p.requests",
]  # fmt: skip


def extension_types():
    for name in MODULES:
        module = importlib.import_module(f"shmring.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and "__pyx_vtable__" in dir(value):
                yield value


def try_every_method(thing):
    """Call every method with few arguments, any of which may raise."""
    for name in dir(type(thing)):
        if name in ("__class__", "__init_subclass__", "__subclasshook__", "__new__", "__dir__"):
            continue
        for arguments in ((), (None,), (0,), (None, None), (0, 0), ([], 0)):
            try:
                found = getattr(thing, name)
                if callable(found):
                    found(*arguments)
            except Exception:
                pass
    for use in (repr, hash, copy.copy, copy.deepcopy, pickle.dumps, memoryview, len, iter):
        with contextlib.suppress(Exception):
            use(thing)


def use_what_was_not_made(rank):
    kinds = list(extension_types())
    assert len(kinds) > 12
    for kind in kinds:
        for arguments in ((), (None,), (None, None), (None, 1, [], 1, 1), (None, 1, None, 1, 1), (-1,), (1 << 30,)):
            for make in (kind, kind.__new__):
                try:
                    thing = make(*arguments) if make is kind else make(kind, *arguments)
                except Exception:
                    continue
                try_every_method(thing)


def test_types_that_are_used_before_they_are_made_raise():
    start_processes(1, use_what_was_not_made).results()


class Forgetful(Communicator):
    def __init__(self, *args):
        pass  # without super().__init__()


def ones():
    return np.ones(4)


@on_ranks(1)
def test_what_is_used_after_close_raises(comm):
    forgetful = Forgetful(comm.engine)
    x = comm.empty(5)
    plan, request, work = comm.plan("all_reduce", ones()), comm.irecv(ones(), 0, 3), comm.barrier(async_op=True)
    many, counted = comm.plan("all_reduce_many", [ones()]), comm.plan("all_to_all", ones(), counts=[4], out_counts=[4])
    for thing in (comm, request, work, plan, many, counted):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                duplicate(thing)
    assert not request.done()
    comm.close()
    for thing in (comm, request, work, plan, many, counted, forgetful, comm.object_turn, comm.engine.sharing):
        try_every_method(thing)
    with pytest.raises(ClosedError):
        request.wait()
    for call in (plan, many, counted, plan.start, lambda: comm.all_gather_object(1)):
        with pytest.raises(ClosedError):
            call()
    x[:] = 1
