"""One rule for all timeouts of a communicator, its groups, requests and works.

None, infinite and huge ones are no limit; NaN, negative ones and what is no number are errors before anything is done.
"""

import inspect
from functools import partial

import numpy as np
import pytest
from support.calls import arguments_of
from support.on_ranks import on_ranks

import shmring
from shmring import Communicator
from shmring.collectives.p2p.requests import Request
from shmring.collectives.plan.kinds import COLLECTIVES


def ones():
    return np.ones(4)


def received(comm, receive):
    """What ``receive`` gets of a message of this rank to itself; without the message if it raises."""
    comm.send(ones(), 0, 5)
    try:
        return receive()
    finally:
        if comm.iprobe(0, 5):
            comm.recv(ones(), 0, 5)


def received_object(comm, t):
    comm.send_object("text", 0, 6)
    try:
        return comm.recv_object(0, 6, timeout=t)
    finally:
        if comm.iprobe(0, 6):
            comm.recv_object(0, 6)


def collective(name, comm, t):
    args, keywords = arguments_of(name, 1)
    return getattr(comm, name)(*args, **keywords, timeout=t)


# By name of the method: a call that needs no other rank.
CALLS = {
    **{name: partial(collective, name) for name in COLLECTIVES},
    "broadcast_object": lambda comm, t: comm.broadcast_object(1, timeout=t),
    "reduce_object": lambda comm, t: comm.reduce_object(1, timeout=t),
    "all_reduce_object": lambda comm, t: comm.all_reduce_object(1, timeout=t),
    "gather_object": lambda comm, t: comm.gather_object(1, timeout=t),
    "all_gather_object": lambda comm, t: comm.all_gather_object(1, timeout=t),
    "scatter_object": lambda comm, t: comm.scatter_object([1], timeout=t),
    "all_to_all_object": lambda comm, t: comm.all_to_all_object([1], timeout=t),
    "send": lambda comm, t: received(comm, lambda: comm.send(ones(), 0, 5, timeout=t)),
    "recv": lambda comm, t: received(comm, lambda: comm.recv(ones(), 0, 5, timeout=t)),
    "sendrecv": lambda comm, t: received(comm, lambda: comm.sendrecv(ones(), 0, ones(), 0, tag=5, timeout=t)),
    "probe": lambda comm, t: received(comm, lambda: comm.probe(0, 5, timeout=t)),
    "send_object": lambda comm, t: comm.send_object(1, 0, timeout=t) or comm.recv_object(),
    "recv_object": received_object,
    "split": lambda comm, t: comm.split(0, rendezvous_timeout=t).close(),
    "subgroup": lambda comm, t: comm.subgroup([0], rendezvous_timeout=t).close(),
    "dup": lambda comm, t: comm.dup(rendezvous_timeout=t).close(),
    "shrink": lambda comm, t: comm.shrink(rendezvous_timeout=t).close(),
}
OTHERS = {
    "gather, counts": lambda comm, t: comm.gather(ones(), counts=[4], timeout=t),
    "all_to_all, counts": lambda comm, t: comm.all_to_all(ones(), counts=[4], timeout=t),
    "plan": lambda comm, t: comm.plan("all_reduce", ones(), timeout=t)(),
    "async": lambda comm, t: comm.all_reduce(ones(), timeout=t, async_op=True).wait(),
    "work.wait": lambda comm, t: comm.barrier(async_op=True).wait(t),
    "work.result": lambda comm, t: comm.barrier(async_op=True).result(t),
    "work.exception": lambda comm, t: comm.barrier(async_op=True).exception(t),
    "work.wait, done": lambda comm, t: done(comm.barrier(async_op=True)).wait(t),
    "request.wait": lambda comm, t: received(comm, lambda: comm.irecv(ones(), 0, 5).wait(t)),
    "request.result": lambda comm, t: received(comm, lambda: comm.irecv(ones(), 0, 5).result(t)),
    "request.exception": lambda comm, t: received(comm, lambda: comm.irecv(ones(), 0, 5).exception(t)),
}
NO_LIMIT = (None, float("inf"), 1e300, 10**400, np.float32(9e9))
BAD = {ValueError: (float("nan"), -1, -1e-9, float("-inf"), -(10**400)), TypeError: ("1", [], object())}


def done(work):
    work.wait()
    return work


@on_ranks(1)
def test_every_timeout_follows_the_same_rule(comm):
    for name, call in {**CALLS, **OTHERS}.items():
        for t in NO_LIMIT:
            call(comm, t)
        for error, values in BAD.items():
            for t in values:
                with pytest.raises(error, match="timeout="):
                    call(comm, t)
                    raise AssertionError(f"{name}(timeout={t!r}) raised no {error.__name__}")
    assert comm.iprobe() is None


def test_every_call_with_a_timeout_is_tested():
    found = {
        name
        for name in dir(Communicator)
        if not name.startswith("_") and {"timeout", "rendezvous_timeout"} & parameters(Communicator, name)
    }
    assert found == set(CALLS)
    for kind in (Request, shmring.Work):
        with_timeout = {name for name in dir(kind) if name[0] != "_" and "timeout" in parameters(kind, name)}
        assert with_timeout == {"wait", "result", "exception"}


def parameters(kind, name):
    try:
        return set(inspect.signature(getattr(kind, name)).parameters)
    except (TypeError, ValueError):
        return set()
