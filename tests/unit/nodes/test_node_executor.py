"""The executor of a communicator over several nodes: what it keeps, and what it does not take for the same call."""

import gc
import weakref

import numpy as np
import pytest
from support.nodes_groups import OwnGroup

import shmring
from shmring.nodes.wire import WireError

CALLS = {
    "call": lambda comm, x: comm.broadcast(x),
    "call with an output": lambda comm, x: comm.all_gather(x, np.empty((2, *x.shape))),
    "plan": lambda comm, x: comm.plan("broadcast", x)(),
    "function": lambda comm, x: comm.all_reduce(x, op=np.subtract),
    "one of many": lambda comm, x: comm.broadcast_many([x]),
    "exchange of counts": lambda comm, x: comm.all_to_all(x, counts=[0, len(x)]),
}


@pytest.fixture
def group():
    made = []

    def make(*args, **methods):
        made.append(OwnGroup(*args, **methods))
        return made[-1]

    yield make
    for one in made:
        one.local.close()


@pytest.mark.parametrize("name", CALLS)
def test_after_a_failure_the_wire_keeps_the_memory_of_the_call(group, name):
    def lose(*_):
        raise WireError(shmring.PeerLostError("gone", 1))

    abandoned = []
    comm = group(2, send=lose, recv=lose, abandon=abandoned.append).comm
    x = np.arange(40_000.0)
    memory = weakref.ref(x)
    with pytest.raises(shmring.PeerLostError, match="gone"):
        CALLS[name](comm, x)
    del x
    gc.collect()
    assert memory() is not None
    abandoned.clear()
    gc.collect()
    assert memory() is None


def test_calls_that_differ_only_in_their_counts_have_programs_of_their_own(group):
    sent = []

    def send(data, peer, channel, number=0):
        sent.append(data.nbytes)

    comm = group(3, send=send, recv=lambda data, *_: data.fill(0), wait=lambda *_: None).comm
    x = np.arange(30.0)
    for counts in ([30, 0, 0], [10, 10, 10], [30, 0, 0], [10, 10, 10]):
        sent.clear()
        comm.scatter(x, np.empty(counts[0]), counts=counts)
        assert sorted(n for n in sent if n % 80 == 0) == [8 * n for n in counts[1:] if n], (counts, sent)


def test_a_plan_names_its_call_and_the_nodes(group):
    plan = group(2).comm.plan("all_reduce", np.ones(1000), op="max")
    assert plan.name == "all_reduce(max, float64 x 1000)"
    assert "over 2 nodes" in plan.describe()
    assert "over 2 nodes" in repr(plan)
