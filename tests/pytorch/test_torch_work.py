"""Calls in the background: work, futures, callbacks that communicate; profiles of them."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.torch_groups import run_group


def in_background(rank):
    n = dist.get_world_size()
    tensors = [torch.full((k + 1,), float(rank + k)) for k in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    other = torch.ones(5)
    dist.all_reduce(other)  # made at once: after all those
    for k, (work, t) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is t
        assert torch.equal(t, torch.full((k + 1,), float(sum(r + k for r in range(n)))))
    outs = [torch.zeros(2) for _ in range(n)]
    others = [
        dist.all_gather(outs, torch.full((2,), float(rank)), async_op=True),
        dist.broadcast(other, 0, async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in others:
        work.wait(timedelta(seconds=60))
    assert torch.equal(torch.stack(outs)[:, 0], torch.arange(float(n)))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_calls_in_the_background_keep_their_order(n):
    run_group(n, in_background)


def futures(rank):
    n = dist.get_world_size()
    x = torch.ones(3)
    future = dist.all_reduce(x, async_op=True).get_future()
    (result,) = future.wait()
    assert result is x
    assert torch.equal(x, torch.full((3,), float(n)))
    outs = [torch.zeros(1) for _ in range(n)]
    results = dist.all_gather(outs, torch.ones(1), async_op=True).get_future().wait()
    assert all(a is b for a, b in zip(results, outs, strict=True))
    chained = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] + 1)
    assert torch.equal(chained.wait(), torch.full((3,), float(n * n + 1)))


@pytest.mark.parametrize("n", [1, 2])
def test_futures_get_the_result_tensors(n):
    run_group(n, futures)


def callbacks_communicate(rank):
    n = dist.get_world_size()

    def again(future):
        (x,) = future.value()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        (y,) = dist.all_reduce(x, async_op=True).get_future().wait()
        dist.all_reduce(y)
        return y

    def once_more(future):
        y = future.value()
        dist.broadcast(y, 0)
        return y

    ends = []
    for k in range(10):
        if rank == k % n:
            time.sleep(0.002)  # so that the call is over here and not there when the callback is added
        first = dist.all_reduce(torch.ones(100), async_op=True)
        ends.append(first.get_future().then(again).then(once_more))
        dist.all_reduce(torch.ones(10), async_op=True)
    for end in ends:
        assert torch.equal(end.wait(), torch.full((100,), float(n**4)))
    dist.barrier()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_callbacks_may_communicate_and_wait(n):
    run_group(n, callbacks_communicate)


def functional_and_plain(rank):
    """A failed call's error reaches those who wait by the work and by the future."""
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    future = work.get_future()
    with pytest.raises(RuntimeError, match="disagree"):
        work.wait()
    with pytest.raises(RuntimeError, match="disagree"):
        future.wait()
    assert isinstance(work.exception(), Exception)
    assert not work.is_success()


def test_errors_of_calls_in_the_background_reach_the_waiters():
    run_group(2, functional_and_plain)


def profiled(rank):
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
    assert set(events) == {
        "shmring:all_reduce", "shmring:barrier", "shmring:broadcast", "shmring:send" if rank == 0 else "shmring:recv",
    }  # fmt: skip
    assert events["shmring:all_reduce"].input_shapes == [[4, 3]]
    assert events["shmring:broadcast"].input_shapes == [[4, 3]]


def test_profiles_show_the_calls():
    run_group(2, profiled)
