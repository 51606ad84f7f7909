"""What plans cost, counted from their steps, against the bounds."""

import pytest
from plan_costs import FORMULAS, Example, total
from support.plans.cases import ALL_BUILDERS, planner, small
from support.plans.reference import CollectiveCall

from shmring.collectives.plan.choose import BUILDERS
from shmring.collectives.plan.cost import cost, dependent_syncs
from shmring.collectives.plan.limits import Limits
from shmring.collectives.plan.steps import Copy, Reduce

each = pytest.mark.parametrize(("kind", "algorithm"), FORMULAS)
VECTORS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan", "broadcast"}
MANY = [*range(2, 41), 63, 64, 65, 100, 127, 128, 255, 256, 513, 1024]

# The least that all ranks together can touch, derived in docs/maintainers/algorithms.md; in units of s or m.
PRIVATE_BOUNDS = {
    "all_reduce": lambda p: 5 * p - 2,
    "reduce": lambda p: 3 * p - 1,
    "reduce_scatter": lambda p: 3 * p - 1,
    "broadcast": lambda p: 2 * p,
    "all_gather": lambda p: 2 * p * p,
    "gather": lambda p: 4 * (p - 1),
    "scatter": lambda p: 4 * (p - 1),
    "all_to_all": lambda p: 4 * p * (p - 1),
}
MAPPED_BOUNDS = {"all_reduce": lambda p: 2 * p, "reduce": lambda p: p + 1, "reduce_scatter": lambda p: p + 1}


def test_every_builder_has_a_formula():
    assert FORMULAS.keys() == BUILDERS.keys()


@each
def test_the_ranks_touch_what_the_formula_gives_whatever_the_size_and_the_slots(kind, algorithm):
    in_place = (kind, algorithm) != ("all_to_all", "zero_copy")
    for size in (2, 3, 4, 5, 8, 13):
        for limits in (Limits(), small(size), small(size, lines=7)):
            for nbytes in (8, 1000, 4096 * size, 100_008):
                plans = [BUILDERS[kind, algorithm](r, size, nbytes, 8, limits) for r in range(size)]
                unit = nbytes * size if kind == "reduce_scatter" else nbytes
                expected = FORMULAS[kind, algorithm].units(size) * unit
                assert total(plans, in_place=in_place).touched_nbytes == expected


@pytest.mark.sample(4)
@each
def test_the_ranks_touch_what_the_formula_gives_for_2_to_1024_ranks(kind, algorithm):
    for size in MANY:
        example = Example(kind, algorithm, size)
        assert example.whole().touched_nbytes == FORMULAS[kind, algorithm].units(size) * example.unit


def test_counting_one_rank_for_all_counts_all():
    for kind, algorithm in FORMULAS:
        for size in (2, 3, 8, 31):
            example = Example(kind, algorithm, size)
            plans = [example.plan(r) for r in range(size)]
            assert example.whole() == total(plans, in_place=example.in_place)
            assert example.busiest() == max(cost(p, in_place=example.in_place).touched_nbytes for p in plans)


@pytest.mark.parametrize("size", [128, pytest.param(512, marks=pytest.mark.long)])
def test_all_ranks_of_a_two_shot_all_reduce_counted_one_by_one_touch_5p_minus_2_vectors(size):
    nbytes = size * 64 + 8
    plans = (BUILDERS["all_reduce", "two_shot"](r, size, nbytes, 8) for r in range(size))
    assert total(plans).touched_nbytes == (5 * size - 2) * nbytes


@pytest.mark.parametrize("kind", PRIVATE_BOUNDS)
def test_some_algorithm_on_private_buffers_reaches_the_bound(kind):
    for size in (2, 3, 8, 100, 1024):
        best = min(f.units(size) for (k, a), f in FORMULAS.items() if k == kind and not a.startswith("zero_copy"))
        assert best == PRIVATE_BOUNDS[kind](size)


