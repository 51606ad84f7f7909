"""Variants of collectives are tried, on all ranks alike and with the same bits, and the fastest ones stay."""

import functools
import os
import secrets
import time

import numpy as np
import pytest
from support.harness import run_processes, run_ranks
from support.inputs import same_bits, values
from support.on_ranks import on_ranks
from support.oracle import reduce_model
from support.waits import waiting_ranks

import shmring
from shmring.core.kernel.reduce import STORES

COUNT = 40_009
SETTINGS = {"nslots": 4, "slot_nbytes": 8192}  # many rounds a call, so that trials have few calls
NTRIED = 200  # calls after which a trial has begun, if ranks share processors, too


def calls(comm, put, key):
    """By name: how to make one call of each collective that only needs shared arrays, and check its result."""
    size, rank = comm.size, comm.rank
    xs = [values(np.float32, COUNT, r, key) for r in range(size)]
    blocks = [values(np.float32, (size, COUNT), r, key) for r in range(size)]
    total = sum(xs[1:], start=xs[0])
    x, vector = put(np.zeros_like(xs[0])), put(np.zeros_like(xs[0]))
    many, gathered = put(np.zeros_like(blocks[0])), put(np.zeros_like(blocks[0]))

    def check(call, source, into, content, expected):
        into[...] = 0
        source[...] = content
        call()
        assert same_bits(into, expected)

    return {
        "all_reduce": lambda: check(lambda: comm.all_reduce(x), x, x, xs[rank], total),
        "reduce_scatter": lambda: check(
            lambda: comm.reduce_scatter(many, vector), many, vector, blocks[rank],
            sum([b[rank] for b in blocks[1:]], start=blocks[0][rank]),
        ),
        "broadcast": lambda: check(lambda: comm.broadcast(x, root=size - 1), x, x, xs[rank], xs[-1]),
        "all_gather": lambda: check(lambda: comm.all_gather(x, gathered), x, gathered, xs[rank], np.stack(xs)),
        "gather": lambda: check(
            lambda: comm.gather(x, gathered if rank == 0 else None, root=0), x, gathered, xs[rank],
            np.stack(xs) if rank == 0 else np.zeros_like(gathered),
        ),
        "scatter": lambda: check(
            lambda: comm.scatter(many if rank == 0 else None, vector, root=0), many, vector, blocks[rank],
            blocks[0][rank],
        ),
        "all_to_all": lambda: check(
            lambda: comm.all_to_all(many, gathered), many, gathered, blocks[rank], np.stack([b[rank] for b in blocks])
        ),
    }  # fmt: skip


def nshared(comm, call, ncalls):
    before = comm._engine.sharing.nzero_copy
    for _ in range(ncalls):
        call()
    return comm._engine.sharing.nzero_copy - before


def through_trials(comm, way):
    handles = []

    def put(x):
        if way == "share":
            handles.append(comm.share(x))
            return x
        return comm.array(x)

    made = calls(comm, put, 1)
    comm._engine.sharing.rooted_nbytes = 0
    found = {kind: [nshared(comm, call, 1) for _ in range(NTRIED)] for kind, call in made.items()}
    for handle in handles:
        handle.close()
    return found


@pytest.mark.parametrize(("n", "way"), [(2, "share"), (3, "empty")])
def test_calls_are_staged_on_all_ranks_alike_and_give_the_same_bits(n, way):
    found = run_ranks(n, through_trials, way, init=SETTINGS)
    assert all(one == found[0] for one in found)
    for made in found[0].values():
        assert made[0] == 1  # the first call of a size is on shared arrays
        assert 0 in made


def directly(comm, kind):
    """How many of 150 calls were direct, and what the statistics have of them."""
    comm.array(np.zeros(1)), calls(comm, np.copy, 1)[kind]()  # a private call of the size comes first
    call = calls(comm, comm.array, 1)[kind]
    comm._engine.sharing.rooted_nbytes = 0
    ncalls = nshared(comm, call, 150)
    return ncalls, [(program["variant"]["path"], "path" in program["tried_us"]) for program in comm.stats()["programs"]]


@pytest.mark.parametrize(("direct", "ncalls", "path"), [(1, 150, "direct"), (0, 0, "staged")])
@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_to_all"])
def test_a_path_that_is_set_is_the_path_of_every_call_and_not_learned(kind, direct, ncalls, path):
    for found in run_ranks(2, directly, kind, init=SETTINGS | {"direct": direct}):
        assert found == (ncalls, [(path, False)])


