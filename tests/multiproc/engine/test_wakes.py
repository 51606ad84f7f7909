"""Sleeping ranks are woken by the ranks that they wait for; no test here ends in time if a wake is lost."""

import time

import numpy as np
import pytest
from support.on_ranks import on_ranks

# A rank sleeps at once, and looks by itself only after a minute, when the watchdog has ended the test.
ASLEEP = {"spin_us": 0, "tick_ms": 60_000}


@pytest.mark.parametrize("count", [8, 1 << 10, 1 << 18])
@on_ranks(3, init=ASLEEP)
def test_a_rank_that_sleeps_in_a_collective_is_woken(comm, count):
    for i in range(12):
        late = i % comm.size
        if comm.rank == late:
            time.sleep(0.003)  # the others fall asleep
        x = np.full(count, comm.rank if comm.rank != late else 10 + i, np.int64)
        assert (comm.all_reduce(x, out=np.empty_like(x)) == 13 + i - late).all()
        comm.broadcast(x, root=late)
        assert (x == 10 + i).all()
        gathered = comm.gather(x, root=late)
        assert comm.rank != late or (gathered == 10 + i).all()
        comm.barrier()


@pytest.mark.parametrize("count", [1, 1 << 10, 1 << 18])
@on_ranks(2, init=ASLEEP)
def test_a_rank_that_sleeps_for_a_message_or_for_room_is_woken(comm, count):
    x = np.arange(count)
    out = np.zeros(count, np.int64)
    for i in range(12):
        if i % 2 == comm.rank:
            time.sleep(0.003)
        if comm.rank == 0:
            comm.send(x, 1)
            comm.recv(out, 1)
        else:
            comm.recv(out, 0)
            comm.send(x, 0)
        assert (out == x).all()
        out[:] = 0
