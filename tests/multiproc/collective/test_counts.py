"""Collectives in which ranks have different numbers of rows (``counts=``)."""

import mmap

import numpy as np
import pytest
from support.inputs import same_bits
from support.on_ranks import on_ranks

from shmring.errors import MismatchError


@on_ranks(2, 3, 7)
def test_small_blocks_go_round_the_ring_for_ever(comm):
    counts = list(range(comm.size))
    assert 8 * sum(counts) <= comm.stats()["eager_nbytes"]
    for _ in range(100):
        got = comm.all_gather(np.full(comm.rank, comm.rank), counts=counts)
        assert got.tolist() == [r for r in range(comm.size) for _ in range(r)]


@on_ranks(2, 3)
def test_an_empty_share_at_the_end_of_an_eager_message_waits_for_no_line(comm):
    # The eager message of rank 0 fills whole lines; the last rank receives none of them: its share begins at the end.
    for nbytes in (48, 104, 160, 440):
        counts = [nbytes, *[0] * (comm.size - 1)]
        shares = comm.all_to_all(
            np.full(nbytes * (comm.rank == 0), 7, np.uint8), counts=counts if comm.rank == 0 else [0] * comm.size
        )
        assert shares.tolist() == [7] * (nbytes * (comm.rank == 0))
        x = np.ones(nbytes, np.uint8)
        assert comm.reduce_scatter(x, counts=counts).tolist() == [comm.size] * counts[comm.rank]
        out = np.zeros(counts[comm.rank], np.uint8)
        assert comm.scatter(x, out, counts=counts).tolist() == [1] * counts[comm.rank]


def rows(count, width=2):
    return np.ones((count, width), np.float32)


def more(comm, n, odd):
    """Counts; the odd rank believes that rank 0 has more, and has itself the right number."""
    return [n + odd, *[n] * (comm.size - 1)]


def swapped(comm, n, odd):
    """Counts; those of the odd rank differ and, if there are three ranks, have the same sum."""
    if not odd:
        return [n] * comm.size
    return [n + 1, n - 1, *[n] * (comm.size - 2)] if comm.size > 2 else [2 * n, n]


# By name: the call, of the number of rows and of whether this is the rank that disagrees, with a barrier where a root
# ends its part; and a part of the error.
WAYS = {
    "all_gather more": (lambda c, n, odd: c.all_gather(rows(n), counts=more(c, n, odd)), ""),
    "all_gather swap": (lambda c, n, odd: c.all_gather(rows(n), counts=swapped(c, n, odd)), ""),
    "gather more": (lambda c, n, odd: (c.gather(rows(n), counts=more(c, n, odd)), c.barrier()), ""),
    "reduce_scatter more": (lambda c, n, odd: c.reduce_scatter(rows(n * c.size + odd), counts=more(c, n, odd)), ""),
    "scatter more": (
        lambda c, n, odd: (c.scatter(rows(n * c.size + odd), rows(n), counts=more(c, n, odd)), c.barrier()),
        "",
    ),
    "uniform": (lambda c, n, odd: c.all_gather(rows(n), counts=None if odd else [n] * c.size), ""),
    "row": (lambda c, n, odd: c.all_to_all(rows(n * c.size, 4 if odd else 2), counts=[n] * c.size), ""),
    "expects": (
        lambda c, n, odd: c.all_to_all(rows(n * c.size), counts=[n] * c.size, out_counts=more(c, n, odd)),
        "rank 0 sends {n} rows to rank {last}, which expects {more}",
    ),
    "room": (
        lambda c, n, odd: c.all_to_all(rows(n * c.size), rows(n * c.size + odd), counts=[n] * c.size),
        "rank {last} has room for",
    ),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("count", [2, 20_000])
@pytest.mark.parametrize("way", WAYS)
@on_ranks(2, 3)
def test_ranks_with_different_counts_all_get_an_error(comm, way, count):
    call, text = WAYS[way]
    last = comm.size - 1
    with pytest.raises(MismatchError, match="disagree") as caught:
        call(comm, count, comm.rank == last)
    assert text.format(n=count, more=count + 1, last=last) in str(caught.value)
    assert comm.is_broken
    with pytest.raises(MismatchError):
        comm.barrier()


@on_ranks(1, 2, 3)
def test_bad_counts_raise_before_anything_is_sent(comm):
    size, rank = comm.size, comm.rank
    x = np.ones((2, 3))
    twos = [2] * size
    cases = [
        (TypeError, lambda: comm.all_gather(x, counts=2)),
        (TypeError, lambda: comm.all_gather(x, counts=[2.0] * size)),
        (ValueError, lambda: comm.all_gather(x, counts=[2] * (size + 1))),
        (ValueError, lambda: comm.all_gather(x, counts=[-2] * size)),
        (ValueError, lambda: comm.all_gather(x, counts=[1 << 61] * 4 * size)),
        (ValueError, lambda: comm.all_gather(x, counts=[3] * size)),
        (ValueError, lambda: comm.all_gather(np.float64(3), counts=twos)),
        (ValueError, lambda: comm.all_gather(x, np.ones((2 * size, 2)), counts=twos)),
        (TypeError, lambda: comm.all_gather(x, np.ones((2 * size, 3), np.float32), counts=twos)),
        (TypeError, lambda: comm.all_gather([1, 2], counts=twos)),
        (ValueError, lambda: comm.gather(x, root=size, counts=twos)),
        (ValueError, lambda: comm.scatter(x, x, root=-1, counts=twos)),
        (ValueError, lambda: comm.scatter(np.ones((2 * size + 1, 3)), np.ones((3, 3)), root=rank, counts=twos)),
        (
            ValueError,
            lambda: (
                comm.scatter(None, None, root=(rank + 1) % size, counts=twos)
                if size > 1
                else comm.scatter(np.ones(3), counts=twos)
            ),
        ),
        (ValueError, lambda: comm.reduce_scatter(np.ones((2 * size + 1, 3)), counts=twos)),
        (TypeError, lambda: comm.reduce_scatter(np.ones((2 * size, 3)), op="bxor", counts=twos)),
        (ValueError, lambda: comm.all_to_all(np.ones((2 * size, 3)), out_counts=twos)),
        (ValueError, lambda: comm.all_to_all(np.ones((2 * size, 3)), counts=[1] * size)),
        (ValueError, lambda: comm.all_to_all(np.ones((2 * size, 3)), np.ones(5), counts=twos)),
        (ValueError, lambda: comm.all_to_all(np.ones((2 * size, 3)), np.ones((1, 3)), counts=twos, out_counts=twos)),
    ]
    both = np.ones((2 * size, 3))
    cases.append((ValueError, lambda: comm.all_to_all(both, both, counts=twos)))
    for error, call in cases:
        with pytest.raises(error):
            call()
        if rank == 0:
            with pytest.raises(error):
                call()
    assert same_bits(comm.all_gather(x, counts=twos), np.ones((2 * size, 3)))


@on_ranks(1, 2)
def test_more_elements_than_a_signature_can_hold_are_refused(comm):
    map_noreserve = 0x4000  # addresses alone, no memory
    room = mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_noreserve)
    x = np.frombuffer(room, np.uint8)
    for call in (lambda: comm.all_reduce(x), lambda: comm.broadcast(x), lambda: comm.scan(x)):
        with pytest.raises(ValueError, match="68719476736 elements in one call: at most 68719476735"):
            call()
    assert comm.all_reduce(np.ones(3)).tolist() == [comm.size] * 3
