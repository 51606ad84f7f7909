"""Which plan is chosen, and that it can be overridden."""

import pytest
from plan_costs import Example, choose
from support.plans.cases import roots_of

from shmring.collectives.plan.choose import PLANNED, flat_reduce_limit, one_shot_limit, schedules
from shmring.collectives.plan.cost import cost
from shmring.collectives.plan.limits import Costs, Limits


@pytest.mark.parametrize("kind", PLANNED)
def test_all_ranks_choose_the_same_algorithm_and_number_of_rounds(kind):
    for size in (1, 2, 3, 5, 8):
        for nbytes in (0, 4, 1000, 100_000, 3_000_000):
            for shared_arrays in (False, True):
                for root in roots_of(kind, size):
                    plans = [
                        choose(kind, r, size, nbytes, 4, root=root, shared_arrays=shared_arrays) for r in range(size)
                    ]
                    assert len({(p.algorithm, p.rounds, p.zero_copy) for p in plans}) == 1
                    assert [p.rank for p in plans] == list(range(size))
                    assert plans[0].kind == kind


def test_small_all_reduces_take_one_shot_and_large_ones_two():
    for size in (2, 3, 4, 8, 64):
        limit = int(one_shot_limit(size, Limits()))
        assert schedules("all_reduce", size, limit)[0] == "one_shot"
        assert schedules("all_reduce", size, limit + 1)[0] == "two_shot"


def test_large_reduces_are_shared_by_the_ranks_if_there_are_more_than_three():
    for size in (2, 3):
        assert schedules("reduce", size, 1 << 40)[0] == "flat"
    for size in (4, 8, 64):
        limit = int(flat_reduce_limit(size, Limits()))
        assert schedules("reduce", size, limit)[0] == "flat"
        assert schedules("reduce", size, limit + 1)[0] == "sliced"


def test_at_the_limit_both_algorithms_cost_the_model_equally_much():
    # Seconds of the busiest rank: what it touches, counted from its plan, and the syncs that nothing hides.
    costs = Costs(latency=1e-6, bytes_per_second=1e10)
    limits = Limits(costs=costs)

    def seconds(kind, name, size, nbytes, syncs):
        example = Example(kind, name, size)
        return example.busiest() / example.unit * nbytes / costs.bytes_per_second + syncs * costs.latency

    for size in (2, 3, 4, 8, 64):
        at = one_shot_limit(size, limits)
        one, two = (seconds("all_reduce", n, size, at, s) for n, s in (("one_shot", 1), ("two_shot", 2)))
        assert one == pytest.approx(two)
    for size in (4, 8, 64):
        at = flat_reduce_limit(size, limits)
        flat, sliced = (seconds("reduce", n, size, at, s) for n, s in (("flat", 1), ("sliced", 2)))
        assert flat == pytest.approx(sliced)


def test_a_slower_sync_makes_more_one_shots_and_a_slower_memory_fewer():
    def limit(**costs):
        return one_shot_limit(4, Limits(costs=Costs(**costs)))

    assert limit(latency=1e-5) > limit(latency=1e-7)
    assert limit(bytes_per_second=1e9) < limit(bytes_per_second=1e11)


def test_thresholds_can_be_set():
    limits = Limits(one_shot_nbytes=1000, flat_reduce_nbytes=0)
    assert schedules("all_reduce", 2, 1000, limits)[0] == "one_shot"
    assert schedules("all_reduce", 2, 1001, limits)[0] == "two_shot"
    assert schedules("reduce", 3, 1, limits)[0] == "sliced"
    assert schedules("all_reduce", 2, 8, Limits(one_shot_nbytes=0))[0] == "two_shot"


def test_both_algorithms_are_tried_around_a_derived_limit_and_one_where_it_is_set():
    for kind, small, large in (("all_reduce", "one_shot", "two_shot"), ("reduce", "flat", "sliced")):
        derived = Limits(costs=Costs(1e-6, 8e9 * {"all_reduce": 6.25, "reduce": 5}[kind]))  # 8000 bytes for 8 ranks
        tried = [schedules(kind, 8, n, derived) for n in (1999, 2001, 8000, 8001, 32_000, 32_001)]
        assert tried == [(small,), (small, large), (small, large), (large, small), (large, small), (large,)]
        given = Limits(one_shot_nbytes=8000, flat_reduce_nbytes=8000)
        assert [schedules(kind, 8, n, given) for n in (2001, 8000, 8001, 32_000)] == [(small,)] * 2 + [(large,)] * 2


def test_outboxes_too_small_for_slices_fall_back_to_whole_vectors():
    limits = Limits(4, 128)
    assert schedules("all_reduce", 9, 1 << 30, limits)[0] == "one_shot"
    assert schedules("reduce", 9, 1 << 30, limits)[0] == "flat"


def test_nothing_is_asked_of_the_peers_when_there_are_none_or_nothing_to_move():
    for kind in PLANNED:
        for size, nbytes in ((1, 100), (1, 0), (4, 0)):
            for shared_arrays in (False, True):
                plan = choose(kind, 0, size, nbytes, shared_arrays=shared_arrays)
                c = cost(plan)
                assert (c.awaits, c.claims, c.staged_nbytes) == (0, 0, 0) or (kind, shared_arrays) == (
                    "all_to_all",
                    True,
                )


def test_unknown_collectives_and_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="unknown collective 'all_reduec'"):
        choose("all_reduec", 0, 2, 8)
    with pytest.raises(TypeError, match="one number of bytes"):
        choose("all_reduce", 0, 2, [8, 8])
    with pytest.raises(ValueError, match="3 block sizes for 2 ranks"):
        choose("all_gather", 0, 2, [8, 8, 8])
