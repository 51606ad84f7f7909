"""Signal handlers that raise, or make calls, at any moment: no lock stays taken, and nothing waits for itself."""

import contextlib
import gc
import os
import random
import secrets
import signal
import time
from functools import partial

import numpy as np
import pytest
from support.harness import PATIENCE
from support.interrupts import Interrupts, collector_off
from support.on_ranks import on_processes, on_ranks
from support.threads import at_once

import shmring
from shmring.collectives.calls.progress_thread import ProgressThread, progress_of
from shmring.errors import AbortedError

MOMENTS_S = 2e-6, 2e-4
ROUNDS = 12

CALLS = {
    "broadcast_object": lambda comm: comm.broadcast_object({"a": 1}),
    "gather_object": lambda comm: comm.gather_object("a" * 1000),
    "all_gather_object": lambda comm: comm.all_gather_object(np.ones(3000)),
    "scatter_object": lambda comm: comm.scatter_object(["a" * 1000]),
    "all_to_all_object": lambda comm: comm.all_to_all_object(["a" * 1000]),
    "all_reduce": lambda comm: comm.all_reduce(np.ones(3)),
    "all_reduce of a plan": lambda comm: comm.all_reduce(np.ones(100_000)),
    "asynchronous all_reduce": lambda comm: comm.all_reduce(np.ones(3), async_op=True).wait(60 * PATIENCE),
    "message": lambda comm: (comm.isend(np.ones(3), 0), comm.recv(np.ones(3), 0)),
    "group": lambda comm: comm.dup().close(),
}


def repeat(call, comm):
    """Make calls without end; in vain, once an interrupt between two collectives has broken the communicator."""
    while True:
        with contextlib.suppress(AbortedError):
            call(comm)


# A collection may take ended threads out of a set of `threading`, by Python code in which an interrupt is lost.
@on_processes(1)
@collector_off()
def test_interrupted_calls_leave_no_lock_on_communicators_that_may_be_broken(rank, seed):
    interrupts = Interrupts(seed, *MOMENTS_S)
    for call in CALLS.values():
        for number in range(ROUNDS):
            with shmring.init(rank=0, size=1, session=secrets.token_hex(8)) as comm:
                if number % 4 == 3:
                    comm.abort("for the test")
                for _ in range(3):
                    assert interrupts.during(repeat, call, comm)
                with pytest.raises(AbortedError) if comm.is_broken else contextlib.nullcontext():
                    at_once(partial(call, comm))  # waits for ever if a turn was left taken


@on_processes(1)
@collector_off()
def test_interrupted_inits_leave_no_lock(rank, seed):
    interrupts, session = Interrupts(seed, *MOMENTS_S), secrets.token_hex(8)

    def make():
        while True:
            shmring.init(rank=0, size=1, session=session).close()

    for _ in range(60):
        assert interrupts.during(make)


class Finalized:
    """Submits work when the garbage collector finds it."""

    def __init__(self, comm, submitted):
        self.comm, self.submitted, self.itself = comm, submitted, self

    def __del__(self):
        self.submitted.append(self.comm.all_reduce(np.ones(3), async_op=True))


@pytest.mark.parametrize("how", ["handler", "finalizer"])
@on_ranks(2)
def test_work_may_be_submitted_while_the_first_is_made(comm, how):
    """A handler or a finalizer submits work while this thread makes the first of a communicator."""
    submitted, nested, made = [], [], ProgressThread.__init__

    def make(self, engine):
        made(self, engine)
        if not nested:
            nested.append(self)
            if how == "handler":
                os.kill(os.getpid(), signal.SIGALRM)
                while not submitted:
                    pass
            else:
                Finalized(comm, submitted)
                gc.collect()

    ProgressThread.__init__ = make
    signal.signal(signal.SIGALRM, lambda *_: submitted.append(comm.all_reduce(np.ones(3), async_op=True)))
    work = comm.all_reduce(np.full(3, 5.0), async_op=True)
    ProgressThread.__init__ = made
    assert submitted[0].wait(60 * PATIENCE).tolist() == [2] * 3
    assert work.wait(60 * PATIENCE).tolist() == [10] * 3
    assert comm._engine.progress is progress_of(comm._engine) is work._progress is submitted[0]._progress


@on_ranks(2)
def test_handlers_submit_work_at_any_moment(comm, seed):
    """Handlers submit work at any moment, in any code of this thread, also while the thread is started."""
    moment = random.Random(f"{seed}.{comm.rank}")
    for _ in range(20):
        group, submitted = comm.dup(), []

        def submit(*_, group=group, submitted=submitted):
            submitted.append(group.all_reduce(np.ones(3), async_op=True))

        signal.signal(signal.SIGALRM, submit)
        signal.setitimer(signal.ITIMER_REAL, moment.uniform(2e-6, 5e-4))
        own = group.all_reduce(np.ones(3), async_op=True)
        while not submitted:
            time.sleep(1e-5)
        assert [work.wait(60 * PATIENCE).tolist() for work in (own, *submitted)] == [[2] * 3] * 2
        group.close()
    comm.barrier()
