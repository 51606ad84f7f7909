"""Messages of more than 2 GiB: nothing on the way counts in 32 bits. They take 5 GiB of memory, so only with --long."""

import os

import numpy as np
import pytest
from support.harness import run_ranks

EDGE = 1 << 31
NBYTES = EDGE + 4096 + 8
MARKS = (0, 1, EDGE // 8 - 1, EDGE // 8, EDGE // 8 + 1, NBYTES // 8 - 1)  # around what 32 bits hold, in int64s


@pytest.fixture(autouse=True)
def only_long(long_run):
    """Skip but for --long, and where there is less memory."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not long_run or available < 3 * EDGE:
        pytest.skip(f"takes 5 GiB; run with --long; {available >> 30} GiB are free")


def marked(rank):
    """Zeros but for the marks, and a ramp a page long behind the edge; what was never written costs no memory."""
    x = np.zeros(NBYTES // 8, np.int64)
    for i, place in enumerate(MARKS):
        x[place] = 1000 * (rank + 1) + i
    x[EDGE // 8 + 2 : EDGE // 8 + 500] = np.arange(498) * (rank + 1)
    return x


def check(x, factor):
    """``x`` is `marked` times ``factor`` (the sum over ranks is a multiple of the first rank's ramp and marks)."""
    assert x[EDGE // 8 + 2 : EDGE // 8 + 500].tolist() == [i * factor for i in range(498)]
    assert np.count_nonzero(x) == len(MARKS) + 497


def reduce_much(comm):
    x = marked(comm.rank)
    comm.all_reduce(x)
    check(x, 3)
    assert [int(x[place]) for place in MARKS] == [3000 + 2 * i for i in range(len(MARKS))]


def broadcast_much(comm):
    x = marked(0) if comm.rank == 0 else np.zeros(NBYTES // 8, np.int64)
    comm.broadcast(x)
    check(x, 1)
    assert [int(x[place]) for place in MARKS] == [1000 + i for i in range(len(MARKS))]


def gather_much(comm):
    # Blocks of half the size, in place: the second one passes the edge.
    half = (NBYTES // 2 + 8) // 8
    out = np.zeros((2, half), np.int64)
    out[comm.rank, [0, -2, -1]] = np.array([1, 2, 3]) + 10 * comm.rank
    comm.all_gather(out[comm.rank], out)
    assert out.nbytes > EDGE
    assert out[:, [0, -2, -1]].tolist() == [[1, 2, 3], [11, 12, 13]]
    assert np.count_nonzero(out) == 6


def gather_much_unevenly(comm):
    # One rank has nearly all, in rows of a single byte each: counts, too, pass 2^31.
    counts = [EDGE + 77, 3]
    out = np.zeros(sum(counts), np.uint8)
    begin = comm.rank * counts[0]
    mine = out[begin : begin + counts[comm.rank]]
    mine[[0, -1]] = 5 + comm.rank, 7 + comm.rank
    comm.all_gather(mine, out, counts=counts)
    assert [int(out[i]) for i in (0, counts[0] - 1, counts[0], counts[0] + 2)] == [5, 7, 6, 8]
    assert np.count_nonzero(out) == 4


@pytest.mark.stress
@pytest.mark.parametrize("fn", [reduce_much, broadcast_much, gather_much, gather_much_unevenly])
def test_more_than_two_gib_arrive_whole(fn):
    run_ranks(2, fn, timeout=300)
