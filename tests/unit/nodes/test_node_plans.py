"""Plans over several nodes, simulated for all ranks: results to the bit, no deadlock, no memory reused too early."""

# ruff: noqa: B023  each plan is made before its loop goes on

import random

import numpy as np
import pytest
from support.nodes_simulator import Simulation

from shmring.dtypes import DTYPE_CODES
from shmring.nodes.plan import movement, reduction
from shmring.nodes.plan.call import is_merged, keeps_bits
from shmring.nodes.plan.layout import Layout

# By rank: those with the same letter are on the same node.
SMALL = ("ab", "abc", "aab", "aabb", "abb", "abab", "aabbcc", "abcabca", "aaabbc", "abbcac")
ITEMSIZES = (8, 30_000, 2_000_000)  # sent on one rail; on several; in pieces


def layout_of(text):
    return Layout([[r for r, node in enumerate(text) if node == one] for one in dict.fromkeys(text)])


def numbers(seed, n, counts):
    """One array for each rank, in which the order of additions shows."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count) * np.exp2(rng.integers(-8, 9, count)) for count in counts]


def in_order(xs):
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def by_nodes(layout, xs):
    return in_order([in_order([xs[r] for r in ranks]) for ranks in layout.nodes])


def same(found, wanted):
    assert np.array_equal(found.view(np.uint64), wanted.view(np.uint64)), (found, wanted)


def simulate(layout, plan_of, xs, outs):
    simulation = Simulation(layout, [plan_of(r) for r in range(layout.size)], xs, outs)
    simulation.traffic = simulation.run()
    return simulation


VARIANTS = [("gather", False), ("direct", False), ("gather", True), ("direct", True)]


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize(("algorithm", "merged"), VARIANTS)
@pytest.mark.parametrize("text", SMALL)
def test_reductions(text, algorithm, merged, itemsize, seed):
    layout = layout_of(text)
    n = layout.size
    total = (lambda xs: by_nodes(layout, xs)) if merged else in_order
    for count in (0, 1, 7, 4 * n + 3):
        xs = numbers(seed, n, [count] * n)
        for in_place in (False, True):
            copies = [x.copy() for x in xs]
            outs = copies if in_place else [np.full(count, np.nan) for _ in xs]
            simulate(
                layout, lambda r: reduction.all_reduce(layout, r, count, itemsize, algorithm, merged), copies, outs
            )
            for out in outs:
                same(out, total(xs))
            for root in {0, n // 2, n - 1}:
                copies = [x.copy() for x in xs]
                outs = [None] * n
                outs[root] = copies[root] if in_place else np.full(count, np.nan)
                simulate(
                    layout, lambda r, root=root: reduction.reduce(layout, r, count, itemsize, algorithm, root, merged),
                    copies, outs,
                )  # fmt: skip
                same(outs[root], total(xs))
    for sizes in ([4] * n, [(3 * r + seed) % 5 for r in range(n)], [0] * n):
        xs = numbers(seed, n, [sum(sizes)] * n)
        outs = [np.full(size, np.nan) for size in sizes]
        simulate(layout, lambda r: reduction.reduce_scatter(layout, r, sizes, itemsize, algorithm, merged), xs, outs)
        for r, start in enumerate(np.cumsum([0, *sizes[:-1]])):
            same(outs[r], total(xs)[start : start + sizes[r]])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("text", SMALL)
def test_scans(text, itemsize, exclusive, seed):
    layout = layout_of(text)
    n = layout.size
    for count in (0, 1, 4 * n + 3):
        xs = numbers(seed, n, [count] * n)
        for in_place in (False, True):
            copies = [x.copy() for x in xs]
            outs = copies if in_place else [np.full(count, -1.0) for _ in xs]
            simulate(layout, lambda r: reduction.scan(layout, r, count, itemsize, exclusive), copies, outs)
            for r in range(exclusive, n):
                same(outs[r], in_order(xs[: r + 1 - exclusive]))
            if exclusive:
                same(outs[0], xs[0] if in_place else np.full(count, -1.0))


class OfOnes(Simulation):
    """Of arrays of ones, whose sums are the numbers of their operands."""

    def _fold(self, r, step):
        super()._fold(r, step)
        assert not step.total or (self.view(r, step.out) == step.total).all(), step


@pytest.mark.parametrize(("algorithm", "merged"), VARIANTS)
@pytest.mark.parametrize("text", SMALL)
def test_what_ends_a_result_has_its_number_of_operands(text, algorithm, merged):
    layout = layout_of(text)
    n, count = layout.size, 4 * layout.size + 3
    for plan_of in (
        lambda r: reduction.all_reduce(layout, r, count, 8, algorithm, merged),
        lambda r: reduction.reduce(layout, r, count, 8, algorithm, 1, merged),
        lambda r: reduction.reduce_scatter(layout, r, [count // n + 1] * n, 8, algorithm, merged),
        lambda r: reduction.scan(layout, r, count, 8, merged),
    ):
        xs, outs = np.ones((n, n * (count // n + 1))), np.full((n, n * (count // n + 1)), np.nan)
        OfOnes(layout, [plan_of(r) for r in range(n)], list(xs), list(outs)).run()


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("text", SMALL)
def test_movement(text, itemsize, seed):
    layout = layout_of(text)
    n = layout.size
    for sizes in ([0] * n, [5] * n, [(3 * r + seed) % 7 for r in range(n)]):
        xs = numbers(seed, n, sizes)
        whole = np.concatenate(xs)
        outs = [np.full(sum(sizes), np.nan) for _ in xs]
        simulate(layout, lambda r: movement.all_gather(layout, r, sizes, itemsize), xs, outs)
        for out in outs:
            same(out, whole)
        outs = [np.full(sum(sizes), np.nan) for _ in xs]
        starts = np.cumsum([0, *sizes])
        inside = [out[starts[r] : starts[r + 1]] for r, out in enumerate(outs)]
        for to, x in zip(inside, xs, strict=True):
            to[:] = x
        simulate(layout, lambda r: movement.all_gather(layout, r, sizes, itemsize), inside, outs)
        for out in outs:
            same(out, whole)
        for root in range(n):
            everything = [np.full(sum(sizes), np.nan) if r == root else None for r in range(n)]
            simulate(
                layout, lambda r, root=root: movement.gather(layout, r, sizes, itemsize, root), xs, everything
            )
            same(everything[root], whole)
            outs = [np.full(size, np.nan) for size in sizes]
            simulate(
                layout, lambda r, root=root: movement.scatter(layout, r, sizes, itemsize, root),
                [whole if r == root else None for r in range(n)], outs,
            )  # fmt: skip
            for out, x in zip(outs, xs, strict=True):
                same(out, x)
            copies = numbers(seed, n, [max(sizes)] * n)
            wanted = copies[root].copy()
            simulate(
                layout, lambda r, root=root: movement.broadcast(layout, r, max(sizes), itemsize, root),
                copies, copies,
            )  # fmt: skip
            for copy in copies:
                same(copy, wanted)


@pytest.mark.parametrize("text", SMALL)
def test_all_to_all(text, seed):
    layout = layout_of(text)
    n = layout.size
    draw = random.Random(seed)
    for counts in ([[2] * n] * n, [[draw.randrange(4) for _ in range(n)] for _ in range(n)]):
        xs = numbers(seed, n, [sum(row) for row in counts])
        columns = [[row[r] for row in counts] for r in range(n)]
        wanted = [
            np.concatenate([np.split(xs[s], np.cumsum(counts[s])[:-1])[r] for s in range(n)]) for r in range(n)
        ]
        outs = [np.full(sum(column), np.nan) for column in columns]
        for in_place in (False, True)[: 1 + (counts[0] == counts[-1] == [2] * n)]:
            targets = xs if in_place else outs
            simulate(
                layout,
                lambda r, i=in_place: movement.all_to_all(layout, r, counts, 8, i),
                xs, targets,
            )  # fmt: skip
            for target, content in zip(targets, wanted, strict=True):
                same(target, content)


@pytest.mark.parametrize("text", SMALL)
def test_a_barrier_ends_on_no_rank_before_all_have_come(text):
    layout = layout_of(text)
    none = [np.empty(0)] * layout.size
    for late in range(layout.size):
        simulation = Simulation(layout, [movement.barrier(layout, r) for r in range(layout.size)], none, none)
        step = simulation._step
        simulation._step = lambda r, one, step=step, late=late: r != late and step(r, one)
        local = simulation._local
        simulation._local = lambda one, r, local=local, late=late, layout=layout: (
            layout.places[r][0] != layout.places[late][0] and local(one, r)
        )
        with pytest.raises(AssertionError, match="deadlock"):
            simulation.run()
        assert all(simulation.at[r] < len(simulation.plans[r].steps) for r in range(layout.size))


@pytest.mark.parametrize(("op", "dtype", "reproducible", "keeps"), [
    ("sum", "int32", True, True),
    ("sum", "uint8", True, False),  # sums of MPI may not wrap around
    ("prod", "int16", True, False),
    ("max", "int16", True, True),
    ("bxor", "uint8", True, True),
    ("sum", "float64", True, False),  # in rank order
    ("sum", "float64", False, True),
    ("max", "float64", False, False),
    ("sum", "float16", False, False),
    ("avg", "float64", False, False),
    ("lor", "bool", True, True),
    ("sum", "bool", True, False),
])  # fmt: skip
def test_calls_whose_bits_would_differ_are_not_made_by_another_library(op, dtype, reproducible, keeps):
    code = DTYPE_CODES[dtype]
    assert keeps_bits(op, code, is_merged(op, code, reproducible)) is keeps
