"""Hierarchical plans: the same results in the same order as flat ones, and few bytes across links."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.reference import CollectiveCall, verify
from support.plans.simulate import (
    Memory,
    RankBuffers,
    Simulator,
    at_random,
    delaying,
    highest,
    in_turn,
    lowest,
    rushing,
)

from shmring.plan import hierarchical
from shmring.plan.choose import HIERARCHICAL_BUILDERS, ROOTED, choose
from shmring.plan.cost import Cost, cost, total
from shmring.plan.hierarchical_cost import (
    FOLDING,
    flat_seconds,
    hierarchical_seconds,
    hierarchy_for,
    use_hierarchical_barrier,
)
from shmring.plan.hierarchy import Hierarchy, Route
from shmring.plan.limits import LINE, Costs, Limits
from shmring.plan.steps import Await, Reduce

KINDS = tuple(HIERARCHICAL_BUILDERS)
PAIRS, UNEVEN, MIXED, LONE = (0, 0, 1, 1), (0, 1, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3)
HIERARCHIES = {
    "pairs": [PAIRS],
    "uneven": [UNEVEN],
    "mixed": [MIXED],
    "alone": [LONE],
    "two levels": [(0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0, 1, 1, 1, 1)],
    "uneven levels": [(0, 0, 1, 2, 2, 2, 3), (0, 0, 0, 1, 1, 1, 1)],
    "three levels": [(0, 1, 2, 2, 3, 4, 5, 5), (0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0, 1, 1, 1, 1)],
}
each_kind = pytest.mark.parametrize("kind", KINDS)
# Folds with prefixes like their operands, and with prefixes twice as wide.
each_way = pytest.mark.parametrize(("kind", "wide"), [(k, w) for w in (1, 2) for k in KINDS if w == 1 or k in FOLDING])


def planner(hierarchy, limits):
    def plan(call, rank):
        options = {"root": call.root} if call.kind in ROOTED else {}
        if call.kind in FOLDING:
            options["wide"] = call.wide
        return HIERARCHICAL_BUILDERS[call.kind](rank, hierarchy, call.nbytes, limits, **options)

    return plan


def roomy(size, nslots=4):
    """The smallest outbox in which all hierarchical plans of ``size`` ranks fit."""
    return Limits(nslots, 3 * LINE * size)


def item(wide):
    """Bytes of an element in the simulator; its words have eight at most, those of prefixes, too."""
    return 8 // wide


@pytest.mark.sample(14)
@each_way
@pytest.mark.parametrize("name", HIERARCHIES)
def test_every_hierarchical_plan_gives_the_modelled_result(kind, wide, name, seed, long_run):
    rng = random.Random(f"{seed} {kind} {name}")
    hierarchy = Hierarchy(HIERARCHIES[name])
    size = hierarchy.size
    sizes = [8, 64, 200, 64 * size, 1000, 5000, 20_008]
    for nbytes in sizes if long_run else rng.sample(sizes, 2):
        for in_place in (False, True):
            limits = roomy(size, rng.choice((4, 8)))
            schedule = rng.choice([lowest, highest, in_turn(), at_random(seed), rushing(0), delaying(size - 1)])
            call = CollectiveCall(kind, size, nbytes, item(wide), rng.randrange(size), in_place, wide)
            verify([call] * 2, planner(hierarchy, limits), limits, schedule, seed)


@st.composite
def hierarchies(draw):
    """Any domains of two to seven ranks, at one to three levels, neighbours or not."""
    size = draw(st.integers(2, 7))
    level = tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    levels = [level]
    for _ in range(draw(st.integers(0, 2))):
        number = {n: draw(st.integers(0, 1)) for n in sorted(set(level))}
        level = tuple(number[n] for n in level)
        levels.append(level)
    return Hierarchy(levels)


@settings(max_examples=60)
@given(hierarchies(), st.sampled_from(KINDS), st.sampled_from((1, 2)), st.integers(1, 700), st.data())
def test_whatever_the_domains_every_element_is_folded_once_in_rank_order(hierarchy, kind, wide, items, data):
    limits = Limits(
        data.draw(st.sampled_from((4, 8))), LINE * data.draw(st.integers(3 * hierarchy.size, 5 * hierarchy.size))
    )
    root = data.draw(st.integers(0, hierarchy.size - 1))
    call = CollectiveCall(kind, hierarchy.size, item(wide) * items, item(wide), root, data.draw(st.booleans()), wide)
    verify([call], planner(hierarchy, limits), limits, at_random(items))


@pytest.mark.parametrize("wide", [1, 2])
def test_a_prefix_is_folded_whole_only_at_its_end(wide):
    hierarchy = Hierarchy([PAIRS])
    plans = [hierarchical.all_reduce(r, hierarchy, 4096, wide=wide) for r in range(4)]
    folds = {r: [s for loop in plans[r].loops for s in loop.steps if isinstance(s, Reduce)] for r in range(4)}
    assert all(s.opens and not s.closes for r in (0, 1) for s in folds[r])
    assert all(s.closes and not s.opens for r in (2, 3) for s in folds[r])
    # And a plan that closed it earlier would not pass, nor one with narrow prefixes for wide folds.
    call = CollectiveCall("all_reduce", 4, 4096, item(wide), wide=wide)
    verify([call], lambda call, r: plans[r], Limits())
    for change in ({"opens": True, "closes": True}, {"wide": 1})[:wide]:
        with pytest.raises(AssertionError):
            verify([call], lambda call, r, change=change: _changed(plans[r], change), Limits())


def _changed(plan, change):
    loops = [
        loop._replace(steps=tuple(s._replace(**change) if isinstance(s, Reduce) else s for s in loop.steps))
        for loop in plan.loops
    ]
    return plan._replace(loops=tuple(loops))


def empty(size):
    return [RankBuffers(*[Memory("nothing", np.zeros(0, np.uint8), size), 0] * 2) for _ in range(size)]


@pytest.mark.parametrize("name", HIERARCHIES)
def test_no_rank_leaves_a_barrier_before_all_have_entered(name):
    hierarchy = Hierarchy(HIERARCHIES[name])
    size = hierarchy.size
    plans = [hierarchical.barrier(r, hierarchy) for r in range(size)]
    for schedule in (lowest, highest, in_turn(), rushing(0), delaying(0), delaying(size - 1)):
        simulator = Simulator([(plans, empty(size))], Limits(4), 8)
        simulator.run(schedule)
        # What each rank knows of each other: at least what that one had done when it came.
        assert (simulator.clock >= 1).all()
    Simulator([(plans, empty(size))] * 5, Limits(4), 8).run(in_turn())


@pytest.mark.parametrize("name", HIERARCHIES)
def test_no_wait_of_a_barrier_is_superfluous(name):
    hierarchy = Hierarchy(HIERARCHIES[name])
    plans = [hierarchical.barrier(r, hierarchy) for r in range(hierarchy.size)]
    for rank, plan in enumerate(plans):
        (loop,) = plan.loops
        for k, step in enumerate(loop.steps):
            if isinstance(step, Await):
                broken = plan._replace(loops=(loop._replace(steps=loop.steps[:k] + loop.steps[k + 1 :]),))
                simulator = Simulator(
                    [([*plans[:rank], broken, *plans[rank + 1 :]], empty(hierarchy.size))], Limits(4), 8
                )
                simulator.run(rushing(rank))
                assert not (simulator.clock >= 1).all()


def test_barriers_of_many_ranks_are_hierarchical():
    assert [use_hierarchical_barrier(equal_domains(p, 2), Limits()) for p in (4, 8, 32, 64)] == [
        False,
        False,
        True,
        True,
    ]
    assert use_hierarchical_barrier(Hierarchy([PAIRS]), Limits(hierarchical_nbytes=0))
    assert not use_hierarchical_barrier(equal_domains(64, 2), Limits(hierarchical_nbytes=1))


# ---- costs ----


def equal_domains(size, domains):
    return Hierarchy([tuple(r * domains // size for r in range(size))])


def counted(kind, hierarchy, nbytes, wide=1):
    """What all ranks together do: ranks of a domain do alike, but for the root."""
    plan = planner(hierarchy, Limits(8, 1 << 26))
    call = CollectiveCall(kind, hierarchy.size, nbytes, item(wide), hierarchy.size - 1, wide=wide)
    sums = [0] * len(Cost._fields)
    for ranks in hierarchy.domains:
        some = [ranks[0]] * (len(ranks) - 1) + [ranks[-1]]
        for rank in set(some):
            c = cost(plan(call, rank), in_place=True, domains=hierarchy.levels[0])
            sums = [s + some.count(rank) * n for s, n in zip(sums, c, strict=True)]
    return Cost(*sums)


def example(kind, size, domains):
    """A size of which every slice is the same number of whole lines, and the bytes of s."""
    m = size // domains
    nbytes = LINE * (1 if kind in ("reduce_scatter", "all_gather") else m)
    return nbytes, nbytes * size if kind in ("reduce_scatter", "all_gather") else nbytes


MANY = [
    pytest.param(p, q, marks=pytest.mark.long if p > 64 and q != 4 else ())
    for p in (4, 8, 16, 24, 64, 256, 1024)
    for q in (2, 4, 8, 16)
    if q < p and p % q == 0
]


@pytest.mark.parametrize(("size", "domains"), MANY)
def test_an_all_reduce_sends_2q_minus_2_vectors_across_links_and_a_flat_one_2p_of_them(size, domains):
    nbytes, s = example("all_reduce", size, domains)
    c = counted("all_reduce", equal_domains(size, domains), nbytes)
    assert c.crossed_nbytes == 2 * (domains - 1) * s
    assert c.touched_nbytes == (5 * size + 2 * domains - 4) * s
    flat_nbytes = LINE * size
    level = equal_domains(size, domains).levels[0]
    limits = Limits(8, 1 << 26, one_shot_nbytes=0)
    crossed = [cost(choose("all_reduce", r, size, flat_nbytes, limits=limits), domains=level) for r in (0, size - 1)]
    assert {c.crossed_nbytes * size for c in crossed} == {2 * (size - size // domains) * flat_nbytes}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("size", "domains"), MANY)
def test_the_other_collectives_cross_links_as_seldom_as_they_can(size, domains):
    p, q = size, domains
    hierarchy = equal_domains(size, domains)
    expected = {
        # The root is in the last domain, where the chain ends.
        "reduce": (q - 1, 3 * p + 1 - 2 * q / p),
        "reduce_scatter": (q - 1 + (q - 1) / q, 3 * p + 1 - 2 / q),
        "broadcast": (q - 1, 2 * p + 2 * q - 2),
        "all_gather": (q - 1, 2 * p + 2 * (q - 1)),
    }
    for kind, (crossed, touched) in expected.items():
        nbytes, s = example(kind, size, domains)
        c = counted(kind, hierarchy, nbytes)
        assert c.crossed_nbytes == crossed * s, kind
        assert c.touched_nbytes == pytest.approx(touched * s, rel=1e-12), kind


@pytest.mark.sample(3)
@pytest.mark.parametrize(("size", "domains"), MANY)
def test_prefixes_that_are_twice_as_wide_cross_links_with_twice_the_bytes_and_nothing_else_does(size, domains):
    p, q = size, domains
    hierarchy = equal_domains(size, domains)
    expected = {"all_reduce": 3 * (q - 1), "reduce": 2 * (q - 1), "reduce_scatter": 2 * (q - 1) + (q - 1) / q}
    for kind, crossed in expected.items():
        nbytes, s = example(kind, size, domains)
        narrow, c = (counted(kind, hierarchy, nbytes, wide) for wide in (1, 2))
        assert c.crossed_nbytes == crossed * s, kind
        assert c.touched_nbytes == narrow.touched_nbytes + 2 * (q - 1) * s, kind
        assert c[4:] == narrow[4:], kind
        # Less than flat (2ps(1-1/q), ps, ps(1-1/q)) as soon as there are more than two ranks in a domain.
        assert p <= 2 * q or crossed < {"all_reduce": 2 * p * (1 - 1 / q)}.get(kind, p * (1 - 1 / q))


def test_counting_one_rank_of_a_domain_for_all_counts_all():
    for kind in KINDS:
        for name in ("pairs", "two levels"):
            hierarchy = Hierarchy(HIERARCHIES[name][:1])
            nbytes, _ = example(kind, hierarchy.size, len(hierarchy.domains))
            plan = planner(hierarchy, Limits(8, 1 << 26))
            call = CollectiveCall(kind, hierarchy.size, nbytes, 8, hierarchy.size - 1)
            plans = [plan(call, r) for r in range(hierarchy.size)]
            assert total(plans, in_place=True, domains=hierarchy.levels[0]) == counted(kind, hierarchy, nbytes)


@each_kind
def test_every_level_is_crossed_once_less_than_it_has_domains(kind):
    hierarchy = Hierarchy(HIERARCHIES["three levels"])
    nbytes, s = LINE * 2 * 3, LINE * 2 * 3 * (hierarchy.size if kind in ("reduce_scatter", "all_gather") else 1)
    plan = planner(hierarchy, Limits(8, 1 << 20))
    plans = [
        plan(CollectiveCall(kind, hierarchy.size, nbytes, 8, hierarchy.size - 1), r) for r in range(hierarchy.size)
    ]
    for level in hierarchy.levels:
        q = len(set(level))
        crossed = total(plans, domains=level).crossed_nbytes
        assert crossed <= {"all_reduce": 2 * (q - 1), "reduce_scatter": q}.get(kind, q - 1) * s


@each_way
def test_a_plan_grows_with_the_ranks_and_not_with_the_bytes(kind, wide):
    hierarchy = equal_domains(16, 4)
    plan = planner(hierarchy, Limits())

    def steps(nbytes):
        call = CollectiveCall(kind, 16, nbytes, wide=wide)
        return max(sum(len(loop.steps) for loop in plan(call, r).loops) for r in range(16))

    assert steps(1 << 36) <= steps(1 << 24) <= 1500


# ---- the choice ----


def test_domains_matter_from_some_size_up_and_never_if_there_is_one():
    sockets = equal_domains(64, 2)
    for kind in KINDS:
        chosen = [hierarchy_for(kind, sockets, 1 << bits, Limits(), Costs()) is not None for bits in range(8, 31)]
        assert chosen == sorted(chosen)
        assert chosen[-1]
        for bits in range(8, 31):
            assert hierarchy_for(kind, None, 1 << bits, Limits(), Costs()) is None


@each_way
def test_the_chosen_plan_is_predicted_to_be_faster(kind, wide):
    costs, sockets = Costs(), equal_domains(64, 2)
    for bits in range(8, 28):
        found = hierarchy_for(kind, sockets, 1 << bits, Limits(), costs, wide=wide)
        deep = hierarchical_seconds(kind, sockets, 1 << bits, costs, wide=wide)
        assert (found is not None) == (deep < flat_seconds(kind, sockets, 1 << bits, costs))


def test_wide_prefixes_are_chosen_later_and_ranks_that_alternate_between_domains_hardly():
    def first(hierarchy, wide):
        sizes = (1 << bits for bits in range(8, 31))
        return next(
            (n for n in sizes if hierarchy_for("all_reduce", hierarchy, n, Limits(), Costs(), wide=wide)), 1 << 31
        )

    sockets = equal_domains(64, 2)
    assert first(sockets, 1) <= first(sockets, 2) < 1 << 20
    # Where every rank's neighbour lives in the other domain, a fold in rank order crosses the link at every rank.
    assert first(Hierarchy([tuple(r % 2 for r in range(64))]), 1) > first(sockets, 1)


def test_the_limit_can_be_set():
    pairs = Hierarchy([PAIRS])
    for nbytes, limit, expected in ((1000, 1000, False), (1001, 1000, True), (8, 0, True), (1 << 30, 1 << 40, False)):
        found = hierarchy_for("all_reduce", pairs, nbytes, Limits(hierarchical_nbytes=limit), Costs())
        assert (found is not None) == expected


def test_outboxes_too_small_and_blocks_of_different_sizes_take_flat_plans():
    options = {"hierarchy": Hierarchy([PAIRS]), "limits": Limits(4, 128, hierarchical_nbytes=0)}
    assert choose("all_reduce", 0, 4, 5000, **options).algorithm != "hierarchical"
    options["limits"] = Limits(hierarchical_nbytes=0)
    assert choose("all_gather", 0, 4, 5000, **options).algorithm == "hierarchical"
    assert choose("all_gather", 0, 4, [5000, 1, 2, 3], **options).algorithm == "staged"


@each_way
def test_all_ranks_choose_the_same_plan_with_the_same_rounds(kind, wide):
    for levels in HIERARCHIES.values():
        hierarchy = Hierarchy(levels)
        for nbytes in (8, 5000, 1 << 20, 1 << 26):
            options = {"limits": Limits(hierarchical_nbytes=0), "hierarchy": hierarchy, "wide": wide}
            plans = [choose(kind, r, hierarchy.size, nbytes, 4, **options) for r in range(hierarchy.size)]
            assert len({(p.algorithm, p.rounds, p.used_nbytes) for p in plans}) == 1


# ---- domains ----


def test_a_hierarchy_has_domains_and_runs_of_neighbours():
    hierarchy = Hierarchy([MIXED])
    assert hierarchy.domains == ((0, 2), (1, 3))
    assert hierarchy.runs == ((0,), (1,), (2,), (3,))
    assert hierarchy.place_of == (0, 0, 1, 1)
    assert Hierarchy([PAIRS]).runs == ((0, 1), (2, 3))


def test_every_domain_is_reached_through_one_of_the_larger_domain_it_is_in():
    hierarchy = Hierarchy(HIERARCHIES["two levels"])
    assert hierarchy.routes(0) == (Route(0, 0), Route(0, 1), Route(0, 1), Route(2, 2))
    assert hierarchy.routes(3) == (Route(3, 1), Route(0, 2), Route(3, 1), Route(3, 0))


@pytest.mark.parametrize("levels", [[], [(0, 1), (0,)], [(0, 0, 1, 1), (0, 1, 1, 1)]])
def test_invalid_levels_are_refused(levels):
    with pytest.raises(ValueError, match=r"levels|not inside"):
        Hierarchy(levels)
