"""Checks of messages that every rank of a group runs, on one node or on several."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

LONG = 1 << 20  # more elements than any pair queue holds


def all_types(rank):
    other = 1 - rank
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64, torch.float8_e5m2):
        for count in (0, 1, 1000, LONG):
            x = (torch.arange(count) % 2).to(dtype)
            y = torch.zeros(count).to(dtype)
            if rank == 0:
                dist.send(x, other, tag=3)
                assert dist.recv(y, other) == other
            else:
                assert dist.recv(y, other, tag=3) == other
                dist.send(y, other)
            assert torch.equal(y.float() if count else y, x.float() if count else x)


def strided(rank):
    other = 1 - rank
    y = torch.zeros(4, 6)[:, ::2]
    if rank == 0:
        dist.send(torch.arange(12.0).reshape(3, 4).t(), other)
    else:
        dist.recv(y, other)
        assert torch.equal(y, torch.arange(12.0).reshape(3, 4).t())


def any_source(rank):
    n = dist.get_world_size()
    if rank:
        dist.send(torch.full((3,), float(rank)), 0, tag=rank)
        return
    x, seen = torch.zeros(3), set()
    for r in range(1, n):
        source = dist.recv(x, tag=r)
        assert x[0] == source == r
        seen.add(source)
    assert seen == set(range(1, n))


def both_ways(rank):
    n = dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (1, LONG):
        x, y = torch.full((count,), float(rank)), torch.zeros(count)
        for first in (dist.isend, dist.irecv):  # whichever comes first
            ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y.zero_(), left)]
            if first is dist.irecv:
                ops.reverse()
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert torch.equal(y, torch.full((count,), float(left)))


def without_a_waiter(rank):
    """Messages arrive while the program is in collectives and no call waits for them yet."""
    other = 1 - rank
    for count, many in ((LONG, 1), (10, 400)):
        for _ in range(2):
            outs = [torch.zeros(count) for _ in range(many)]
            if rank == 0:
                works = [dist.irecv(out, other) for out in outs]
            else:
                for k in range(many):
                    dist.send(torch.full((count,), float(k)), other)
                works = []
            x = torch.ones(1)
            dist.all_reduce(x)
            for k, work in enumerate(works):
                work.wait()
                assert work.is_completed()
                assert torch.equal(outs[k], torch.full((count,), float(k)))
    # And the other way round: what is being sent.
    x = torch.full((LONG,), float(rank))
    y = torch.zeros(LONG)
    if rank == 0:
        work = dist.isend(x, other)
    else:
        dist.recv(y, other)
        assert not y.any()
    dist.barrier()
    if rank == 0:
        work.wait()


def futures(rank):
    other = 1 - rank
    y = torch.zeros(3)
    work = dist.irecv(y, other)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2)
    dist.send(torch.full((3,), rank + 1.0), other)
    assert torch.equal(doubled.wait(), torch.full((3,), 2.0 * (other + 1)))


def in_vain(rank):
    if rank == 0:
        vain = dist.irecv(torch.zeros(LONG), 1)  # never sent
        sent = dist.isend(torch.ones(LONG), 1, tag=1)  # and not waited for
        dist.barrier()
        dist.destroy_process_group()
        assert sent.is_success()
        assert not vain.is_success()
    else:
        dist.barrier()
        y = torch.zeros(LONG)
        dist.recv(y, 0, tag=1)
        assert torch.equal(y, torch.ones(LONG))


def misfits(rank):
    if rank == 0:
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(3), 1, tag=1)
        dist.send(torch.ones(2, dtype=torch.int64), 1, tag=2)
    else:
        with pytest.raises(RuntimeError, match="12 bytes, the tensor to receive it 16"):
            dist.recv(torch.zeros(4), 0)
        with pytest.raises(RuntimeError, match="has 12 bytes"):
            dist.recv(torch.zeros(2), 0, tag=1)
        with pytest.raises(TypeError, match="int64"):
            dist.recv(torch.zeros(4), 0, tag=2)
    dist.barrier()  # still usable


def late(rank):
    x = torch.zeros(1)
    if rank == 0:
        work = dist.irecv(x, 1)
        with pytest.raises(dist.DistBackendError, match=" Timed out after 300 ms: "):
            work.wait(timedelta(seconds=0.3))
        assert not work.is_completed()
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0)
    else:
        work.wait()
        assert x == 1
