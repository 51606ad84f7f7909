"""Teams of threads: calls that are split among them, how many there are, and nothing left behind.

Their errors are in test_trouble.py, beside those of ranks without helpers.

There are more ranks and threads than processors on purpose: the results must not depend on the scheduling.
"""

import gc
import os
import resource
import signal
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.children import in_child, status_of
from support.drivers import run_cases
from support.emulation import needs_address_limit
from support.harness import report, run_processes, run_ranks, start_processes, start_ranks
from support.helper_threads import helpers, until_helpers
from support.limits import address_space_nbytes
from support.on_ranks import on_processes, on_ranks
from support.oracle import Case
from support.threads import at_once
from support.waits import until_idle

import shmring
from shmring.collectives.bootstrap import calibrate as teamwork
from shmring.collectives.bootstrap import tuning as thresholds
from shmring.core.memory import segment
from shmring.errors import (
    ClosedError,
    OutOfSharedMemoryError,
    PeerLostError,
)

LARGE = 1 << 18  # float32s: a MiB


def of(threads, **settings):
    """The settings of a communicator whose large calls are all split."""
    return {"threads": threads, "split_nbytes": 0, **settings}


# ---- the same bits ---------------------------------------------------------------------------------------------------


def test_sizes_around_lines_slots_and_shares_come_out_whole():
    # Slots of a page: many rounds; and so few lines a thread that some calls are not split at all.
    threads = 3
    edges = [32 * threads, 2048, 2048 * threads, 4096 * threads, 40_000]
    counts = sorted({max(1, at + off) for at in edges for off in (-33, -1, 0, 1, 31)})
    cases = [Case("all_reduce", count, "float16", place="in") for count in counts]
    run_ranks(2, run_cases, "Direct", cases, init=of(threads, slot_nbytes=4096, eager_nbytes=0))


@on_ranks(3, init=of(2))
def test_calls_with_counts_are_made_by_one_thread(comm):
    counts = [20_000 * (r + 1) for r in range(comm.size)]
    x = np.full(counts[comm.rank], comm.rank, np.int32)
    got = comm.all_gather(x, counts=counts)
    assert (got == np.repeat(np.arange(comm.size, dtype=np.int32), counts)).all()
    assert comm.stats()["split_calls"] == 0


@on_ranks(2, init=of(3))
def test_calls_on_shared_arrays_are_made_by_one_thread_and_not_staged(comm):
    x = comm.empty(LARGE, np.float32)
    x[:] = comm.rank + 1
    comm.all_reduce(x)
    assert (x == sum(range(1, comm.size + 1))).all()
    split, mapped = comm.stats()["split_calls"], comm._engine.sharing.nzero_copy
    comm.all_reduce(np.ones(LARGE, np.float32))  # one private array: staged by all, and split
    assert comm.stats()["split_calls"] == split + 1
    assert (split, mapped) == (0, 1)


# ---- other ways to make calls ----------------------------------------------------------------------------------------


@on_ranks(2, init=of(2))
def test_asynchronous_work_is_split_too(comm):
    arrays = [np.full(LARGE, float(comm.rank + k), np.float32) for k in range(6)]
    works = [comm.all_reduce(x, async_op=True) for x in arrays]
    for k, work in enumerate(works):
        assert (work.wait() == sum(r + k for r in range(comm.size))).all()
    assert comm.stats()["split_calls"] == 6


@on_ranks(2, init=of(2))
def test_persistent_plans_are_split_and_say_so(comm):
    x = np.ones(LARGE, np.float32)
    plan = comm.plan("all_reduce", x)
    for k in range(1, 5):
        plan()
        assert (x == comm.size**k).all()
    assert "2 threads" in plan.describe()
    assert comm.stats()["split_calls"] == 4