@pytest.mark.parametrize("kind", MAPPED_BOUNDS)
def test_the_algorithm_on_shared_arrays_reaches_the_bound(kind):
    for size in (2, 3, 8, 100, 1024):
        assert FORMULAS[kind, "zero_copy"].units(size) == MAPPED_BOUNDS[kind](size)


def test_reduce_by_slices_costs_two_vectors_more_and_no_rank_touches_more_than_four():
    for size in (4, 8, 64, 512):
        flat, sliced = Example("reduce", "flat", size), Example("reduce", "sliced", size)
        assert sliced.whole().touched_nbytes - flat.whole().touched_nbytes == 2 * flat.unit
        assert flat.busiest() == (size + 1) * flat.unit
        assert sliced.busiest() == 4 * sliced.unit


def test_out_of_place_the_own_block_is_moved_too():
    for kind, extra in (("all_gather", 4), ("all_to_all", 4), ("gather", 1), ("scatter", 1)):
        size, nbytes = 4, 1000
        plans = [BUILDERS[kind, "staged"](r, size, nbytes) for r in range(size)]
        assert total(plans).touched_nbytes - total(plans, in_place=True).touched_nbytes == 2 * extra * nbytes


def test_two_shot_stages_one_vector_per_rank_and_never_the_own_slice():
    for size in (2, 3, 8):
        c = cost(Example("all_reduce", "two_shot", size).plan(size - 1))
        unit = Example("all_reduce", "two_shot", size).unit
        assert c.staged_nbytes == unit  # (p-1)/p of the vector as contributions, 1/p as result
        assert (c.awaits, c.claims, c.publishes) == (2, 1, 2)


def test_zero_copy_plans_stage_nothing():
    for kind, algorithm in FORMULAS:
        if algorithm.startswith("zero_copy"):
            example = Example(kind, algorithm, 8)
            assert example.whole().staged_nbytes == 0


def test_bytes_that_cross_between_domains_are_counted():
    # Each of q domains holds p/q ranks; two_shot reads p slices and results of which 1 - 1/q lie elsewhere.
    size, q = 12, 3
    example = Example("all_reduce", "two_shot", size)
    domains = [r * q // size for r in range(size)]
    plans = [example.plan(r) for r in range(size)]
    assert total(plans, domains=domains).crossed_nbytes == 2 * size * example.unit * (q - 1) // q
    assert total(plans, domains=[0] * size).crossed_nbytes == 0
    assert total(plans).crossed_nbytes == 0


def test_synchronisations_that_depend_on_one_another_are_one_or_two():
    expected = {
        "one_shot": 1,
        "flat": 1,
        "staged": 1,
        "two_shot": 2,
        "exchange": 2,
        "sliced": 2,
        "zero_copy": 2,
        "zero_copy_shared": 2,
    }
    for kind, algorithm in FORMULAS:
        example = Example(kind, algorithm, 5)
        assert dependent_syncs([example.plan(r) for r in range(5)]) == expected[algorithm]


def operands(plan):
    steps = [s for loop in plan.loops for s in loop.steps]
    return sum(
        2 if isinstance(s, Copy) else 1 + len(s.also) + len(s.sources) if isinstance(s, Reduce) else 1 for s in steps
    )


@pytest.mark.parametrize(("kind", "algorithm"), ALL_BUILDERS)
def test_a_plan_grows_with_the_ranks_and_not_with_the_bytes(kind, algorithm):
    def longest(size, nbytes):
        plan = planner(algorithm, Limits())
        return max(operands(plan(CollectiveCall(kind, size, nbytes), r)) for r in (0, size // 2, size - 1))

    for size in (2, 8, 64):
        assert max(longest(size, 1 << bits) for bits in range(10, 40, 3)) <= 25 * size + 60


def test_the_tables_know_which_kinds_take_vectors():
    for kind, algorithm in FORMULAS:
        assert ("s" in FORMULAS[kind, algorithm].text.split(" ")[0]) == (kind in VECTORS)
