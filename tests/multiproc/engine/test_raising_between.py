"""What is raised between the steps of a call leaves it whole: it has not begun, or it is aborted on all ranks."""

import signal

import numpy as np
import pytest
from support import compiled
from support.harness import run_ranks
from support.on_ranks import on_ranks

from shmring.collectives import engine
from shmring.collectives.engine.recording import show_calls
from shmring.collectives.shared import zero_copy
from shmring.errors import AbortedError

hooks = compiled.load("engine_hooks")

COUNT = 100_000


class Raises:
    """A range of a profiler that raises at the numbers given, counted from 1."""

    def __init__(self, *at):
        self.at, self.entered = at, 0

    def __call__(self, call, facts):
        return self

    def __enter__(self):
        self.entered += 1
        if self.entered in self.at:
            raise KeyboardInterrupt

    def __exit__(self, *_):
        pass


def shared_sum(comm, x):
    x[...] = comm.rank + 1.0
    comm.all_reduce(x)
    assert (x == sum(range(1, comm.size + 1))).all()


@on_ranks(2, 3)
def test_an_interrupt_while_the_plan_of_a_direct_call_is_made_leaves_the_communicator_usable(comm):
    x = comm.array(np.zeros(COUNT, np.float32))
    if comm.rank == 1:
        build, zero_copy.build_plan = zero_copy.build_plan, interrupted
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(x)
        zero_copy.build_plan = build
        assert not comm.is_broken
    for _ in range(3):
        shared_sum(comm, x)
    assert comm._engine.sharing.nzero_copy == 3


def interrupted(*_):
    raise KeyboardInterrupt


@on_ranks(2, 3)
def test_an_interrupt_between_the_agreement_and_a_direct_call_aborts_it(comm):
    x = comm.array(np.zeros(COUNT, np.float32))
    if comm.rank == 1:
        show_calls({"runs": True}, "runs", Raises(2))  # the agreement has a range of its own, the first
    with pytest.raises(KeyboardInterrupt if comm.rank == 1 else AbortedError):
        comm.all_reduce(x)
    show_calls(None)
    assert comm.is_broken


@on_ranks(2, 3, init={"one_shot_nbytes": 0})
def test_calls_that_a_profiler_did_not_let_begin_are_not_counted(comm):
    """Schedules are tried meanwhile: a rank whose learner is a call ahead would execute another one."""
    x = np.zeros(COUNT, np.float32)
    for number in range(400):
        if comm.rank == 1 and number % 7 == 3:
            show_calls({"runs": True}, "runs", Raises(1))
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(x)
            show_calls(None)
        shared_sum(comm, x)
    (program,) = comm.stats()["programs"]
    assert program["calls"] == 400


def interrupted_in_a_note(comm):
    if comm.rank == 1:
        hooks.write_notes_after(0.05)
        engine.engine.explain = interrupted
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(np.ones(COUNT))
    else:
        while not comm.is_broken:
            signal.sigtimedwait([], 0.01)
        with pytest.raises(AbortedError):
            comm.all_reduce(np.ones(COUNT))


def test_an_interrupt_in_the_note_of_a_long_wait_aborts_the_call():
    run_ranks(2, interrupted_in_a_note)


# ---- what is kept of calls that recur --------------------------------------------------------------------------------


@on_ranks(2)
def test_calls_with_changing_counts_displace_no_plan_and_no_learner_of_calls_that_recur(comm):
    x = np.ones(COUNT, np.float32)
    for number in range(300):
        counts = [2000 + number, 3000]
        comm.all_gather(np.ones(counts[comm.rank], np.float32), counts=counts)
        comm.all_reduce(x)
    (kept,) = [program for program in comm.stats()["programs"] if program["kind"] == "all_reduce"]
    assert kept["calls"] == 300


@on_ranks(2)
def test_the_plan_that_was_used_least_lately_goes_first(comm):
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x)
    for number in range(300):
        comm.all_reduce(np.ones(5000 + number, np.float32))
        if number % 100 == 0:
            comm.all_reduce(x)
    sizes = [program["nbytes"] for program in comm.stats()["programs"]]
    assert len(sizes) == 256
    assert x.nbytes in sizes
    assert 4 * 5000 not in sizes
