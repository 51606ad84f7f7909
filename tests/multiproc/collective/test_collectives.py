"""Every collective on real processes, compared bit for bit with what plain NumPy makes of all ranks' inputs."""

import os

import numpy as np
import pytest
from support.harness import RANKS, run_ranks
from support.inputs import NUMPY_DTYPES, same_bits, values
from support.oracle import reduce_model

import shmring
from shmring.dtypes import OPS, is_defined
from shmring.kernel.reduce import WAYS

# Elements: none, one, odd, at the ends of an eager's lines and of the eager, plans of one and of many rounds.
COUNTS = (0, 1, 2, 5, 6, 7, 13, 511, 512, 513, 1025, 4099, 65_537, 300_007)


def inputs(comm, dtype, shape, *key):
    return [values(dtype, shape, r, *key) for r in range(comm.size)]


def check_reductions(comm, dtype, op, count, key):
    size, rank = comm.size, comm.rank
    xs = inputs(comm, dtype, count, key)
    whole = reduce_model(xs, op)

    out = np.empty_like(whole)
    assert comm.all_reduce(xs[rank].copy(), out, op=op) is out
    assert same_bits(out, whole)
    x = xs[rank].copy()
    assert comm.all_reduce(x, op=op) is x
    assert same_bits(x, whole)

    root = key % size
    x = xs[rank].copy()
    result = comm.reduce(x, root=root, op=op)
    assert same_bits(x, whole if rank == root else xs[rank])
    assert (result is x) if rank == root else (result is None)

    assert same_bits(comm.scan(xs[rank].copy(), op=op), reduce_model(xs[: rank + 1], op))
    x = xs[rank].copy()
    comm.exscan(x, op=op)
    assert same_bits(x, reduce_model(xs[:rank], op) if rank else xs[0])

    blocks = inputs(comm, dtype, (size, count), key, 1)
    share = comm.reduce_scatter(blocks[rank].copy(), op=op)
    assert same_bits(share, reduce_model([b[rank] for b in blocks], op))
    x = blocks[rank].copy()
    comm.reduce_scatter(x, x[rank], op=op)
    assert same_bits(x[rank], share)


def check_movements(comm, dtype, count, key):
    size, rank = comm.size, comm.rank
    root = key % size
    xs = inputs(comm, dtype, count, key)
    blocks = inputs(comm, dtype, (size, count), key, 1)
    gathered = np.stack(xs)

    x = xs[rank].copy()
    assert comm.broadcast(x, root=root) is x
    assert same_bits(x, xs[root])
    assert same_bits(comm.all_gather(xs[rank]), gathered)
    whole = np.zeros_like(gathered)
    whole[rank] = xs[rank]
    comm.all_gather(whole[rank], whole)
    assert same_bits(whole, gathered)
    result = comm.gather(xs[rank], root=root)
    assert same_bits(result, gathered) if rank == root else result is None
    share = comm.scatter(blocks[rank] if rank == root else None, np.empty_like(xs[0]), root=root)
    assert same_bits(share, blocks[root][rank])
    swapped = np.stack([b[rank] for b in blocks])
    assert same_bits(comm.all_to_all(blocks[rank]), swapped)
    x = blocks[rank].copy()
    assert comm.all_to_all(x, x) is x
    assert same_bits(x, swapped)


def all_sizes(comm):
    for key, count in enumerate(COUNTS):
        check_reductions(comm, np.dtype("float32"), OPS[key % 4], count, key)
        check_movements(comm, np.dtype("int16"), count, key)
        comm.barrier()


@pytest.mark.sample(2)
@pytest.mark.parametrize("n", RANKS)
def test_every_collective_gives_exact_answers_at_every_size(n):
    run_ranks(n, all_sizes)


def tiny_slots(comm):
    for key, count in enumerate((700, 1500, 5001, 20_011)):
        check_reductions(comm, np.dtype("float64"), "sum", count, key)
        check_movements(comm, np.dtype("uint8"), 4 * count, key)


@pytest.mark.sample(4)
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("nslots", [4, 8])
def test_pipelines_through_tiny_slots_go_round_the_ring_many_times(n, nslots):
    run_ranks(n, tiny_slots, init={"slot_nbytes": 4096, "nslots": nslots, "eager_nbytes": 64})


