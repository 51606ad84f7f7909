"""An object of more than 2^31 bytes: no count of bytes on the way may be an int."""

import os

import numpy as np
import pytest
from support.harness import run_ranks

NBYTES = (1 << 31) + 5


def send_giant(comm):
    x = None
    if comm.rank == 0:
        x = np.zeros(NBYTES, np.uint8)
        x[[0, 1 << 31, -1]] = 1, 2, 3
    got = comm.broadcast_object({"giant": x})["giant"]
    assert got.nbytes == NBYTES
    assert got[[0, 1 << 31, -1]].tolist() == [1, 2, 3]
    assert int(np.count_nonzero(got)) == 3
    return True


@pytest.mark.stress
def test_an_array_of_more_than_two_gib_arrives(long_run):
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not long_run or available < 3 * NBYTES:
        pytest.skip(f"needs --long and {3 * NBYTES >> 30} GiB of memory; {available >> 30} GiB are free")
    assert all(run_ranks(2, send_giant, timeout=600))
