"""Collectives on shared arrays are staged where that is learned to be faster: all ranks alike, with the same bits."""

import functools
import time

import numpy as np
import pytest
from support.harness import run_ranks
from support.inputs import same_bits, values
from support.on_ranks import on_ranks

COUNT = 40_009
# The first call of a size is on shared arrays. Then a period begins with 8 windows on shared arrays, 8 that are staged
# and 8 on shared arrays. A window has as many calls as the staged plan tries one kind of stores.
TRIES = 8
SETTINGS = {"nslots": 4, "slot_nbytes": 8192}  # many rounds a call, so that windows have few calls


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
    before = comm.engine.sharing.nzero_copy
    for _ in range(ncalls):
        call()
    return comm.engine.sharing.nzero_copy - before


def through_a_period(comm, way):
    handles = []

    def put(x):
        if way == "share":
            handles.append(comm.share(x))
            return x
        return comm.array(x)

    found = {}
    made = calls(comm, put, 1)
    comm.engine.sharing.rooted_nbytes = 0
    for kind, call in made.items():
        window = nshared(comm, call, 1)
        assert window == 1
        # Windows have as many calls as it takes until the first one is staged, divided by 8.
        window = 0
        while nshared(comm, call, 1):
            window += 1
        assert window % TRIES == 0
        assert nshared(comm, call, window - 1) == 0  # the rest of the trial is staged
        assert nshared(comm, call, window) == window  # and the next one is not
        rest = nshared(comm, call, 5 * window)
        assert rest % (window // TRIES) == 0  # whole windows, of which none or all
        found[kind] = (window, rest)
    for handle in handles:
        handle.close()
    return found


@pytest.mark.parametrize(("n", "way"), [(2, "share"), (3, "empty")])
def test_windows_of_calls_are_staged_on_all_ranks_alike_and_give_the_same_bits(n, way):
    found = run_ranks(n, through_a_period, way, init=SETTINGS)
    assert all(one == found[0] for one in found)


def stats_of_a_period(comm, kind):
    """What ``stats`` has of a collective that is on trial, before its trials and in each of their windows."""
    call = calls(comm, comm.array, 1)[kind]
    comm.engine.sharing.rooted_nbytes = 0
    assert comm.stats()["shared_calls"] == []
    found = []
    for _ in range(200):
        ncalls = nshared(comm, call, 1)
        (one,) = comm.stats()["shared_calls"]
        assert one["staged"] == (ncalls == 0)
        found.append(one)
    return found


@pytest.mark.parametrize(("kind", "decider", "root"), [("all_reduce", 0, None), ("broadcast", 2, 2)])
def test_stats_have_the_path_on_all_ranks_and_the_times_on_the_one_that_decides(kind, decider, root):
    found = run_ranks(3, stats_of_a_period, kind, init=SETTINGS)
    for rank, entries in enumerate(found):
        for one, at_decider in zip(entries, found[decider], strict=True):
            assert (one["kind"], one["nbytes"], one["root"]) == (kind, COUNT * 4, root)
            assert one["staged"] == at_decider["staged"]
            assert rank == decider or one["trial_us"] == (0, 0)
    assert {one["staged"] for one in found[0]} == {True, False}
    times = [one["trial_us"] for one in found[decider]]
    assert times[0] == (0, 0)
    assert min(times[-1]) > 0


def rewritten_slowly(comm, slow):
    """Whether calls are staged once trials are over, if the program takes longer between those on shared arrays."""
    x = comm.array(np.full(COUNT, 1.0, np.float32))
    out = np.zeros((comm.size, COUNT), np.float32)
    last, longest_s = 0, 5e-4
    for _ in range(24 * 4 + 1):
        before, began = comm.engine.sharing.nzero_copy, time.monotonic()
        comm.all_gather(x, out)
        last = comm.engine.sharing.nzero_copy - before
        if last == (slow == "shared"):
            time.sleep(min(10 * longest_s, 0.1))
        else:
            longest_s = max(longest_s, time.monotonic() - began)
    return last


@pytest.mark.parametrize(("slow", "is_shared"), [("shared", 0), ("staged", 1)])
def test_the_time_between_calls_decides(slow, is_shared):
    found = run_ranks(2, rewritten_slowly, slow, init=SETTINGS)
    assert found == [is_shared] * 2


def into_one_result(comm):
    """Calls of one size on shared arrays, and into one shared result, in turn."""
    x, out = comm.array(np.zeros(COUNT, np.float32)), np.zeros((comm.size, COUNT), np.float32)
    found, result = [], None
    for k in range(150):
        if k == 40:
            result = comm.shared_result(out.shape, out.dtype)
        x[...] = k + comm.rank
        before = comm.engine.sharing.nzero_copy
        comm.all_gather(x, out)
        found.append(comm.engine.sharing.nzero_copy - before)
        assert (out == k + np.arange(comm.size)[:, None]).all()
        if result is not None:
            assert nshared(comm, functools.partial(comm.all_gather, x, result), 1) == 1
            assert (result == out).all()
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_calls_into_one_result_are_never_staged(n):
    found = run_ranks(n, into_one_result, init=SETTINGS)
    assert 0 in found[0][:40]
    assert 0 in found[0][40:]
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
