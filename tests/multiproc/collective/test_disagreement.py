"""Ranks that disagree about a collective: all of them get the same error, which shows both sides' calls."""

import time

import numpy as np
import pytest
from support.harness import run_ranks, start_ranks
from support.on_ranks import on_ranks

from shmring.errors import MismatchError, PeerLostError

SMALL, LARGE = 12, 60_000  # eager; planned. Both divisible by the number of ranks


def xs(comm, n, dtype=np.float32):
    return np.ones(n, dtype)


def blocks(comm, n):
    return np.ones((comm.size, n // comm.size), np.float32)


def call(name, make=xs, **keywords):
    """A call of this method, of arrays of n elements in all that ``make`` gives."""
    return lambda comm, n: getattr(comm, name)(make(comm, n), **keywords)


def with_own_root(name):
    """A call whose root is the rank itself."""
    return lambda comm, n: getattr(comm, name)(xs(comm, n), root=comm.rank)


def of(dtype):
    return lambda comm, n: xs(comm, n, dtype)


def of_count(change):
    return lambda comm, n: xs(comm, change(n))


all_reduce, all_gather, scan = call("all_reduce"), call("all_gather"), call("scan")
all_to_all = call("all_to_all", blocks)

# What the others call, what the odd one calls, and what the error must show of each.
PAIRS = {
    "kind": (all_reduce, all_gather, "all_reduce(sum", "all_gather("),
    "kind of reduction": (all_reduce, scan, "all_reduce(sum", "scan(sum"),
    "kind, one rooted": (all_reduce, with_own_root("reduce"), "all_reduce(", "reduce("),
    "inclusive": (scan, call("exscan"), "scan(", "exscan("),
    "op": (all_reduce, call("all_reduce", op="max"), "(sum", "(max"),
    "op of reduce_scatter": (call("reduce_scatter", blocks), call("reduce_scatter", blocks, op="min"), "(sum", "(min"),
    "dtype of one width": (all_reduce, call("all_reduce", of(np.int32)), "float32", "int32"),
    "dtype of another width": (all_gather, call("all_gather", of(np.float64)), "float32", "float64"),
    "dtype moved": (call("broadcast", root=0), call("broadcast", of(np.uint32), root=0), "float32", "uint32"),
    "count": (all_reduce, call("all_reduce", of_count(lambda n: n - 1)), "float32 x ", "float32 x "),
    "count by half": (all_to_all, lambda c, n: all_to_all(c, n // 2), "float32 x ", "float32 x "),
    "shape of the same count": (all_to_all, lambda c, n: all_to_all(c, 2 * n), "float32 x ", "float32 x "),
    "root": (call("reduce", root=0), with_own_root("reduce"), "root=0", "root="),
    "root of broadcast": (call("broadcast", root=0), with_own_root("broadcast"), "root=0", "root="),
    "root of gather": (call("gather", root=0), with_own_root("gather"), "root=0", "root="),
    "size, eager and planned": (
        all_reduce,
        call("all_reduce", of_count(lambda n: 100_000)),
        "float32 x ",
        "float32 x 100000",
    ),
    "size, split and not": (all_reduce, call("all_reduce", of_count(lambda n: n // 32)), "float32 x ", "float32 x "),
    "array and barrier": (all_reduce, lambda c, n: c.barrier(), "all_reduce(", "barrier()"),
    "counts": (
        lambda c, n: c.all_gather(xs(c, n), counts=[n] * c.size),
        lambda c, n: c.all_gather(xs(c, n), counts=[n + (r != c.rank) for r in range(c.size)]),
        "digest",
        "digest",
    ),
    "a bundle and an array": (
        all_reduce,
        lambda c, n: c.all_reduce_many([xs(c, n), xs(c, 1)]),
        "all_reduce(",
        "all_reduce_many(",
    ),
    "layout of a bundle": (
        lambda c, n: c.all_reduce_many([xs(c, n), xs(c, 2)]),
        lambda c, n: c.all_reduce_many([xs(c, 2), xs(c, n)]),
        "layout",
        "layout",
    ),
}


def disagree_in_every_way(comm, n):
    """By pair, and by the rank that makes the other call: what this rank raises. Each has a communicator of its own."""
    found = {}
    for pair in PAIRS:
        for odd in {comm.size - 1, 1}:
            with comm.dup() as group:
                found[pair, odd] = call_something_else(group, pair, n, odd)
    return found


def call_something_else(comm, pair, n, odd):
    usual, other, *_ = PAIRS[pair]
    with pytest.raises(MismatchError) as caught:
        (other if comm.rank == odd else usual)(comm, n)
        comm.barrier()  # where a root ends its part
        comm.barrier()
    with pytest.raises(MismatchError) as again:
        comm.all_reduce(np.ones(1))
    assert str(again.value) == str(caught.value)
    assert comm.is_broken
    return str(caught.value), caught.value.ranks


@pytest.mark.sample(3)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("n", "init"),
    [(SMALL, {}), (LARGE, {}), (LARGE, {"threads": 3, "split_nbytes": 100_000})],
    ids=["eager", "planned", "split"],
)
def test_all_ranks_get_a_disagreement_with_both_calls(n, init, ranks):
    by_rank = run_ranks(ranks, disagree_in_every_way, n, init=init, timeout=240)  # up to 42 communicators
    for (pair, odd), (text, about) in by_rank[0].items():
        assert {found[pair, odd] for found in by_rank} == {(text, about)}, pair  # one account of one event
        assert len(set(about)) == 2
        assert all(0 <= r < ranks for r in about)
        assert " called " in text
        if "root" not in pair and "one rooted" not in pair:
            assert odd in about, text
            assert all(part in text for part in PAIRS[pair][2:]), text


@on_ranks(3)
def test_a_rank_that_wrote_nothing_and_makes_no_further_call_is_found_elsewhere(comm):
    """The rank awaited has nothing to write in its own call, so its round is published by the end of that."""
    if comm.rank == 0:
        with pytest.raises(MismatchError, match=r"rank 0 called all_reduce.*, rank [12] called"):
            comm.all_reduce(np.ones(LARGE))
        return
    comm.broadcast(np.ones(LARGE), root=2)
    while not comm.is_broken:
        time.sleep(0.001)


# ---- order -----------------------------------------------------------------------------------------------------------


in_both_sizes = pytest.mark.parametrize("count", [SMALL, LARGE], ids=["eager", "planned"])
BOTH_CALLS = r"all_reduce\((.|\n)*all_gather\(|all_gather\((.|\n)*all_reduce\("


@in_both_sizes
@on_ranks(2, 3, 4)
def test_calls_in_another_order_are_a_disagreement(comm, count):
    calls = [lambda: comm.all_reduce(np.ones(count)), lambda: comm.all_gather(np.ones(count))]
    with pytest.raises(MismatchError, match=BOTH_CALLS):
        for one in reversed(calls) if comm.rank == comm.size - 1 else calls:
            one()


@pytest.mark.parametrize("before", [0, 1, 7, 8, 9])  # what the slots still hold is no answer
@in_both_sizes
@on_ranks(3)
def test_a_rank_that_skips_a_collective_is_found_out(comm, count, before):
    for _ in range(before):
        comm.all_reduce(np.ones(count))
    with pytest.raises(MismatchError, match=BOTH_CALLS):
        if comm.rank != 2:
            comm.all_gather(np.ones(count))
        comm.all_reduce(np.ones(count))
        comm.barrier()


def skip_at_the_end(comm, count, odd):
    comm.all_reduce(np.ones(count))
    if comm.rank != odd:
        comm.all_gather(np.ones(count))


@in_both_sizes
def test_a_rank_that_skips_the_last_collective_has_left(count):
    outcomes = start_ranks(3, skip_at_the_end, count, 1).outcomes()
    assert outcomes[1].ok
    for rank in (0, 2):
        assert type(outcomes[rank].error) is PeerLostError, outcomes[rank]
        assert outcomes[rank].error.rank == 1
        assert "closed its communicator" in str(outcomes[rank].error)


def skip_a_same_one(comm, n):
    if comm.rank:
        comm.all_reduce(np.ones(n))
    comm.all_reduce(np.ones(n), timeout=0.5 if comm.rank else None)


def test_of_calls_that_are_all_alike_the_missing_one_is_the_last():
    # No signature shows it: one call too few shows when no rank comes to the last.
    outcomes = start_ranks(2, skip_a_same_one, SMALL).outcomes()
    assert outcomes[0].ok
    assert outcomes[1].error is not None
