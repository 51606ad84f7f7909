"""Every fact that must be equal on all ranks is guarded: ranks that differ in it get an error, never a wrong result.

The table of ``docs/maintainers/agreement.md``, row by row. Arguments of calls are in `test_disagreement.py`, settings
that the rendezvous compares in `tests/multiproc/bootstrap/test_calibration.py`.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from support import compiled
from support.harness import run_ranks
from support.on_ranks import on_ranks

from shmring.errors import MismatchError

hooks = compiled.load("engine_hooks")

COUNT = 100_000
TWO_SHOT, EXCHANGE = "two_shot, [0-9]+ rounds? of [0-9]+ bytes", "exchange, [0-9]+ rounds? of [0-9]+ bytes"


def ones(comm, count=COUNT):
    return np.full(count, comm.rank + 1.0, np.float32)


def tune(comm, **changes):
    """Other thresholds than those of the other ranks."""
    limits = {name: changes.pop(name) for name in list(changes) if hasattr(comm._engine.limits, name)}
    thresholds = comm._engine.thresholds
    comm._engine.apply_tuning(replace(thresholds, limits=replace(thresholds.limits, **limits), **changes))


def all_reduce(comm, count=COUNT):
    assert (comm.all_reduce(ones(comm, count)) == sum(range(1, comm.size + 1))).all()


def all_reduce_shared(comm):
    x = comm.array(ones(comm))
    comm.all_reduce(x)


def broadcast_shared(comm):
    x = comm.array(ones(comm))
    comm.broadcast(x, root=0)


def until_trials(comm):
    """Calls until the learners try another schedule, which is late on a busy machine."""
    while True:
        all_reduce(comm, 40_000)


def learn(comm):
    for _ in range(5):
        all_reduce(comm, 40_000)


# Settings of all ranks, calls of all ranks before the change on rank 1, the change, the call that fails, and what its
# error must show.
FACTS = {
    "first schedule": (
        {"one_shot_nbytes": 0}, None, lambda c: hooks.begin_with(c._engine, exchanges=False), all_reduce,
        f"{EXCHANGE}, rank . by {TWO_SHOT}|{TWO_SHOT}, rank . by {EXCHANGE}"),
    "threshold of one shot": (
        {"one_shot_nbytes": 0}, None, lambda c: tune(c, one_shot_nbytes=1 << 30), all_reduce,
        "one_shot, [0-9]+ rounds? of"),
    "threshold of flat reduces": (
        {}, None, lambda c: tune(c, flat_reduce_nbytes=0),
        lambda c: c.reduce(ones(c), root=0), "flat, .* by sliced|sliced, .* by flat"),
    "size of a round": (
        {}, None, lambda c: tune(c, round_nbytes=4096), all_reduce, "rounds of 4096 bytes"),
    "size of an eager message": (
        {}, None, lambda c: tune(c, eager_nbytes=64), lambda c: all_reduce(c, 100), "by an eager exchange"),
    "domains": (
        {}, None, lambda c: tune(c, levels=((0, *[1] * (c.size - 1)),), hierarchical_nbytes=0), all_reduce,
        "hierarchical, [0-9]+ round"),
    "number of threads": (
        {"threads": 2, "split_nbytes": 1 << 16}, None, lambda c: hooks.split_from(c._engine, 1e30), all_reduce,
        ", 2 threads"),
    "first path": (
        {}, None, lambda c: hooks.begin_with(c._engine, path=1), all_reduce_shared, "by an eager exchange"),
    "size from which a root waits": (
        {}, lambda c: c.array(np.ones(1)), lambda c: setattr(c._engine.sharing, "rooted_nbytes", 0), broadcast_shared,
        "staged, [0-9]+ round"),
    "calls that a learner has counted": (
        {"one_shot_nbytes": 0}, learn, lambda c: hooks.count_one_more(c._engine), until_trials,
        f"{EXCHANGE}, rank . by {TWO_SHOT}|{TWO_SHOT}, rank . by {EXCHANGE}"),
    "history": (
        {}, learn, lambda c: hooks.mix_into_history(c._engine, 1), all_reduce, "an earlier one"),
}  # fmt: skip


def differ(comm, fact):
    _, before, change, call, _ = FACTS[fact]
    if before:
        before(comm)
    if comm.rank == 1:
        change(comm)
    with pytest.raises(MismatchError) as caught:
        call(comm)
        comm.barrier()  # where a root ends its part
    return str(caught.value)


@pytest.mark.parametrize("fact", FACTS)
def test_ranks_that_differ_in_a_fact_get_an_error_that_names_it(fact):
    settings, *_, pattern = FACTS[fact]
    found = run_ranks(3, differ, fact, init=settings)
    assert all(one == found[0] for one in found)
    assert re.search(pattern, found[0]), found[0]
    assert "ranks disagree in " in found[0]


@on_ranks(3)
def test_stores_may_differ(comm):
    hooks.begin_with(comm._engine, stores=comm.rank)
    for _ in range(50):
        all_reduce(comm)


@on_ranks(2, init={"one_shot_nbytes": 0})
def test_what_ranks_learn_alone_does_not_change_how_others_begin(comm):
    """Stores learned alone differ between ranks; an exchange that came into use meanwhile stays in use on all."""
    hooks.begin_with(comm._engine, stores=comm.rank, exchanges=False)
    all_reduce(comm)
    hooks.begin_with(comm._engine, exchanges=True)
    for _ in range(100):  # until a choice of rank 0, with the stores that it began with, has taken effect
        all_reduce(comm)
    for count in range(COUNT + 1, COUNT + 20):
        all_reduce(comm, count)
