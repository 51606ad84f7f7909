"""Ranks that disagree about a collective: all of them get the same error, which shows both sides' calls."""

import numpy as np
import pytest
from support.harness import run_ranks

from shmring.errors import MismatchError

SMALL, LARGE = 6, 60_000  # eager; planned. Both divisible by the number of ranks


def xs(comm, n, dtype=np.float32):
    return np.ones(n, dtype)


def blocks(comm, n):
    return np.ones((comm.size, n // comm.size), np.float32)


# What the others call, what the odd one calls, and what the error must show of each.
PAIRS = {
    "kind": (lambda c, n: c.all_reduce(xs(c, n)), lambda c, n: c.all_gather(xs(c, n)), "all_reduce(sum", "all_gather("),
    "kind of reduction": (
        lambda c, n: c.all_reduce(xs(c, n)),
        lambda c, n: c.scan(xs(c, n)),
        "all_reduce(sum",
        "scan(sum",
    ),
    "kind, one rooted": (
        lambda c, n: c.all_reduce(xs(c, n)),
        lambda c, n: c.reduce(xs(c, n), root=c.rank),
        "all_reduce(",
        "reduce(",
    ),
    "inclusive": (lambda c, n: c.scan(xs(c, n)), lambda c, n: c.exscan(xs(c, n)), "scan(", "exscan("),
    "op": (lambda c, n: c.all_reduce(xs(c, n)), lambda c, n: c.all_reduce(xs(c, n), op="max"), "(sum", "(max"),
    "op of reduce_scatter": (
        lambda c, n: c.reduce_scatter(blocks(c, n)),
        lambda c, n: c.reduce_scatter(blocks(c, n), op="min"),
        "(sum",
        "(min",
    ),
    "dtype of one width": (
        lambda c, n: c.all_reduce(xs(c, n)),
        lambda c, n: c.all_reduce(xs(c, n, np.int32)),
        "float32",
        "int32",
    ),
    "dtype of another width": (
        lambda c, n: c.all_gather(xs(c, n)),
        lambda c, n: c.all_gather(xs(c, n, np.float64)),
        "float32",
        "float64",
    ),
    "dtype moved": (
        lambda c, n: c.broadcast(xs(c, n), root=0),
        lambda c, n: c.broadcast(xs(c, n, np.uint32), root=0),
        "float32",
        "uint32",
    ),
    "count": (lambda c, n: c.all_reduce(xs(c, n)), lambda c, n: c.all_reduce(xs(c, n - 1)), "float32 x ", "float32 x "),
    "count by half": (
        lambda c, n: c.all_to_all(blocks(c, n)),
        lambda c, n: c.all_to_all(blocks(c, n // 2)),
        "float32 x ",
        "float32 x ",
    ),
    "shape of the same count": (
        lambda c, n: c.all_to_all(blocks(c, n)),
        lambda c, n: c.all_to_all(np.ones((c.size, 2 * n // c.size), np.float32)),
        "float32 x ",
        "float32 x ",
    ),
    "root": (lambda c, n: c.reduce(xs(c, n), root=0), lambda c, n: c.reduce(xs(c, n), root=c.rank), "root=0", "root="),
    "root of broadcast": (
        lambda c, n: c.broadcast(xs(c, n), root=0),
        lambda c, n: c.broadcast(xs(c, n), root=c.rank),
        "root=0",
        "root=",
    ),
    "root of gather": (
        lambda c, n: c.gather(xs(c, n), root=0),
        lambda c, n: c.gather(xs(c, n), root=c.rank),
        "root=0",
        "root=",
    ),
    "size, eager and planned": (
        lambda c, n: c.all_reduce(xs(c, n)),
        lambda c, n: c.all_reduce(xs(c, 100_000)),
        "float32 x ",
        "float32 x 100000",
    ),
    "array and barrier": (lambda c, n: c.all_reduce(xs(c, n)), lambda c, n: c.barrier(), "all_reduce(", "barrier()"),
    "counts": (
        lambda c, n: c.all_gather(xs(c, n), counts=[n] * c.size),
        lambda c, n: c.all_gather(xs(c, n), counts=[n + (r != c.rank) for r in range(c.size)]),
        "digest",
        "digest",
    ),
    "a bundle and an array": (
        lambda c, n: c.all_reduce(xs(c, n)),
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


@pytest.mark.sample(20)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("n", [SMALL, LARGE], ids=["eager", "planned"])
@pytest.mark.parametrize("pair", PAIRS)
def test_all_ranks_get_a_disagreement_with_both_calls(pair, n, ranks):
    for odd in {ranks - 1, 1}:
        errors = run_ranks(ranks, call_something_else, pair, n, odd)
        assert len(set(errors)) == 1, errors  # one account of one event
        text, about = errors[0]
        assert len(set(about)) == 2
        assert all(0 <= r < ranks for r in about)
        assert " called " in text
        if "root" not in pair and "one rooted" not in pair:
            assert odd in about, text
            assert all(part in text for part in PAIRS[pair][2:]), text


# ---- order -----------------------------------------------------------------------------------------------------------


def swap_two_calls(comm, n, odd):
    calls = [lambda: comm.all_reduce(np.ones(n)), lambda: comm.all_gather(np.ones(n))]
    with pytest.raises(MismatchError) as caught:
        for one in reversed(calls) if comm.rank == odd else calls:
            one()
    return str(caught.value)


def skip_one_call(comm, n, odd, before):
    for _ in range(before):
        comm.all_reduce(np.ones(n))
    with pytest.raises(MismatchError) as caught:
        if comm.rank != odd:
            comm.all_gather(np.ones(n))
        comm.all_reduce(np.ones(n))
        comm.barrier()
    return str(caught.value)


def skip_at_the_end(comm, n, odd):
    comm.all_reduce(np.ones(n))
    if comm.rank != odd:
        comm.all_gather(np.ones(n))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("n", [SMALL, LARGE], ids=["eager", "planned"])
def test_calls_in_another_order_are_a_disagreement(n, ranks):
    for text in run_ranks(ranks, swap_two_calls, n, ranks - 1):
        assert "all_reduce(" in text
        assert "all_gather(" in text


@pytest.mark.parametrize("before", [0, 1, 7, 8, 9])  # what the slots still hold is no answer
@pytest.mark.parametrize("n", [SMALL, LARGE], ids=["eager", "planned"])
def test_a_rank_that_skips_a_collective_is_found_out(n, before):
    for text in run_ranks(3, skip_one_call, n, 2, before):
        assert "all_reduce(" in text
        assert "all_gather(" in text


@pytest.mark.parametrize("n", [SMALL, LARGE], ids=["eager", "planned"])
def test_a_rank_that_skips_the_last_collective_has_left(n):
    from support.harness import start_ranks

    from shmring.errors import PeerLostError

    outcomes = start_ranks(3, skip_at_the_end, n, 1).outcomes()
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
    from support.harness import start_ranks

    outcomes = start_ranks(2, skip_a_same_one, SMALL).outcomes()
    assert outcomes[0].ok
    assert outcomes[1].error is not None
