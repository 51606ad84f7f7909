"""Hierarchical plans carried out: right, and used, on domains that a topology forces."""

import re
import time

import pytest
from support.drivers import run_cases
from support.forced_topology import run_ranks_on
from support.harness import run_ranks
from support.inputs import NUMPY_DTYPES, values
from support.oracle import draw

from shmring.dtypes import OPS

LEVELS = {
    "two nodes": ["0-3", "4-7"],
    "uneven": ["0-2", "3-7"],
    "four nodes in two packages": ["0-1", "2-3", "4-5", "6-7"],
}
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def machine_of(nodes):
    """A machine of these NUMA nodes, two packages if they are many."""
    packages = ["0-3", "4-7"] if len(nodes) > 2 else nodes
    facts = {"processors": "0-7", "packages": packages, "last_level_groups": nodes}
    facts["nodes"] = [{"number": k, "processors": node} for k, node in enumerate(nodes)]
    return facts


def is_large(case):
    """Whether the call needs a plan."""
    return not case.counts and case.op in OPS and case.count * NUMPY_DTYPES[case.dtype].itemsize > 4096


def cases(seed):
    """Calls of the kinds that have hierarchical plans."""
    return [case for kind in KINDS for case in draw(40, seed, is_large, kind=kind)[:10]]


def calls(comm, some):
    """Make these calls; the kinds, threads and algorithms of the plans that were used."""
    run_cases(comm, "Direct", some)
    made = {(plan["kind"], plan["threads"], plan["algorithm"]) for plan in comm.stats()["programs"]}
    return {one for one in made if one[0] != "barrier"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "name"), [(4, "two nodes"), (8, "uneven"), (8, "four nodes in two packages")])
def test_hierarchical_plans_are_right_and_used(size, name, threads, seed):
    init = {"threads": threads, "split_nbytes": 0, "hierarchical_nbytes": 0}
    for made in run_ranks_on(machine_of(LEVELS[name]), size, calls, cases(seed), init=init):
        assert made == {(kind, threads, "hierarchical") for kind in KINDS}


def test_without_hierarchical_plans_none_is_used(seed):
    for made in run_ranks(4, calls, cases(seed), env={"SHMRING_HIERARCHICAL_NBYTES": str(1 << 40)}):
        assert not any(algorithm == "hierarchical" for _, _, algorithm in made)


def explained(comm):
    for wrong in ({"dtype": "float8"}, {"op": "xor"}):
        with pytest.raises(ValueError, match="unknown"):
            comm.explain("all_reduce", 8, **wrong)
    texts = [comm.explain("all_reduce", 1 << 20, dtype=dtype) for dtype in ("float32", "bfloat16")]
    return *texts, comm.explain("gather", 1 << 20), comm.stats()["domains"]


def limit_in(text):
    """The size above which a collective is hierarchical, as explained."""
    return int(re.search(r"hierarchical: .* domains: above (\d+) bytes", text)[1])


def test_what_is_nested_and_why_is_explained():
    machine = machine_of(LEVELS["two nodes"])
    for text, wider, other, domains in run_ranks_on(machine, 4, explained, init={"hierarchical_nbytes": 0}):
        assert domains == ((0, 0, 1, 1),)
        assert text.startswith("all_reduce of 1048576 bytes among 4 ranks: hierarchical\n")
        assert "  hierarchical: taken, 2 domains: " in text
        assert limit_in(wider) == limit_in(text) == 0
        assert "hierarchical" not in other


def test_ranks_that_measure_their_distances_find_the_same_domains():
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


def test_no_rank_leaves_a_barrier_before_the_last_has_come():
    found = run_ranks_on(machine_of(LEVELS["two nodes"]), 6, come_late, init={"hierarchical_nbytes": 0})
    for k in range(20):
        assert max(times[k][0] for times in found) <= min(times[k][1] for times in found)


def measured(comm):
    x = values("float32", 5000, comm.rank)
    with comm.dup(nearness=0) as flat:
        assert comm.all_reduce(x.copy()).tobytes() == flat.all_reduce(x.copy()).tobytes()
        assert "domains" not in flat.stats()["why"]
    return comm.stats()["domains"], comm.stats()["why"]["domains"]