def into_one_result_staged(comm):
    x = comm.array(np.full(COUNT, comm.rank + 1.0, np.float32))
    result = comm.shared_result((comm.size, COUNT), x.dtype)
    ncalls = nshared(comm, functools.partial(comm.all_gather, x, result), 20)
    return ncalls, (result == np.arange(1, comm.size + 1)[:, None]).all()


def test_calls_into_one_result_are_direct_whatever_is_set():
    assert run_ranks(2, into_one_result_staged, init=SETTINGS | {"direct": 0}) == [(20, True)] * 2


def last(comm, decider, call):
    """Make the last call before a look at the statistics, the rank that decides before the others.

    It may publish another variant in this call. A rank that began its own call before would not load it any more.
    """
    comm.barrier()
    while comm.rank != decider and decider not in waiting_ranks(comm) and comm.iprobe(decider) is None:
        time.sleep(0.001)
    result = call()
    for rank in {*range(comm.size)} - {decider}:
        if comm.rank == decider:
            comm.send(np.zeros(1), rank)  # it may not have waited for the others
        elif comm.rank == rank:
            comm.recv(np.zeros(1), decider)
    return result


NCALLS = 500


def stats_after_trials(comm, kind, decider):
    call = calls(comm, comm.array, 1)[kind]
    comm._engine.sharing.rooted_nbytes = 0
    began = time.monotonic()
    found = [nshared(comm, call, 1) for _ in range(NCALLS - 1)]
    found.append(last(comm, decider, functools.partial(nshared, comm, call, 1)))
    (program,) = comm.stats()["programs"]
    return found, program, 1e6 * (time.monotonic() - began)


@pytest.mark.parametrize(("kind", "decider"), [("all_reduce", 0), ("broadcast", 0)])
def test_stats_have_the_variant_on_all_ranks_and_the_times_on_the_one_that_decides(kind, decider):
    found = run_ranks(3, stats_after_trials, kind, decider, init=SETTINGS)
    for rank, (made, program, all_us) in enumerate(found):
        assert made == found[decider][0]
        assert (program["kind"], program["nbytes"], program["calls"]) == (kind, COUNT * 4, NCALLS)
        assert program["variant"] == found[decider][1]["variant"]
        times = [us for tried in program["tried_us"].values() for us in tried.values()]
        assert any(times) == (rank == decider)
        assert all(us < all_us for us in times)  # of a call
    assert set(found[0][0]) == {0, 1}
    assert all(us > 0 for us in found[decider][1]["tried_us"]["path"].values())


PAUSE_S = 0.005


def timed_with_pauses(comm, slow):
    """The times of both paths once they have been tried, if the program pauses after each call by one of them."""
    x = comm.array(np.full(COUNT, 1.0, np.float32))
    out = np.zeros((comm.size, COUNT), np.float32)
    while True:
        for _ in range(50):
            path = "direct" if nshared(comm, functools.partial(comm.all_gather, x, out), 1) else "staged"
            if path == slow:
                time.sleep(PAUSE_S)
        (tried,) = (one["tried_us"]["path"] for one in comm.stats()["programs"] if one["kind"] == "all_gather")
        if comm.broadcast_object(all(tried.values()), root=0):
            return tried


@pytest.mark.parametrize("slow", ["direct", "staged"])
def test_the_time_between_calls_counts(slow):
    assert run_ranks(2, timed_with_pauses, slow, init=SETTINGS)[0][slow] >= 0.9e6 * PAUSE_S


def into_one_result(comm):
    """Calls of one size on shared arrays, and into one shared result, in turn."""
    x, out = comm.array(np.zeros(COUNT, np.float32)), np.zeros((comm.size, COUNT), np.float32)
    found, result = [], None
    for k in range(2 * NTRIED):
        if k == NTRIED:
            result = comm.shared_result(out.shape, out.dtype)
        x[...] = k + comm.rank
        before = comm._engine.sharing.nzero_copy
        comm.all_gather(x, out)
        found.append(comm._engine.sharing.nzero_copy - before)
        assert (out == k + np.arange(comm.size)[:, None]).all()
        if result is not None:
            assert nshared(comm, functools.partial(comm.all_gather, x, result), 1) == 1
            assert (result == out).all()
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_calls_into_one_result_are_never_staged(n):
    found = run_ranks(n, into_one_result, init=SETTINGS)
    assert 0 in found[0][:NTRIED]
    assert all(one == found[0] for one in found)


