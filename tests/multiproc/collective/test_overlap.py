"""An ``out`` that overlaps ``x`` on one rank.

Exactly in place it works; otherwise that rank refuses it, and no rank gets wrong numbers.
"""

import numpy as np
import pytest
from support.on_ranks import on_ranks
from support.oracle import result

SMALL_SLOTS = {"slot_nbytes": 4096, "nslots": 4, "eager_nbytes": 512}
ROOT = 1


def own_place(counts, rank):
    return sum(counts[:rank])


def start(counts, rank):
    return 0


# By name: rows of x, rows of out, in which of both the other one lies in place, and at which row.
CALLS = {
    "all_gather": ("own", "all", "out", own_place),
    "gather": ("own", "all", "out", own_place),
    "scatter": ("all", "own", "x", own_place),
    "reduce_scatter": ("all", "own", "x", own_place),
    "all_reduce": ("all", "all", "x", start),
    "reduce": ("all", "all", "x", start),
    "scan": ("all", "all", "x", start),
    "all_to_all": ("same", "same", "x", start),
}


def with_arguments(comm, name, x, out, counts):
    arguments = {}
    if name in ("gather", "scatter", "reduce"):
        arguments["root"] = ROOT
    if name in ("all_gather", "gather", "scatter", "reduce_scatter") and len(set(counts)) > 1:
        arguments["counts"] = counts
    elif name in ("all_gather", "gather"):
        out = out.reshape(comm.size, *x.shape)
    elif name in ("scatter", "reduce_scatter"):
        x = x.reshape(comm.size, *out.shape)
    elif name == "all_to_all":
        arguments["counts"] = arguments["out_counts"] = [counts[comm.rank]] * comm.size
    return getattr(comm, name)(x, out, **arguments)


def overlap_on_one_rank(comm, name, counts, width):
    size, rank = comm.size, comm.rank
    of_x, of_out, outer, place_of = CALLS[name]

    def rows(which, r):
        return {"own": counts[r], "all": sum(counts), "same": counts[r] * size}[which]

    if name == "all_to_all":  # every rank must expect what the others send
        counts = [counts[0]] * size
    xs = [np.random.default_rng(r).integers(0, 99, (rows(of_x, r), width)) for r in range(size)]
    expected = result(name, xs, rank, root=ROOT, counts=[counts] * size if name == "all_to_all" else counts)
    nx, nout = rows(of_x, rank) * width, rows(of_out, rank) * width
    place = place_of(counts, rank) * width * (1 if outer == "out" else -1)  # of x in out
    refused = 0
    for odd in range(size) if name not in ("gather", "scatter", "reduce") else [ROOT]:
        shifts = {place_of(counts, odd) * width * sign + d for sign in (1, -1) for d in (-width, -1, 0, 1, width)}
        for shift in sorted(shifts):
            memory = np.zeros(2 * (nx + nout) + 2 * abs(shift), int)
            at = nout + abs(shift)
            x = memory[at : at + nx].reshape(-1, width)
            out = memory[at - shift : at - shift + nout] if rank == odd else np.zeros(nout, int)
            out = out.reshape(-1, width)
            x[:] = xs[rank]
            before = memory.copy()
            if shift != place and np.shares_memory(x, out):
                with pytest.raises(ValueError, match="overlap"):
                    with_arguments(comm, name, x, out, counts)
                assert (memory == before).all()
                refused += 1
                out = np.zeros_like(out)
            with_arguments(comm, name, x, out, counts)
            if name not in ("gather", "reduce") or rank == ROOT:
                assert (out == expected).all(), (name, odd, shift)
    return refused


@pytest.mark.sample(3)
@pytest.mark.parametrize("width", [3, 3000])
@pytest.mark.parametrize("counts", [[1, 2, 1], [2, 1, 2], [1, 1, 1], [0, 3, 1]], ids=str)
@on_ranks(3, init=SMALL_SLOTS)
def test_an_overlap_is_refused_unless_it_is_in_place(comm, counts, width):
    for name in CALLS:
        refused = overlap_on_one_rank(comm, name, counts, width)
        assert comm.rank != ROOT or refused or (name == "all_to_all" and not counts[0]), name