@on_ranks(2, init=of(2))
def test_every_group_has_a_team_of_its_own_and_none_waits_for_anothers(comm):
    def work(own):
        for _ in range(20):
            assert (own.all_reduce(np.ones(LARGE // 4, np.float32)) == comm.size).all()

    groups = [comm.dup() for _ in range(3)]
    at_once(*[partial(work, own) for own in groups])
    until_helpers(4)  # of this communicator, whose helper has had no work yet, and of its three groups
    for own in groups:
        own.close()
    until_helpers(1)


# ---- how many --------------------------------------------------------------------------------------------------------


def number_of_threads(rank, session, asked):
    with shmring.init(rank=rank, size=len(asked), session=session, split_nbytes=0, threads=asked[rank]) as comm:
        assert (comm.all_reduce(np.ones(LARGE, np.float32)) == len(asked)).all()
        stats = comm.stats()
        until_helpers(stats["threads"] - 1)
        return stats["threads"], stats["split_calls"], [p["threads"] for p in stats["programs"]]


@pytest.mark.parametrize(("asked", "got"), [((4, 2), 2), ((1, 4), 1), ((3, 3, 3), 3), ((2, 5, 4), 2)])
def test_the_ranks_have_as_many_as_the_one_that_asks_for_the_fewest(asked, got, seed):
    for outcomes in run_processes(len(asked), number_of_threads, f"team{seed}", asked):
        assert outcomes == (got, int(got > 1), [got])


def test_a_rank_alone_has_no_helpers():
    assert run_processes(1, number_of_threads, "alone", (4,)) == [(1, 0, [])]


def threads_by_mask(rank, session, processors, **settings):
    thresholds.allowed_processors = lambda: processors[rank]
    thresholds.processor_quota = lambda: None
    with shmring.init(rank=rank, size=len(processors), session=session) as comm:
        assert (comm.all_reduce(np.ones(LARGE * 2, np.float32)) == len(processors)).all()
        return comm.stats()["threads"], comm.stats()["split_calls"]


@pytest.mark.parametrize(
    ("processors", "threads"),
    [([range(2)] * 2, 1), ([range(4), range(4, 8)], 2), ([range(4)] * 2, 1), ([range(8), range(100, 164)], 4)],
)
def test_without_a_word_from_the_user_it_follows_from_the_processors_that_fall_to_each_rank(processors, threads, seed):
    masks = [tuple(mask) for mask in processors]
    for outcomes in run_processes(2, threads_by_mask, f"mask{seed}", masks):
        assert outcomes == (threads, int(threads > 1))


def set_in_the_environment(rank, session):
    with shmring.init(rank=rank, size=2, session=session) as comm:
        return comm.stats()["threads"], comm.stats()["split_nbytes"]


def test_the_environment_sets_it_too(seed):
    env = {"SHMRING_THREADS": "2", "SHMRING_SPLIT_NBYTES": "12345"}
    assert run_processes(2, set_in_the_environment, f"env{seed}", env=env) == [(2, 12345.0)] * 2


@on_processes(3)
def test_where_one_rank_has_no_memory_for_more_all_have_fewer(rank, seed):
    session = f"memory{seed}"
    given = segment.Segment.reserve

    def reserve(self, offset, nbytes, calls=[0]):  # noqa: B006
        calls[0] += 1
        if rank == 1 and calls[0] > 2:
            raise OutOfSharedMemoryError("no room", nbytes, 0)
        given(self, offset, nbytes)

    segment.Segment.reserve = reserve
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes = number_of_threads(rank, session, (5, 5, 5))
    assert [("rank 1 got 3 of 5 threads" in str(w.message)) for w in caught] == ([True] if rank == 1 else [])
    assert outcomes == (3, 1, [3])


def without_room_for_stacks(rank, session):
    given, unlimited = segment.Segment.reserve, resource.getrlimit(resource.RLIMIT_AS)

    def limit(self, offset, nbytes, calls=[0]):  # noqa: B006
        given(self, offset, nbytes)
        calls[0] += 1
        if rank == 0 and calls[0] == 31:  # the last one, after which threads are started
            resource.setrlimit(resource.RLIMIT_AS, (address_space_nbytes() + (1 << 20), unlimited[1]))

    def warn(message, *args, **kwargs):
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        assert "of 32 threads" in message
        report("warned")

    segment.Segment.reserve = limit
    teamwork.warnings = type("warnings", (), {"warn": staticmethod(warn)})
    return number_of_threads(rank, session, (32, 32))


@needs_address_limit
def test_where_one_rank_cannot_start_more_threads_all_have_fewer(seed):
    gang = start_processes(2, without_room_for_stacks, f"stacks{seed}")
    gang.wait_for("warned", [0])
    outcomes = gang.results()
    assert outcomes[0] == outcomes[1]
    assert 1 <= outcomes[0][0] < 32


def die_before_the_agreement(rank, session):
    if rank == 1:
        segment.Segment.reserve = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError) as caught:
        shmring.init(rank=rank, size=3, session=session, threads=2)
    assert caught.value.rank == 1
    gc.collect()
    until_helpers(0)


def test_a_rank_that_dies_before_the_team_is_agreed_on_is_named_by_init(seed):
    outcomes = start_processes(3, die_before_the_agreement, f"die{seed}").outcomes()
    assert outcomes[1].signal == signal.SIGKILL
    assert all(outcomes[r].ok for r in (0, 2)), [str(o) for o in outcomes]


def go_on_without_the_dead(comm):
    x = np.ones(LARGE, np.float32)
    comm.all_reduce(x)
    report("going")
    try:
        while True:
            comm.all_reduce(x, op="max")
    except PeerLostError:
        with comm.shrink() as rest:
            assert (rest.all_reduce(np.ones(LARGE, np.float32)) == rest.size).all()
            return rest.size, rest.stats()["threads"], rest.stats()["split_calls"]


def test_the_survivors_have_a_team_again():
    gang = start_ranks(3, go_on_without_the_dead, init=of(2))
    gang.wait_for("going")
    for outcome in gang.survivors_of(1):
        assert outcome.result == (2, 2, 1), outcome


# ---- nothing is left behind ------------------------------------------------------------------------------------------


@on_ranks(2, init=of(4))
def test_close_ends_the_helpers(comm):
    comm.all_reduce(np.ones(LARGE, np.float32))
    assert len(helpers()) == 3
    comm.close()
    until_helpers(0)
    comm.close()


@on_processes(2)
def test_a_communicator_that_is_dropped_ends_its_helpers(rank, seed):
    session = f"drop{seed}"
    comm = shmring.init(rank=rank, size=2, session=session, **of(3))
    comm.all_reduce(np.ones(LARGE, np.float32))
    comm.barrier()
    del comm
    gc.collect()
    until_helpers(0)


@on_processes(2)
def test_the_end_of_the_interpreter_ends_them(rank, seed):
    session = f"leave{seed}"
    comm = shmring.init(rank=rank, size=2, session=session, **of(3))
    comm.all_reduce(np.ones(LARGE, np.float32))
    import atexit

    atexit._run_exitfuncs()  # what the end of the interpreter does
    until_helpers(0)
    with pytest.raises(ClosedError):
        comm.barrier()


def close_without_helpers(comm):
    comm.close()
    assert not helpers()


@on_ranks(2, init=of(3))
def test_a_fork_in_the_middle_of_a_call_harms_neither_side(comm):
    for _ in range(10):
        work = comm.all_reduce(np.ones(8 * LARGE, np.float32), async_op=True)
        assert status_of(in_child(close_without_helpers, comm)) == 0
        assert (work.wait() == comm.size).all()


@on_ranks(2, init=of(4, spin_us=100.0))
def test_idle_helpers_take_no_processor_time(comm):
    comm.all_reduce(np.ones(LARGE, np.float32))
    comm.barrier()
    until_idle(os.getpid())


@on_ranks(2, init=of(3))
def test_helpers_may_run_where_their_caller_may(comm):
    comm.all_reduce(np.ones(LARGE, np.float32))  # a helper sets its name before its first work
    masks = {frozenset(os.sched_getaffinity(task)) for task in helpers()}
    assert masks == {frozenset(os.sched_getaffinity(0))}


@on_ranks(2, init=of(2))
def test_no_signal_is_handled_by_a_helper(comm):
    comm.all_reduce(np.ones(LARGE, np.float32))
    blocked = []
    for task in helpers():
        lines = dict(line.split(":", 1) for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines())
        blocked.append(int(lines["SigBlk"], 16))
    assert blocked
    assert all(mask >> (signal.SIGINT - 1) & 1 and mask >> (signal.SIGTERM - 1) & 1 for mask in blocked)
