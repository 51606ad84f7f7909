"""Calls in the background: errors and profiles of them; see also test_torch_checks."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.torch_groups import on_group
from support.waits import until_waiting

from shmring.torch.work import PendingWork

BACKGROUND = "shmring:broadcast in the background"


@on_group(2)
def test_errors_of_calls_in_the_background_reach_the_waiters(rank):
    """Both the work and the future of a failed call raise its error."""
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    future = work.get_future()
    with pytest.raises(RuntimeError, match="disagree"):
        work.wait()
    with pytest.raises(RuntimeError, match="disagree"):
        future.wait()
    assert isinstance(work.exception(), Exception)
    assert not work.is_success()


@on_group(2)
def test_profiles_show_the_calls(rank):
    x = torch.ones(4, 3)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.barrier()
        work = dist.broadcast(x, 0, async_op=True)
        work.wait()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
    events = {event.name: event for event in profile.events() if event.name.startswith("shmring:")}
    assert set(events) - {"shmring:broadcast in the background"} == {
        "shmring:all_reduce",
        "shmring:barrier",
        "shmring:broadcast",
        "shmring:send" if rank == 0 else "shmring:recv",
    }
    assert events["shmring:all_reduce"].input_shapes == [[4, 3]]
    assert events["shmring:broadcast"].input_shapes == [[4, 3]]


@on_group(2)
def test_a_call_in_the_background_has_an_event_until_it_is_over(rank):
    x = torch.ones(1 << 18)
    with torch.profiler.profile() as profile:
        dist.barrier()  # the start of a profiler may take long
        if rank == 0:
            until_waiting(dist.group.WORLD.comm, 1)
            time.sleep(0.5)  # the event of the other rank begins soon after its wait
        dist.broadcast(x, 0, async_op=True).wait()
    events = [event for event in profile.events() if event.name == BACKGROUND]
    if rank == 1:
        assert events[0].time_range.elapsed_us() > 100_000


@on_group(2)
def test_a_wait_returns_after_the_profiler_has_the_end_of_the_call(rank):
    """Another thread records the end. A program stops its profiler next, and reads it."""
    submitted = threading.Event()

    def late(self, call):
        def once_submitted():
            submitted.wait()
            time.sleep(0.02)
            call()

        soon(self, threading.Thread(target=once_submitted, daemon=True).start)

    soon, PendingWork._when_over = PendingWork._when_over, late
    try:
        with torch.profiler.profile() as profile:
            dist.barrier()  # the start of a profiler may take long
            if rank == 0:
                until_waiting(dist.group.WORLD.comm, 1)
            work = dist.broadcast(torch.ones(1 << 18), 0, async_op=True)
            submitted.set()  # after the event has begun
            work.wait()
    finally:
        PendingWork._when_over = soon
    events = [event for event in profile.events() if event.name == BACKGROUND]
    assert work.recorded is not None or rank == 0
    assert [event.time_range.elapsed_us() > 20_000 for event in events] == [True] * (work.recorded is not None)