@on_ranks(2, 4, init=SETTINGS)
def test_private_arrays_of_the_same_size_may_come_between(comm):
    """Shared and private arrays of one size in turn, and other calls between."""
    x, y = comm.array(np.zeros(COUNT, np.float32)), np.zeros(COUNT, np.float32)
    shared = np.zeros(COUNT, np.float32)
    random = np.random.default_rng(7)  # the same on all ranks
    handle = comm.share(shared)
    for k in range(300):
        array = (x, y, shared)[random.integers(3)]
        array[...] = k + comm.rank
        comm.all_reduce(array)
        assert (array == comm.size * k + sum(range(comm.size))).all()
        if random.integers(5) == 0:
            comm.barrier()
        if k == 200:
            handle.close()


def look_at_stats(comm, stores, kind):
    x, ncalls = np.ones(100_000), 300 if stores < 0 else 20  # learned, or set

    def call():
        comm.all_reduce(x, op="max") if kind == "all_reduce" else comm.broadcast(x, root=0)

    for _ in range(ncalls - 1):
        call()
    decider = 0 if kind == "all_reduce" else 1  # of a broadcast the rank after the root
    last(comm, decider, call)
    (program,) = comm.stats()["programs"]
    assert (program["kind"], program["nbytes"], program["calls"]) == (kind, x.nbytes, ncalls)
    variant, tried = program["variant"], program["tried_us"]
    if stores < 0:
        assert {"ordinary", "streaming"} <= set(tried["stores"]) <= set(STORES)
        assert any(us for times in tried.values() for us in times.values()) == (comm.rank == decider)
        if kind == "all_reduce":
            assert set(tried["schedule"]) == {"two_shot", "exchange"}
    else:
        assert "stores" not in tried
        assert variant["stores"] == STORES[stores % len(STORES)]
        assert program["algorithm"] == ("staged" if kind == "broadcast" else "exchange" if stores == 4 else "two_shot")
    return variant


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
@pytest.mark.parametrize("stores", [-1, 0, 1, 2, 3, 4])
def test_stats_have_what_was_chosen_and_why(stores, kind):
    found = run_ranks(3, look_at_stats, stores, kind, init={"stores": stores, "one_shot_nbytes": 0})
    assert all(one == found[0] for one in found)


def calls_until_tried(rank, session, count):
    """On one processor: after how many calls the rank that decides has timed another variant."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with shmring.init(rank=rank, size=2, session=session, **SETTINGS) as comm:
        x, ncalls = np.ones(count, np.float32), 0
        while True:
            comm.all_reduce(x)
            ncalls += 1
            (program,) = comm.stats()["programs"]
            tried = any(us for times in program["tried_us"].values() for us in times.values())
            if comm.broadcast_object(tried, root=0):
                return program["rounds"], ncalls


def test_ranks_that_take_turns_time_calls_together_only_if_these_have_few_rounds():
    session = secrets.token_hex(8)
    ((few, many_calls), *_) = run_processes(2, calls_until_tried, session, 4_000)
    ((many, few_calls), *_) = run_processes(2, calls_until_tried, session, 400_000)
    assert few < 4 <= many
    assert few_calls < 40 < many_calls


@on_ranks(
    3,
    pytest.param(2, marks=pytest.mark.long),
    pytest.param(4, marks=pytest.mark.long),
    init={"slot_nbytes": 4096, "eager_nbytes": 64, "threads": 2},
)
def test_all_variants_give_the_same_bits(comm):
    """More sizes in turn than there are learners, one of them so often that its variants are tried."""
    random = np.random.default_rng(3)  # the same on all ranks
    for number in range(400):
        count = 1000 if number % 2 else int(random.integers(17, 3000))
        x = values("float32", count, comm.rank, number)
        expected = reduce_model([values("float32", count, r, number) for r in range(comm.size)], "sum")
        assert same_bits(comm.all_reduce(x), expected)
        root = number % comm.size
        y = values("float32", count, comm.rank, number)
        assert same_bits(comm.broadcast(y, root=root), values("float32", count, root, number))
        got = comm.reduce(values("float32", count, comm.rank, number), root=0)
        assert got is None if comm.rank else same_bits(got, expected)