def all_dtypes(comm, counts):
    key = 0
    for name, dtype in NUMPY_DTYPES.items():
        for op in OPS:
            for count in counts:
                key += 1
                x = values(dtype, count, comm.rank, key)
                if is_defined(op, name):
                    whole = reduce_model(inputs(comm, dtype, count, key), op)
                    assert same_bits(comm.all_reduce(x.copy(), op=op), whole), (name, op, count)
                    share = comm.reduce_scatter(np.stack([x] * comm.size), op=op)
                    assert same_bits(share, whole), (name, op, count)
                else:
                    with pytest.raises(TypeError, match=f"{op}.*{name}"):
                        comm.all_reduce(x, op=op)
        check_movements(comm, dtype, 33, key)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_dtype_and_op_gives_exact_answers_small_and_large(n):
    run_ranks(n, all_dtypes, (9, 3001))


def special_values(comm):
    for name in ("float32", "float16", "bfloat16", "float64"):
        special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 3e38])
        with np.errstate(over="ignore"):
            special = special.astype(NUMPY_DTYPES[name])
        grid = [g.ravel() for g in np.meshgrid(*[special] * comm.size)]
        for op in ("sum", "prod", "min", "max", "avg"):
            for times in (1, 60):
                xs = [np.tile(g, times) for g in grid]
                assert same_bits(comm.all_reduce(xs[comm.rank].copy(), op=op), reduce_model(xs, op)), (name, op)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_infinities_nans_and_denormals_come_out_the_same_small_and_large(n):
    run_ranks(n, special_values)


def any_layout(comm):
    size, rank = comm.size, comm.rank
    for shape in ((6, 4), (300, 50)):
        xs = inputs(comm, "float32", shape, 1)
        whole = reduce_model(xs, "sum")
        for layout in (np.asfortranarray, lambda a: np.repeat(a, 2, 1)[:, ::2], lambda a: a[::-1].copy()[::-1]):
            x = layout(xs[rank])
            assert comm.all_reduce(x) is x
            assert (x == whole).all()
            out = layout(np.empty_like(whole))
            comm.all_reduce(layout(xs[rank]), out)
            assert (out == whole).all()
            gathered = comm.all_gather(layout(xs[rank]))
            assert same_bits(gathered, np.stack(xs))
        swapped = xs[rank].astype(">f4")
        comm.all_reduce(swapped)
        assert (swapped == whole).all()
    scalar = np.array(2.5)
    comm.all_reduce(scalar)
    assert scalar.shape == ()
    assert scalar == 2.5 * size
    raw = bytearray(b"\x01\x02")
    comm.all_reduce(memoryview(raw), op="max")
    assert raw == b"\x01\x02"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_arrays_of_any_layout_are_reduced_in_place(n):
    run_ranks(n, any_layout)


def bad_arguments(comm):
    x = np.ones(8, np.float32)
    cases = [
        (TypeError, lambda: comm.all_reduce([1, 2])),
        (TypeError, lambda: comm.all_reduce(np.array(["a"], object))),
        (ValueError, lambda: comm.all_reduce(x, op="median")),
        (TypeError, lambda: comm.all_reduce(x, op="band")),
        (TypeError, lambda: comm.all_reduce(np.ones(3, np.int32), op="avg")),
        (TypeError, lambda: comm.all_reduce(x, np.ones(8))),
        (ValueError, lambda: comm.all_reduce(x, np.ones(7, np.float32))),
        (ValueError, lambda: comm.all_reduce(x[:6], x[2:])),
        (ValueError, lambda: comm.broadcast(x, root=comm.size)),
        (ValueError, lambda: comm.broadcast(x, root=-1)),
        (ValueError, lambda: comm.reduce_scatter(np.ones((comm.size + 1, 2)))),
        (ValueError, lambda: comm.all_gather(x, np.ones((comm.size + 1, 8), np.float32))),
        (ValueError, lambda: comm.all_reduce(x, timeout=-1)),
        (ValueError, lambda: comm.all_to_all(np.ones(()))),
    ]
    masked = np.ma.masked_equal(np.ones(8, np.float32), 1)
    blocks = masked.reshape(1, 8).repeat(comm.size, 0)
    for call in (
        lambda: comm.all_reduce(masked),
        lambda: comm.all_reduce(x, masked),
        lambda: comm.all_reduce_many([x, masked]),
        lambda: comm.reduce(masked),
        lambda: comm.scan(masked),
        lambda: comm.reduce_scatter(blocks),
        lambda: comm.reduce_scatter(blocks, counts=[1] * comm.size),
        lambda: comm.broadcast(masked),
        lambda: comm.broadcast_many([masked]),
        lambda: comm.all_gather(masked),
        lambda: comm.all_gather(x, blocks),
        lambda: comm.gather(masked),
        lambda: comm.scatter(blocks, masked),
        lambda: comm.all_to_all(blocks),
        lambda: comm.all_to_all(blocks, counts=[1] * comm.size),
        lambda: comm.send(masked, 0),
        lambda: comm.isend(masked, 0),
        lambda: comm.recv(masked),
        lambda: comm.irecv(masked),
        lambda: comm.sendrecv(x, 0, masked),
    ):
        cases.append((TypeError, call))
        with pytest.raises(TypeError, match="masked"):
            call()
    frozen = x.copy()
    frozen.flags.writeable = False
    cases.append(((TypeError, ValueError), lambda: comm.all_reduce(frozen)))
    for error, call in cases:
        with pytest.raises(error):
            call()
        # Nothing was sent: a rank alone in a mistake stays in step with the others.
        if comm.rank == 0:
            with pytest.raises(error):
                call()
    comm.all_reduce(x)
    return x.tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_bad_arguments_raise_before_anything_is_sent(n):
    assert run_ranks(n, bad_arguments) == [[n] * 8] * n


