"""Hierarchical plans: the same results in the same order as flat ones, and few bytes across links."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_costs import choose, total
from support.plans.reference import CollectiveCall, verify
from support.plans.simulate import at_random, delaying, highest, in_turn, lowest, rushing

from shmring.collectives.plan import hierarchical
from shmring.collectives.plan.choose import ROOTED, schedules
from shmring.collectives.plan.cost import Cost, cost
from shmring.collectives.plan.hierarchical import FOLDING, HIERARCHICAL_BUILDERS, hierarchical_from
from shmring.collectives.plan.hierarchy import Hierarchy
from shmring.collectives.plan.limits import LINE, Costs, Limits
from shmring.collectives.plan.steps import Reduce

KINDS = tuple(HIERARCHICAL_BUILDERS)
PAIRS, MIXED = (0, 0, 1, 1), (0, 1, 0, 1)
HIERARCHIES = {
    "pairs": PAIRS,
    "uneven": (0, 1, 1, 1),
    "mixed": MIXED,
    "alone": (0, 1, 2, 3),
    "four": (0, 0, 1, 1, 2, 2, 3, 3),
    "uneven four": (0, 0, 0, 1, 2, 2, 3),
}
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
    """An outbox in which all hierarchical plans of up to seven ranks fit."""
    return Limits(nslots, 6 * LINE * size)


def in_rank_order(hierarchy):
    """The same sizes of domains, of consecutive ranks, as folds need them."""
    return Hierarchy([d for d, ranks in enumerate(hierarchy.domains) for _ in ranks])


def item(wide):
    """Bytes of an element in the simulator; its words have eight at most, those of prefixes, too."""
    return 8 // wide


@pytest.mark.sample(14)
@each_way
@pytest.mark.parametrize("name", HIERARCHIES)
def test_every_hierarchical_plan_gives_the_modelled_result(kind, wide, name, seed, long_run):
    rng = random.Random(f"{seed} {kind} {name}")
    hierarchy = Hierarchy(HIERARCHIES[name])
    if kind in FOLDING:
        hierarchy = in_rank_order(hierarchy)
    size = hierarchy.size
    sizes = [8, 64, 200, 64 * size, 1000, 5000, 20_008]
    for nbytes in sizes if long_run else rng.sample(sizes[:-2], 2):
        for in_place in (False, True):
            limits = roomy(size, rng.choice((4, 8)))
            schedule = rng.choice([lowest, highest, in_turn(), at_random(seed), rushing(0), delaying(size - 1)])
            call = CollectiveCall(kind, size, nbytes, item(wide), rng.randrange(size), in_place, wide)
            verify([call] * 2, planner(hierarchy, limits), limits, schedule, seed)


@st.composite
def hierarchies(draw):
    """Any domains of two to seven ranks, neighbours or not."""
    size = draw(st.integers(2, 7))
    return Hierarchy(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))


@settings(max_examples=60)
@given(hierarchies(), st.sampled_from(KINDS), st.sampled_from((1, 2)), st.integers(1, 700), st.data())
def test_whatever_the_domains_every_element_is_folded_once_in_rank_order(hierarchy, kind, wide, items, data):
    if kind in FOLDING:
        hierarchy = in_rank_order(hierarchy)
    limits = Limits(
        data.draw(st.sampled_from((4, 8))), LINE * data.draw(st.integers(6 * hierarchy.size, 8 * hierarchy.size))
    )
    root = data.draw(st.integers(0, hierarchy.size - 1))
    call = CollectiveCall(kind, hierarchy.size, item(wide) * items, item(wide), root, data.draw(st.booleans()), wide)
    verify([call], planner(hierarchy, limits), limits, at_random(items))


@pytest.mark.parametrize("wide", [1, 2])
def test_a_prefix_is_folded_whole_only_at_its_end(wide):
    hierarchy = Hierarchy(PAIRS)
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


# ---- costs ----


def equal_domains(size, domains):
    return Hierarchy([r * domains // size for r in range(size)])


def counted(kind, hierarchy, nbytes, wide=1):
    """What all ranks together do: ranks of a domain do alike, but for the root."""
    plan = planner(hierarchy, Limits(8, 1 << 26))
    call = CollectiveCall(kind, hierarchy.size, nbytes, item(wide), hierarchy.size - 1, wide=wide)
    sums = [0] * len(Cost._fields)
    for ranks in hierarchy.domains:
        some = [ranks[0]] * (len(ranks) - 1) + [ranks[-1]]
        for rank in set(some):
            c = cost(plan(call, rank), in_place=True, domains=hierarchy.level)
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
    level = equal_domains(size, domains).level
    limits = Limits(8, 1 << 26, one_shot_nbytes=0)
    crossed = [cost(choose("all_reduce", r, size, flat_nbytes, limits=limits), domains=level) for r in (0, size - 1)]
    assert {c.crossed_nbytes * size for c in crossed} == {2 * (size - size // domains) * flat_nbytes}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("size", "domains"), MANY)
def test_the_other_collectives_cross_links_as_seldom_as_they_can(size, domains):
    p, q = size, domains
    hierarchy = equal_domains(size, domains)
    expected = {
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
    expected = {"all_reduce": 3 * (q - 1), "reduce_scatter": 2 * (q - 1) + (q - 1) / q}
    for kind, crossed in expected.items():
        nbytes, s = example(kind, size, domains)
        narrow, c = (counted(kind, hierarchy, nbytes, wide) for wide in (1, 2))
        assert c.crossed_nbytes == crossed * s, kind
        assert c.touched_nbytes == narrow.touched_nbytes + 2 * (q - 1) * s, kind
        assert c[4:] == narrow[4:], kind
        # Less than flat (2ps(1-1/q), ps(1-1/q)) as soon as there are more than two ranks in a domain.
        assert p <= 2 * q or crossed < {"all_reduce": 2 * p * (1 - 1 / q)}.get(kind, p * (1 - 1 / q))


def test_counting_one_rank_of_a_domain_for_all_counts_all():
    for kind in KINDS:
        for name in ("pairs", "four"):
            hierarchy = Hierarchy(HIERARCHIES[name])
            nbytes, _ = example(kind, hierarchy.size, len(hierarchy.domains))
            plan = planner(hierarchy, Limits(8, 1 << 26))
            call = CollectiveCall(kind, hierarchy.size, nbytes, 8, hierarchy.size - 1)
            plans = [plan(call, r) for r in range(hierarchy.size)]
            assert total(plans, in_place=True, domains=hierarchy.level) == counted(kind, hierarchy, nbytes)


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
        chosen = [1 << bits > hierarchical_from(kind, sockets, Limits()) for bits in range(8, 31)]
        assert chosen == sorted(chosen)
        assert chosen[-1]
        for bits in range(8, 31):
            assert 1 << bits < hierarchical_from(kind, None, Limits())
            assert 1 << bits < hierarchical_from(kind, equal_domains(64, 1), Limits())


@each_way
def test_calls_begin_hierarchical_where_domains_have_several_ranks_and_later_where_waiting_costs_more(kind, wide):
    for p, q in ((4, 4), (8, 8), (4, 2), (64, 2), (64, 4), (256, 16)):
        hierarchy = equal_domains(p, q)
        near, far = (hierarchical_from(kind, hierarchy, Limits(costs=Costs(us * 1e-6)), wide) for us in (0.5, 5))
        assert near < far < 1 << 24 if p > q else near == far == float("inf")


def test_both_plans_are_tried_from_a_quarter_of_a_derived_limit_up_and_one_where_it_is_set():
    sockets = equal_domains(64, 2)
    limit = int(hierarchical_from("broadcast", sockets, Limits()))
    found = [schedules("broadcast", 64, n, Limits(), sockets) for n in (limit // 4, limit // 4 + 1, limit + 1, 1 << 40)]
    assert found == [("staged",), ("staged", "hierarchical"), *[("hierarchical", "staged")] * 2]
    given = Limits(hierarchical_nbytes=1000)
    assert [schedules("broadcast", 64, n, given, sockets) for n in (1000, 1001)] == [("staged",), ("hierarchical",)]


def test_folds_of_ranks_that_alternate_between_domains_are_flat():
    mixed, limits = Hierarchy(MIXED), Limits(hierarchical_nbytes=0)
    chosen = {kind for kind in KINDS if hierarchical_from(kind, mixed, limits) < 1 << 20}
    assert chosen == {"all_gather", "broadcast"} == set(KINDS) - FOLDING


def test_the_limit_can_be_set():
    pairs = Hierarchy(PAIRS)
    for nbytes, limit, expected in ((1000, 1000, False), (1001, 1000, True), (8, 0, True), (1 << 30, 1 << 40, False)):
        found = nbytes > hierarchical_from("all_reduce", pairs, Limits(hierarchical_nbytes=limit))
        assert found == expected


def test_outboxes_too_small_and_blocks_of_different_sizes_take_flat_plans():
    options = {"hierarchy": Hierarchy(PAIRS), "limits": Limits(4, 128, hierarchical_nbytes=0)}
    assert choose("all_reduce", 0, 4, 5000, **options).algorithm != "hierarchical"
    options["limits"] = Limits(hierarchical_nbytes=0)
    assert choose("all_gather", 0, 4, 5000, **options).algorithm == "hierarchical"
    assert choose("all_gather", 0, 4, [5000, 1, 2, 3], **options).algorithm == "staged"


@each_way
def test_all_ranks_choose_the_same_plan_with_the_same_rounds(kind, wide):
    for level in HIERARCHIES.values():
        hierarchy = Hierarchy(level)
        for nbytes in (8, 5000, 1 << 20, 1 << 26):
            options = {"limits": Limits(hierarchical_nbytes=0), "hierarchy": hierarchy, "wide": wide}
            plans = [choose(kind, r, hierarchy.size, nbytes, 4, **options) for r in range(hierarchy.size)]
            assert len({(p.algorithm, p.rounds, p.used_nbytes) for p in plans}) == 1


# ---- domains ----


def test_a_hierarchy_has_domains_of_ranks():
    hierarchy = Hierarchy((7, 3, 7, 3, 3))
    assert hierarchy.domains == ((0, 2), (1, 3, 4))
    assert hierarchy.domain_of == (0, 1, 0, 1, 1)
    assert hierarchy.index_of == (0, 0, 1, 1, 2)
    assert (hierarchy.least, hierarchy.most) == (2, 3)
    assert not hierarchy.is_in_rank_order
    assert Hierarchy((2, 2, 0)).is_in_rank_order
    assert hierarchy == Hierarchy([7, 3, 7, 3, 3])


def test_a_hierarchy_without_ranks_is_refused():
    with pytest.raises(ValueError, match="no ranks"):
        Hierarchy(())
