"""Which rank a timeout names: not the one that the caller waits for, but the one that all ranks wait for in the end."""

import signal
import time

import numpy as np
import pytest
from support.harness import report, start_ranks
from support.waits import until_waiting

from shmring.errors import CollectiveTimeoutError

# Each call takes more rounds than there are slots, and a waiting rank sleeps.
SETTINGS = {"slot_nbytes": 16_384, "nslots": 4, "spin_us": 0}
N = 40_000


def error_of(call, *args, **options):
    """The late ranks and the text of the error of a call that times out."""
    with pytest.raises(CollectiveTimeoutError) as caught:
        call(*args, **options)
    report("timed out")
    return caught.value.late, str(caught.value)


def check_that_all_name(late, gang):
    others = [rank for rank in range(len(gang.pids)) if rank != late]
    gang.wait_for("timed out", others)
    for outcome in gang.survivors_of(late):
        assert outcome.ok, outcome
        ranks, text = outcome.result
        assert ranks == (late,), text
        assert f"waiting for rank {late} (rank {late}, which is in " in text, text


def hand_on(comm):
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1000)
    if comm.rank == 3:
        until_waiting(comm, 0, 2)
    return error_of(comm.exscan, np.ones(N), timeout=0.2 if comm.rank == 3 else 60)


def test_the_rank_without_a_call_is_late_and_not_those_that_wait_for_it():
    check_that_all_name(1, start_ranks(4, hand_on, init=SETTINGS))


def be_held_up(comm, held_up):
    if comm.rank == 1:  # after it has published the four rounds that others wait for, and before it reads any
        signal.signal(signal.SIGUSR2, lambda *_: (held_up.touch(), time.sleep(1000)))
        report("ready")
    if comm.rank == 0:
        until_waiting(comm, 1)
        report("rank 1 waits")
        while not held_up.exists():
            time.sleep(0.005)
    if comm.rank == 2:  # when rank 0 waits for its first round
        until_waiting(comm, 0)
    return error_of(comm.gather, np.ones(N), root=0, timeout=2 if comm.rank == 2 else 60)


def test_a_rank_that_has_published_all_but_does_not_read_on_is_late(tmp_path):
    gang = start_ranks(3, be_held_up, tmp_path / "held up", init=SETTINGS)
    gang.wait_for("ready", [1])
    gang.wait_for("rank 1 waits", [0])
    gang.signal(1, signal.SIGUSR2)
    check_that_all_name(1, gang)
