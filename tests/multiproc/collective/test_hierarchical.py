"""Hierarchical plans carried out: the bits of the flat plans, on domains that a topology forces."""

import hashlib
import json
import re
import time

import ml_dtypes
import numpy as np
import pytest

LEVELS = {
    "two nodes": ["0-3", "4-7"],
    "uneven": ["0-2", "3-7"],
    "four nodes in two packages": ["0-1", "2-3", "4-5", "6-7"],
}
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "complex64")
OPS = {"int32": ("sum", "bxor"), "complex64": ("sum", "prod", "avg")}
COUNTS = (5000, 70_001)


def forced(tmp_path, nodes):
    """A file with a topology of these NUMA nodes, two packages if they are many."""
    packages = ["0-3", "4-7"] if len(nodes) > 2 else nodes
    facts = {"processors": "0-7", "packages": packages, "last_level_groups": nodes}
    facts["nodes"] = [{"number": k, "processors": node} for k, node in enumerate(nodes)]
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(facts))
    return {"SHMRING_TOPOLOGY": str(path)}


def operand(rank, count, dtype):
    """Such that the order of summation shows in the bits of floats."""
    rng = np.random.default_rng([rank, count])
    x = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)
    if dtype == "bfloat16":
        return x.astype(ml_dtypes.bfloat16)
    return (x * 100 if dtype == "int32" else x / 100 if dtype == "float16" else x).astype(dtype)


def calls(comm):
    """Every collective with a hierarchical plan, on every dtype: digests of results, and the algorithms used."""
    p, results = comm.size, []
    for dtype in DTYPES:
        for count in COUNTS:
            x = operand(comm.rank, count, dtype)
            blocks = np.stack([operand(comm.rank + 100 * k, count // p, dtype) for k in range(p)])
            for op in OPS.get(dtype, ("sum", "prod", "max", "avg")):
                results += [comm.all_reduce(x.copy(), op=op), comm.reduce_scatter(blocks, op=op)]
            results.append(comm.broadcast(x.copy(), root=p - 2))
            results.append(comm.all_gather(x))
            results.append(comm.all_reduce(blocks))
    made = {(program["kind"], program["algorithm"]) for program in comm.stats()["programs"]}
    return [None if x is None else hashlib.blake2b(x.tobytes()).digest() for x in results], made


@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "name"), [(4, "two nodes"), (8, "uneven"), (8, "four nodes in two packages")])
def test_nested_plans_give_the_bits_of_flat_ones(run_ranks, tmp_path, size, name):
    nested = run_ranks(size, calls, env=forced(tmp_path, LEVELS[name]) | {"SHMRING_HIERARCHICAL_NBYTES": "0"})
    flat = run_ranks(size, calls, env={"SHMRING_HIERARCHICAL_NBYTES": str(1 << 40)})
    for (mine, made), (others, made_flat) in zip(nested, flat, strict=True):
        assert mine == others
        assert {(kind, "hierarchical") for kind in KINDS} <= made
        assert {way for kind, way in made if kind in KINDS} == {"hierarchical"}
        assert not any(way == "hierarchical" for _, way in made_flat)


def split_among_threads(comm):
    results = []
    for dtype in ("float32", "bfloat16"):
        x = operand(comm.rank, 70_001, dtype)
        blocks = np.stack([operand(comm.rank + 100 * k, 9000, dtype) for k in range(comm.size)])
        results += [comm.all_reduce(x.copy(), op="avg"), comm.reduce_scatter(blocks)]
    results += [comm.all_gather(x), comm.broadcast(x, root=1)]
    programs = comm.stats()["programs"]
    return [y.tobytes() for y in results], {(p["threads"], p["algorithm"]) for p in programs if p["kind"] != "barrier"}


def test_threads_make_nested_collectives_of_their_shares(run_ranks, tmp_path):
    env = forced(tmp_path, LEVELS["two nodes"]) | {"SHMRING_HIERARCHICAL_NBYTES": "0"}
    nested = run_ranks(4, split_among_threads, env=env, init={"threads": 2, "split_nbytes": 0})
    flat = run_ranks(4, split_among_threads, init={"threads": 1})
    for (mine, made), (others, _) in zip(nested, flat, strict=True):
        assert mine == others
        assert made == {(2, "hierarchical")}


def explained(comm):
    for wrong in ({"dtype": "float8"}, {"op": "xor"}):
        with pytest.raises(ValueError, match="unknown"):
            comm.explain("all_reduce", 8, **wrong)
    texts = [comm.explain("all_reduce", 1 << 20, dtype=dtype) for dtype in ("float32", "bfloat16")]
    return *texts, comm.explain("gather", 1 << 20), comm.stats()["domains"]


def limit_in(text):
    """The size above which a collective is hierarchical, as explained."""
    return int(re.search(r"hierarchical: .* domains: above (\d+) bytes", text)[1])


def test_what_is_nested_and_why_is_explained(run_ranks, tmp_path):
    env = forced(tmp_path, LEVELS["two nodes"])
    for text, wider, other, domains in run_ranks(4, explained, env=env | {"SHMRING_HIERARCHICAL_NBYTES": "0"}):
        assert domains == ((0, 0, 1, 1),)
        assert text.startswith("all_reduce of 1048576 bytes among 4 ranks: hierarchical\n")
        assert "  hierarchical: taken, 2 domains: " in text
        assert limit_in(wider) == limit_in(text) == 0
        assert "hierarchical" not in other


def test_ranks_that_measure_their_distances_find_the_same_domains(run_ranks):
    found = run_ranks(5, measured, init={"nearness": 1, "hierarchical_nbytes": 0})
    assert len(set(found)) == 1


def come_late(comm):
    """When this rank came to each barrier, and when it left."""
    times = []
    for k in range(20):
        if k % comm.size == comm.rank:
            time.sleep(0.005)
        came = time.monotonic_ns()
        comm.barrier()
        times.append((came, time.monotonic_ns()))
    return times


def test_no_rank_leaves_a_barrier_before_the_last_has_come(run_ranks, tmp_path):
    found = run_ranks(6, come_late, env=forced(tmp_path, LEVELS["two nodes"]) | {"SHMRING_HIERARCHICAL_NBYTES": "0"})
    for k in range(20):
        assert max(times[k][0] for times in found) <= min(times[k][1] for times in found)


def measured(comm):
    x = operand(comm.rank, 5000, "float32")
    with comm.dup(nearness=0) as flat:
        assert comm.all_reduce(x.copy()).tobytes() == flat.all_reduce(x.copy()).tobytes()
        assert "domains" not in flat.stats()["why"]
    return comm.stats()["domains"], comm.stats()["why"]["domains"]
