"""Checks of asynchronous calls that every rank of a group runs, on one node or on several."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


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
