"""The offsets of shared arrays that a peer publishes are checked against the mappings of this process."""

import numpy as np
import pytest
from support.on_ranks import on_ranks

from shmring.errors import MismatchError

N = 200_000


def place_beyond_the_end(comm):
    """An array on each rank; that of rank 1 is beyond rank 0's mapping, as it assumes a longer allocation."""
    memory = comm.empty(4 * N, np.int64)
    sharing = comm._engine.sharing
    allocation, *_ = sharing.registry.locate(memory.ctypes.data)
    forged = sharing.add_allocation(allocation.segments, memory.nbytes if comm.rank == 1 else memory.nbytes // 4)
    assert forged.number == 2
    x = memory[3 * N :] if comm.rank == 1 else memory[:N]
    x[:] = comm.rank
    comm.barrier()
    return forged, x


@on_ranks(2)
def test_an_offset_outside_of_an_allocation_is_an_error_on_all_ranks(comm):
    forged, x = place_beyond_the_end(comm)
    with pytest.raises(MismatchError, match="rank 1 named a place outside"):
        comm.all_reduce(x)
    del forged


@on_ranks(2)
def test_such_an_offset_from_a_root_alone_is_not_used(comm):
    forged, x = place_beyond_the_end(comm)
    comm.broadcast(x, root=1)
    assert (x == 1).all()
    assert comm._engine.sharing.nzero_copy == 0
    del forged
