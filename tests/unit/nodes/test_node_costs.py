"""What the plans over several nodes send, beside the formulas of `shmring.nodes.plan.call` and of the documents."""

import math

import node_tables
import numpy as np
import pytest
from support.installed import ROOT
from support.nodes_simulator import Simulation

from shmring.nodes.plan import movement, reduction
from shmring.nodes.plan.build import PIECE_NBYTES
from shmring.nodes.plan.call import choose, cost
from shmring.nodes.plan.layout import Layout, cut


def even(nodes, each):
    return Layout([range(node * each, (node + 1) * each) for node in range(nodes)])


def uneven(nodes, most):
    sizes = [1 + (most - 1) * node // max(1, nodes - 1) for node in range(nodes)]
    starts = np.cumsum([0, *sizes])
    return Layout([range(start, start + size) for start, size in zip(starts, sizes, strict=False)])


LAYOUTS = [even(2, 1), even(2, 16), even(3, 4), even(8, 4), even(16, 2), uneven(5, 9), uneven(16, 3)]


def itemsize_of(layout):
    """So that few elements are a large vector, but each rail's slice one piece."""
    return PIECE_NBYTES // (2 * len(layout))


def named(layout):
    return f"{len(layout)}x{'-'.join(sorted({str(len(ranks)) for ranks in (layout.nodes[0], layout.nodes[-1])}))}"


def run(layout, plan_of, counts, out_counts):
    xs = [np.full(count, float(r)) for r, count in enumerate(counts)]
    outs = [None if count is None else np.zeros(count) for count in out_counts]
    simulation = Simulation(layout, [plan_of(r) for r in range(layout.size)], xs, outs, watched=False)
    simulation.run()
    return simulation, outs


def check(layout, kind, algorithm, merged, simulation, count, is_even=True):
    wanted = cost(kind, layout, count, algorithm, merged)
    traffic = simulation.traffic
    assert sum(traffic.elements.values()) == wanted.total
    assert max(simulation.rounds) == wanted.rounds
    if is_even:
        nodes = range(len(layout))
        assert max([traffic.into(node) for node in nodes] + [traffic.out_of(node) for node in nodes]) == wanted.busiest


@pytest.mark.parametrize(("algorithm", "merged"), node_tables.VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=named)
def test_reductions_send_what_the_formulas_say(layout, algorithm, merged):
    n, p = len(layout), layout.size
    count = n * layout.nleaders * 2
    wanted = p * (p - 1) / 2
    simulation, outs = run(
        layout, lambda r: reduction.all_reduce(layout, r, count, itemsize_of(layout), algorithm, merged),
        [count] * p, [count] * p,
    )  # fmt: skip
    assert all((out == wanted).all() for out in outs)
    check(layout, "all_reduce", algorithm, merged, simulation, count)
    simulation, outs = run(
        layout, lambda r: reduction.reduce(layout, r, count, itemsize_of(layout), algorithm, 0, merged),
        [count] * p, [count] + [None] * (p - 1),
    )  # fmt: skip
    assert (outs[0] == wanted).all()
    check(layout, "reduce", algorithm, merged, simulation, count)
    sizes = [layout.nleaders] * p
    simulation, outs = run(
        layout, lambda r: reduction.reduce_scatter(layout, r, sizes, itemsize_of(layout), algorithm, merged),
        [sum(sizes)] * p, sizes,
    )  # fmt: skip
    assert all((out == wanted).all() for out in outs)
    check(layout, "reduce_scatter", algorithm, merged, simulation, sum(sizes))


@pytest.mark.parametrize("each", [4, pytest.param(128, marks=pytest.mark.long)])
@pytest.mark.parametrize("algorithm", ["gather", "direct"])
def test_64_nodes_of_many_ranks(algorithm, each):
    layout, count = even(64, each), 64 * each
    simulation, outs = run(
        layout, lambda r: reduction.all_reduce(layout, r, count, itemsize_of(layout), algorithm, True),
        [count] * layout.size, [count] * layout.size,
    )  # fmt: skip
    assert all((out == layout.size * (layout.size - 1) / 2).all() for out in outs)
    check(layout, "all_reduce", algorithm, True, simulation, count, is_even=False)


@pytest.mark.parametrize("layout", LAYOUTS, ids=named)
def test_movement_sends_each_byte_once_to_each_node_that_needs_it(layout):
    n, p = len(layout), layout.size
    count = 2 * layout.nleaders
    simulation, _ = run(layout, lambda r: movement.broadcast(layout, r, count, 8, p - 1), [count] * p, [0] * p)
    assert sum(simulation.traffic.elements.values()) == (n - 1) * count
    assert max(simulation.rounds) <= math.ceil(math.log2(n))
    sizes = [1 + r % 3 for r in range(p)]
    itemsize, totals = itemsize_of(layout), [sum(sizes)] * p
    simulation, _ = run(layout, lambda r: movement.all_gather(layout, r, sizes, itemsize), sizes, totals)
    assert sum(simulation.traffic.elements.values()) == (n - 1) * sum(sizes)
    assert max(simulation.rounds) == 1
    away = sum(sizes) - sum(sizes[r] for r in layout.nodes[0])
    roots = [sum(sizes)] + [0] * (p - 1)
    simulation, _ = run(layout, lambda r: movement.gather(layout, r, sizes, 8, 0), sizes, roots)
    assert sum(simulation.traffic.elements.values()) == away
    simulation, _ = run(layout, lambda r: movement.scatter(layout, r, sizes, 8, 0), roots, sizes)
    assert sum(simulation.traffic.elements.values()) == away
    assert sum(simulation.traffic.messages.values()) == n - 1
    simulation, _ = run(layout, lambda r: movement.barrier(layout, r), [0] * p, [0] * p)
    assert sum(simulation.traffic.messages.values()) == n * math.ceil(math.log2(n))
    assert max(simulation.rounds) == math.ceil(math.log2(n))


def test_the_choice_goes_from_few_messages_to_few_bytes():
    chosen = [choose("all_reduce", even(4, 4), 1 << k, False) for k in range(27)]
    assert chosen[0] == "gather"
    assert chosen[-1] == "direct"
    assert sorted(chosen, reverse=True) == chosen


def test_merged_sums_move_no_more_than_a_ring_of_nodes():
    for layout in (even(2, 4), even(8, 8), uneven(5, 9)):
        n = len(layout)
        assert cost("all_reduce", layout, 1 << 20, "direct", True).total == 2 * (n - 1) << 20


def test_cut():
    assert cut(7, 3) == [3, 2, 2]


def test_the_documented_tables_are_those_that_the_tool_prints():
    page = (ROOT / "docs" / "maintainers" / "nodes-internals.md").read_text()
    for table in (node_tables.costs(), *map(node_tables.predictions, node_tables.NETWORKS.values())):
        assert table in page
