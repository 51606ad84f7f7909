"""Going on without the dead: shrink after SIGKILL at random moments, of one, of two, of one more meanwhile."""

import random
import time

import numpy as np
import pytest
from support.harness import report, start_ranks
from support.on_ranks import on_ranks

from shmring.errors import AbortedError, BrokenError, MismatchError, PeerLostError, RendezvousTimeoutError


def go_on(comm, origin):
    """Use a group of survivors: right results of every size, objects, another group."""
    ranks = comm.all_gather_object(origin)
    assert len(ranks) == comm.size
    assert ranks == sorted(ranks)
    for count in (1, 5000, 500_000):
        x = np.full(count, origin, np.int64)
        comm.all_reduce(x)
        assert (x == sum(ranks)).all()
    assert comm.dup().all_gather_object(origin) == ranks
    return ranks


def work_until_broken(comm, counts):
    report("going")
    try:
        while True:
            for count in counts:
                x = np.ones(count, np.float32)
                comm.all_reduce(x)
                assert (x == comm.size).all()
                comm.broadcast(x, root=comm.size - 1)
    except BrokenError as error:
        return error


def survive(comm, counts):
    error = work_until_broken(comm, counts)
    group = comm.shrink()
    origin = comm.rank
    while True:  # some may have died after the first shrink
        try:
            ranks = go_on(group, origin)
            break
        except BrokenError:
            group = group.shrink()
    assert group.parent_ranks[group.rank] < comm.size
    comm.close()
    return type(error), ranks


@pytest.mark.sample(4)
@pytest.mark.parametrize("counts", [[4], [300_000], [1, 100_000, 3]], ids=["small", "large", "mixed"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_survivors_of_a_kill_go_on_with_right_results(n, counts, seed):
    moment = random.Random(f"{seed} {n} {counts}")
    for _ in range(2):
        victim = moment.randrange(n)
        gang = start_ranks(n, survive, counts)
        gang.wait_for("going")
        time.sleep(moment.uniform(0, 0.03))
        for outcome in gang.survivors_of(victim):
            assert outcome.ok, outcome
            assert outcome.result == (PeerLostError, [r for r in range(n) if r != victim])


@pytest.mark.sample(3)
@pytest.mark.parametrize("gap_s", [0.0, 0.0005, 0.003, 0.01])
@pytest.mark.parametrize("n", [3, 4])
def test_survivors_of_two_kills_at_once_or_during_the_shrink_go_on(n, gap_s, seed):
    # The second victim dies before, while or after the others shrink; whichever it is, all survivors agree in the end.
    moment = random.Random(f"{seed} {n} {gap_s}")
    for _ in range(3):
        victims = moment.sample(range(n), 2)
        gang = start_ranks(n, survive, [1, 100_000])
        gang.wait_for("going")
        time.sleep(moment.uniform(0, 0.02))
        if gap_s:
            gang.kill(victims[0])
            time.sleep(moment.uniform(0, 2 * gap_s))
            gang.kill(victims[1])
        else:
            gang.survivors_of(*victims)
        outcomes = gang.outcomes()
        left = [r for r in range(n) if r not in victims]
        for rank in left:
            assert outcomes[rank].ok, outcomes[rank]
            ranks = outcomes[rank].result[1]
            # All live ranks returned from go_on together; those that died in or after it may be among them.
            assert set(left) <= set(ranks)
            assert ranks == outcomes[left[0]].result[1] or gap_s


def shrink_while_one_dies(comm):
    # All but the last rank are in shrink, waiting for the last one, when it dies.
    if comm.rank == comm.size - 1:
        report("ready")
        time.sleep(1000)
    with pytest.raises(AbortedError):
        comm.abort("start again") if comm.rank == 0 else None
        comm.barrier()
    report("ready")
    group = comm.shrink()
    return go_on(group, comm.rank)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_survivor_that_dies_during_the_shrink_is_left_out(n):
    gang = start_ranks(n, shrink_while_one_dies)
    gang.wait_for("ready")
    time.sleep(0.2)
    for outcome in gang.survivors_of(n - 1):
        assert outcome.ok, outcome
        assert outcome.result == list(range(n - 1))


@on_ranks(2, 3, 4)
def test_a_rank_that_closes_is_not_a_survivor(comm):
    if comm.rank == 0:
        comm.abort("start again")
        time.sleep(0.2)
        comm.close()  # has left: not a survivor
        return
    with pytest.raises(AbortedError):
        comm.barrier()
    assert go_on(comm.shrink(), comm.rank) == list(range(1, comm.size))


@pytest.mark.sample(1)
@on_ranks(2, 3, 4)
def test_a_living_rank_that_never_shrinks_is_named(comm, tmp_path):
    named = tmp_path / "named"
    last = comm.size - 1
    if comm.rank == last:
        while not named.exists():
            time.sleep(0.005)
        return
    others, missing = comm.subgroup(range(last)), set()
    others.barrier()
    comm.abort("start again")
    while missing != {(last,)}:  # once more if one of the others came too late
        with pytest.raises(RendezvousTimeoutError, match=f"{last}\\] of the ranks") as caught:
            comm.shrink(rendezvous_timeout=0.4)
        missing = set(others.all_gather_object(caught.value.missing))
        assert all(late[-1] == last for late in missing)
    named.touch()  # a rank that closes is no survivor, and no rank waits for it any more


@on_ranks(2, 3, 4)
def test_all_go_on_after_a_mismatch_if_no_rank_died(comm):
    # After a mismatch no rank is dead: all start again, and may do so twice.
    with pytest.raises(MismatchError):
        comm.barrier() if comm.rank else comm.all_reduce(np.ones(3))
        comm.barrier()
    everyone = list(range(comm.size))
    group = comm.shrink(slot_nbytes=4096)
    assert group.config.slot_nbytes == 4096
    assert go_on(group, comm.rank) == everyone
    assert go_on(comm.shrink(), comm.rank) == everyone
    assert go_on(group.shrink(), comm.rank) == everyone  # of one that is not broken
    with pytest.raises(MismatchError):
        comm.dup()
    with pytest.raises(MismatchError):
        comm.subgroup([comm.rank])


@on_ranks(1)
def test_a_rank_alone_goes_on_after_its_abort(comm):
    comm.abort()
    assert go_on(comm.shrink(), 0) == [0]
