"""Signal handlers that raise, or make calls, at any moment: no lock stays taken, and nothing waits for itself."""

import gc
import os
import random
import signal
import time
from functools import partial

import numpy as np
import pytest
from support.harness import PATIENCE, run_processes
from support.on_ranks import on_ranks

import shmring
from shmring.collective.progress_thread import ProgressThread, progress_of
from shmring.errors import AbortedError, BrokenError


class EnoughError(BaseException):
    """Of no class that calls turn into errors of their own."""


def ring(*_):
    raise EnoughError


def interrupt(call, count, seed):
    """Make calls until a handler has raised in so many; what else they raised."""
    moment, raised = random.Random(seed), set()
    signal.signal(signal.SIGALRM, ring)
    while count:
        try:
            signal.setitimer(signal.ITIMER_REAL, moment.uniform(2e-6, 2e-4))
            while True:
                try:
                    call()
                except BrokenError as error:
                    raised.add(type(error))
        except EnoughError:
            count -= 1
    return raised


OBJECT_CALLS = {
    "broadcast": lambda comm: comm.broadcast_object({"a": 1}),
    "gather": lambda comm: comm.gather_object("a" * 1000),
    "all_gather": lambda comm: comm.all_gather_object(np.ones(3000)),
    "scatter": lambda comm: comm.scatter_object(["a" * 1000]),
    "all_to_all": lambda comm: comm.all_to_all_object(["a" * 1000]),
}


def interrupt_object_calls(_rank, session, seed):
    for number, (name, call) in enumerate(OBJECT_CALLS.items()):
        with shmring.init(rank=0, size=1, session=f"{session}{number}") as comm:
            # The first interrupt between two collectives breaks the communicator; all calls after it raise just that.
            assert interrupt(partial(call, comm), 40, f"{seed}.{name}") <= {AbortedError}
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert comm.is_broken or call(comm) is not None


def test_interrupted_object_calls_leave_no_lock(seed):
    run_processes(1, interrupt_object_calls, f"objects{os.getpid()}", seed)


def interrupt_submission(_rank, session, seed):
    with shmring.init(rank=0, size=1, session=session) as comm:
        x = np.ones(3)
        assert interrupt(lambda: comm.all_reduce(x, async_op=True).wait(60 * PATIENCE), 100, seed) <= {AbortedError}
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert comm.is_broken or comm.all_reduce(x, async_op=True).wait(60 * PATIENCE) is x
        assert interrupt(lambda: shmring.init(rank=0, size=1, session=session + "b").close(), 60, seed) == set()
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_interrupted_asynchronous_calls_and_inits_leave_no_lock(seed):
    run_processes(1, interrupt_submission, f"async{os.getpid()}", seed)


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
    assert comm.engine.progress is progress_of(comm.engine) is work._progress is submitted[0]._progress


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
