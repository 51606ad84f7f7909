"""Groups: split, listed, doubled, nested, many, used by threads; groups made at the same time do not meet."""

import gc
import os
import pickle
import time
from functools import partial

import numpy as np
import pytest
from support.emulation import EMULATED, SANITIZED
from support.harness import RANKS, report, run_ranks, start_ranks
from support.on_ranks import on_ranks
from support.threads import at_once

from shmring.collectives.calls import groups
from shmring.core.memory.sweep import leftovers
from shmring.errors import (
    ClosedError,
    PeerLostError,
    RendezvousError,
    RendezvousTimeoutError,
)

GROUPS = [2, 3, 4]
SMALL = {"slot_nbytes": 4096, "nslots": 4}


def total(comm, count=3):
    """The sum over a group of what its ranks were in the first communicator, the same on all of them."""
    x = np.full(count, comm.origin, np.int64)
    comm.all_reduce(x)
    assert (x == x[0]).all()
    return int(x[0])


def named(group, origin):
    group.origin = origin
    return group


# -- members ----------------------------------------------------------------------------------------------------------


@on_ranks(*RANKS)
def test_split_by_parity(comm):
    group = named(comm.split(comm.rank % 2), comm.rank)
    members = list(range(comm.rank % 2, comm.size, 2))
    assert group.parent_ranks == tuple(members)
    assert (group.rank, group.size) == (members.index(comm.rank), len(members))
    assert total(group) == total(group, 100_000) == sum(members)
    assert group.config == comm.config
    assert comm.parent_ranks is None
    # Both work on, in any order of closing.
    assert comm.all_gather_object(group.rank) == [r // 2 for r in range(comm.size)]
    group.close()
    comm.barrier()


@on_ranks(*GROUPS)
def test_split_orders_by_key_then_rank_and_leaves_out_ranks_without_a_colour(comm):
    assert comm.split(0, -comm.rank).parent_ranks == tuple(reversed(range(comm.size)))
    assert comm.split(7, comm.rank // 2 * -1).rank >= 0
    assert comm.split(-(2**63), 5).parent_ranks == tuple(range(comm.size))  # equal keys: old order
    group = comm.split(None if comm.rank == 0 else 2**63 - 1, 1)
    assert (group is None) == (comm.rank == 0)
    assert group is None or group.parent_ranks == tuple(range(1, comm.size))
    assert comm.split(None) is None
    for color, key in ((2**63, 0), (0, 2**63)):
        with pytest.raises(ValueError, match="64 bits"):
            comm.split(color, key)
    for color, key in ((0.0, 0), ("", 0), (0, "a")):
        with pytest.raises(TypeError):
            comm.split(color, key)
    with pytest.raises(TypeError, match="unknown setting 'slots'"):
        comm.split(0, slots=3)
    comm.barrier()


@on_ranks(*GROUPS)
def test_subgroup_numbers_ranks_as_listed_and_refuses_bad_lists(comm):
    if comm.rank < 2:
        order = [1, 0]
        group = named(comm.subgroup(iter(order)), comm.rank)
        assert group.parent_ranks == (1, 0)
        assert group.rank == 1 - comm.rank
        assert total(group) == 1
    alone = comm.subgroup([comm.rank])
    assert (alone.rank, alone.size) == (0, 1)
    for ranks, text in (
        ([0, 0, comm.rank], "once"),
        ([comm.size], "not a rank"),
        ([-1], "not a rank"),
        ([(comm.rank + 1) % comm.size], "not among them"),
        ([], "not among them"),
    ):
        with pytest.raises(ValueError, match=text):
            comm.subgroup(ranks)
    with pytest.raises(TypeError):
        comm.subgroup(["a"])
    comm.barrier()


@on_ranks(3, 4)
def test_groups_made_at_once_in_different_orders_do_not_meet_each_other(comm):
    # Every pair, in an order of each rank's own, several at a time: no rank can wait for another's turn.
    pairs = [(a, b) for a in range(comm.size) for b in range(a) if comm.rank in (a, b)]
    made = {}

    def make(pair):
        made[pair] = named(comm.subgroup(pair, **SMALL), comm.rank)

    at_once(*[partial(make, pair) for pair in (pairs if comm.rank % 2 else pairs[::-1])])
    for pair in sorted(made):
        assert total(made[pair]) == sum(pair)


@on_ranks(3)
def test_groups_of_twins_do_not_meet_each_other(comm):
    # Two communicators of the same ranks and the same name; their groups are made in opposite orders.
    first, second = comm.dup(**SMALL), comm.dup(**SMALL)
    assert first.name == second.name

    def make(parent, value, after_s):
        time.sleep(after_s)
        return named(parent.dup(), value)

    later, sooner = (0.01, 0) if comm.rank % 2 else (0, 0.01)
    made = at_once(partial(make, first, 1, sooner), partial(make, second, 10, later))
    assert [total(group) for group in made] == [comm.size, 10 * comm.size]


def nest(comm):
    group, depth = named(comm, comm.rank), 0
    members = list(range(comm.size))
    while group.size > 1:
        half = group.rank >= (group.size + 1) // 2
        members = [members[r] for r in range(group.size) if (r >= (group.size + 1) // 2) == half]
        parent, group = group, named(group.split(half, **SMALL), comm.rank)
        if depth:
            parent.close()
        assert total(group) == sum(members)
        depth += 1
    comm.barrier()
    return depth


@pytest.mark.parametrize(("n", "depths"), [(2, [1, 1]), (4, [2] * 4), (7, [3, 3, 3, 3, 3, 3, 2])])
def test_splits_nest(n, depths):
    assert run_ranks(n, nest) == depths


# -- threads ----------------------------------------------------------------------------------------------------------


@on_ranks(3, 4)
def test_overlapping_subgroups_work_from_two_threads_at_once(comm):
    # Rank 0 is in both groups and uses them from two threads at once.
    groups = [named(comm.subgroup(ranks), comm.rank) for ranks in ([0, 1], [0, 2]) if comm.rank in ranks]

    def work(group, count):
        for _ in range(100):
            assert total(group, count) == sum(group.parent_ranks)

    if groups:
        at_once(*[partial(work, group, 10 ** (1 + group.parent_ranks[1] * 2)) for group in groups])
    comm.barrier()


@on_ranks(*GROUPS)
def test_a_communicator_for_each_thread(comm):
    groups = [named(comm.dup(**SMALL), comm.rank + 10 * k) for k in range(4)]

    def work(k):
        for _ in range(50):
            groups[k].barrier()
            assert total(groups[k], 1 + 4000 * k) == sum(range(comm.size)) + 10 * k * comm.size

    at_once(*[partial(work, k) for k in (range(4) if comm.rank % 2 else reversed(range(4)))])


# -- what does not come about -----------------------------------------------------------------------------------------


@on_ranks(*GROUPS)
def test_a_rank_that_never_calls_is_named_and_the_parent_works_on(comm):
    last = comm.size - 1
    if comm.rank == last:
        comm.barrier()
        return
    others = comm.subgroup(range(last))
    missing = set()
    while missing != {(last,)}:  # once more if one of the others came late
        with pytest.raises(RendezvousTimeoutError, match=f"{last}\\] of the ranks .* same order") as caught:
            comm.dup(rendezvous_timeout=0.3)
        missing = set(others.all_gather_object(caught.value.missing))
        assert all(late[-1] == last for late in missing)
    comm.barrier()  # nothing was lost
    assert not comm.is_broken


@on_ranks(2)
def test_a_group_that_was_not_made_can_be_tried_again(comm):
    if comm.rank == 0:
        with pytest.raises(RendezvousTimeoutError):
            comm.dup(rendezvous_timeout=0.1)
    comm.barrier()
    assert total(named(comm.dup(), 1)) == comm.size


@on_ranks(2)
def test_different_settings_are_an_error_on_all_and_the_parent_works_on(comm):
    with pytest.raises(RendezvousError, match="disagree"):
        comm.dup(slot_nbytes=4096 * (1 + comm.rank))
    comm.barrier()  # else the quick one's second attempt could meet the slow one's first
    assert total(named(comm.dup(), 1)) == comm.size


def wait_for_the_dead(comm):
    if comm.rank == comm.size - 1:
        report("here")
        time.sleep(1000)
    with pytest.raises(PeerLostError) as caught:
        comm.dup()  # of 300 seconds' patience
    assert caught.value.rank == comm.size - 1
    comm.subgroup(range(comm.size - 1)).barrier()  # the ranks that do not need the dead one work on


@pytest.mark.parametrize("when", [0.0, 0.1])
@pytest.mark.parametrize("n", GROUPS)
def test_a_rank_that_dies_before_it_comes_is_noticed_by_all_waiting_ranks(n, when):
    gang = start_ranks(n, wait_for_the_dead)
    gang.wait_for("here", [n - 1])
    time.sleep(when)
    for outcome in gang.survivors_of(n - 1):
        assert outcome.ok, outcome


@on_ranks(*GROUPS)
def test_a_rank_that_has_closed_the_parent_is_not_waited_for(comm):
    if comm.rank == 1:
        comm.close()
        with pytest.raises(ClosedError):
            comm.dup()
        with pytest.raises(ClosedError):
            comm.shrink()
        return
    with pytest.raises(PeerLostError) as caught:
        comm.dup()
    assert caught.value.rank == 1
    comm.subgroup([r for r in range(comm.size) if r != 1]).barrier()


# -- the end ----------------------------------------------------------------------------------------------------------


@on_ranks(*GROUPS)
def test_closing_a_parent_does_not_close_its_groups(comm):
    group = named(comm.split(0), comm.rank)
    comm.close()
    assert total(group, 100_000) == sum(range(group.size))
    again = named(group.dup(), comm.rank)
    assert total(again) == sum(range(group.size))


def use(comm):
    """What this process uses that a leak would let grow."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("shmring-" in line for line in maps)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    names = len(leftovers(comm.name))
    return {
        "mappings": mapped,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "names": names,
    }, resident


@pytest.mark.sample(1)
@pytest.mark.parametrize("closing", [True, False], ids=["closed", "dropped"])
@on_ranks(2, 3)
def test_hundreds_of_groups_leave_nothing_behind(comm, closing, long_run):
    times = 100 if long_run else 30

    def once():
        groups = [comm.split(comm.rank % 2, **SMALL), comm.dup(**SMALL), comm.subgroup([comm.rank], **SMALL)]
        for group in groups:
            group.barrier()
            group.all_gather_object(1)
        comm.barrier()
        for group in groups if closing else ():
            group.close()

    once()
    comm.barrier()
    before, resident_before = use(comm)
    comm.barrier()
    for _ in range(times):
        once()
    comm.barrier()
    after, resident = use(comm)
    comm.barrier()
    assert after == before
    # 3 * times groups of at least 2 outboxes of 44 KiB would be far more.
    if not (SANITIZED or EMULATED):  # one keeps what was freed for a while, one counts what it knows of each mapping
        assert resident - resident_before < 4 << 20, resident - resident_before


@on_ranks(*GROUPS)
def test_dropping_the_last_reference_marks_it_as_left_and_unmaps(comm):
    group = comm.dup()
    group.barrier()
    mapped = use(comm)[0]["mappings"]
    if comm.rank == 0:
        del group
        assert use(comm)[0]["mappings"] == mapped - comm.size
        comm.barrier()
        comm.barrier()
        return
    comm.barrier()
    # The liveness word was released and the rank marked as left: no rank waits for the one that dropped it.
    assert group._engine.gone_ranks() == [0]
    with pytest.raises(PeerLostError, match=r"rank 0 .* closed"):
        group.barrier()
    comm.barrier()


@on_ranks(2)
def test_a_group_dropped_in_a_reference_cycle_is_unmapped_by_the_collector(comm):
    group = comm.dup()
    group.barrier()
    mapped = use(comm)[0]["mappings"]
    group.itself = group
    del group
    assert use(comm)[0]["mappings"] == mapped - comm.size
    comm.barrier()


def wait_for_a_group_while_its_parent_breaks(comm):
    if comm.rank == 0:
        comm.close()
        return
    if comm.rank == 1:
        report("going")
        with pytest.raises(PeerLostError) as caught:
            comm.barrier()
        assert caught.value.rank == 0
        report("broken")
        time.sleep(1000)

    look = groups._check_awaited

    def look_late(comm, missing):
        while not comm.is_broken:
            time.sleep(0.001)
        look(comm, missing)

    groups._check_awaited = look_late
    with pytest.raises(PeerLostError, match="rank 0 ") as caught:
        comm.subgroup([2, 1, 0])
    assert caught.value.rank == 0  # the parent's number, though the group has another for it
    assert pickle.loads(pickle.dumps(caught.value)).rank == 0


def test_a_loss_that_the_parent_reports_meanwhile_has_the_parents_numbers():
    gang = start_ranks(3, wait_for_a_group_while_its_parent_breaks)
    gang.wait_for("broken", [1])
    gang.kill(1)
    outcomes = gang.outcomes()
    assert outcomes[2].ok, outcomes[2]
