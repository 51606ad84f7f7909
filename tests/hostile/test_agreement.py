"""What a peer says of its shared arrays is looked up in what this process has mapped, and is not followed out of it."""

import numpy as np
import pytest
from harness import run_ranks

from shmring.errors import MismatchError

N = 200_000


def tell_of_too_much(comm, call):
    """To rank 1 an allocation is four times as long as to rank 0, and it names a place in the last part of it."""
    memory = comm.empty(4 * N, np.int64)
    memory[:] = 1
    sharing = comm.engine.sharing
    allocation, *_ = sharing.directory.locate(memory.ctypes.data)
    forged = sharing.enlist(allocation.segments, memory.nbytes if comm.rank else memory.nbytes // 4)
    comm.barrier()
    x = memory[3 * N :] if comm.rank else memory[:N]
    with pytest.raises(MismatchError, match="rank 1 named a place outside"):
        call(comm, x)
        comm.barrier()  # the root of a broadcast waits for nobody
    return forged.number


def broadcast(comm, x):
    comm.broadcast(x, root=1)


def all_reduce(comm, x):
    comm.all_reduce(x)


@pytest.mark.parametrize("call", [all_reduce, broadcast])
def test_a_place_outside_of_an_allocation_is_refused_by_all(call):
    assert run_ranks(2, tell_of_too_much, call) == [2, 2]