def many_small(comm, times):
    x = np.zeros(3, np.int64)
    for i in range(times):
        x[:] = i, comm.rank, 1
        comm.all_reduce(x)
        assert x.tolist() == [i * comm.size, comm.size * (comm.size - 1) // 2, comm.size]
        if i % 7 == 0:
            y = np.full(2, i if comm.rank == i % comm.size else -1)
            comm.broadcast(y, root=i % comm.size)
            assert y.tolist() == [i, i]


@pytest.mark.parametrize("n", RANKS)
def test_slots_are_reused_for_ever(n):
    run_ranks(n, many_small, 300)


def one_sided(comm):
    # The root runs ahead of the others until the ring is full; no rank may overwrite what was not read.
    for root in range(comm.size):
        for i in range(50):
            for count in (1, 2000):
                x = np.full(count, root * 100 + i if comm.rank == root else -1)
                comm.broadcast(x, root=root)
                assert (x == root * 100 + i).all()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_root_that_runs_ahead_overwrites_nothing(n):
    run_ranks(n, one_sided)


def look_at_stats(comm, stores, kind):
    x = np.ones(100_000)
    for _ in range(100):
        comm.all_reduce(x, op="max") if kind == "all_reduce" else comm.broadcast(x, root=1)
    stats = comm.stats()
    (program,) = stats["programs"]
    assert (program["kind"], program["nbytes"]) == (kind, x.nbytes)
    assert stats["rounds"] >= 50 * program["rounds"]  # an exchange has about half as many
    if stores < 0:
        assert program["calls"] == 100
        assert all(us > 0 for us in program["trial_us"])
        assert program["stores"] == WAYS[program["trial_us"].index(min(program["trial_us"]))]
    else:
        assert program["stores"] == WAYS[stores] or (stores, kind) == (4, "broadcast")
    return program["trial_us"]


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
@pytest.mark.parametrize("stores", [-1, 0, 1, 2, 3, 4])
def test_stats_have_what_was_chosen_and_why(stores, kind):
    found = run_ranks(3, look_at_stats, stores, kind, init={"stores": stores, "one_shot_nbytes": 0})
    assert len(set(found)) == 1  # what the ranks took together, so all choose alike


def rank_0_chooses(comm, wanted):
    """All ranks take the way of rank 0, whatever they would have chosen; sizes from one chunk to many."""
    mine = shmring.init(
        rank=comm.rank,
        size=comm.size,
        session=f"{comm.broadcast_object(os.getpid())}",
        stores=wanted[min(comm.rank, 1)],
        slot_nbytes=4096,
        eager_nbytes=64,
        one_shot_nbytes=0,
        threads=1,
    )
    with mine:
        rounds = []
        for count in (33, 40, 1000, 4099, 50_000):
            x = values("float32", count, comm.rank)
            expected = reduce_model([values("float32", count, r) for r in range(comm.size)], "sum")
            before = mine.stats()["rounds"]
            for _ in range(3):
                assert same_bits(mine.all_reduce(x.copy()), expected)
            rounds.append(mine.stats()["rounds"] - before)
    return rounds


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_ranks_exchange_results_if_rank_0_does(n):
    made = {wanted: run_ranks(n, rank_0_chooses, wanted) for wanted in ((0, 0), (0, 4), (4, 0), (4, 4))}
    for found in made.values():
        assert all(rounds == found[0] for rounds in found)
    assert made[0, 4] == made[0, 0]
    assert made[4, 0] == made[4, 4]
    assert made[4, 4][0][-1] < made[0, 0][0][-1]
