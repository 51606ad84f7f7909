"""Thresholds derived from measurements: expected values by hand, a given value wins, and each has its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmring.collectives.bootstrap import tuning
from shmring.collectives.bootstrap.tuning import COMPARED, GUESSED, NO_LIMIT, STEPS_S, RankInfo, derive, first_stores
from shmring.collectives.plan.limits import Costs
from shmring.config import configure
from shmring.core.kernel.reduce import STORES
from shmring.core.placement.locality import Seat

MIB = 1 << 20


def report(size=2, *measured, **settings):
    return thresholds(size, *measured, **settings).report(size)


def thresholds(size=2, processors=2, barrier_us=0.6, cache_nbytes=32 * MIB, **settings):
    return derive(configure({}, **settings).settled(MIB), size, processors, barrier_us, cache_nbytes)


def test_limits_follow_from_distance_and_crowding():
    # L B / (p - 2 + 2/p) and L B / (p - 3), with L = 0.6 + 0.4 us and B = 120 bytes a nanosecond, shared where crowded.
    assert report()["one_shot_nbytes"] == 120_000
    assert report(barrier_us=0.1)["one_shot_nbytes"] == 60_000
    assert report(size=4, processors=4)["one_shot_nbytes"] == 48_000
    assert report(size=4, processors=1)["one_shot_nbytes"] == 12_000
    assert report(size=4, processors=4)["flat_reduce_nbytes"] == 120_000
    assert report(size=3)["flat_reduce_nbytes"] == NO_LIMIT


@given(st.integers(1, 4096), st.floats(0.25, 4096), st.floats(0, 1e9))
def test_whatever_was_measured_the_limits_are_integers_of_62_bits(size, processors, barrier_us):
    found = report(size, processors, barrier_us)
    for nbytes in (found["one_shot_nbytes"], found["flat_reduce_nbytes"]):
        assert type(nbytes) is int
        assert 0 <= nbytes <= NO_LIMIT


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_farther_the_ranks_the_more_goes_in_one_shot(one, other):
    near, far = sorted((one, other))
    assert report(barrier_us=near)["one_shot_nbytes"] <= report(barrier_us=far)["one_shot_nbytes"]


def test_ranks_that_shared_a_processor_for_a_moment_are_not_taken_for_far():
    assert report(barrier_us=50)["one_shot_nbytes"] == 288_000
    assert report(size=2, processors=1, barrier_us=50)["one_shot_nbytes"] == 3_024_000


def test_eager_messages_are_half_as_long_among_far_ranks():
    assert thresholds(barrier_us=0.2).eager_nbytes == 4096
    assert thresholds(barrier_us=0.4).eager_nbytes == 2048
    assert "0.40 us" in thresholds(barrier_us=0.4).why["eager_nbytes"]
    assert thresholds(size=4, processors=4, barrier_us=0.7).eager_nbytes == 4096
    assert thresholds(size=8, processors=8, barrier_us=8.0).eager_nbytes == 1024
    assert thresholds(size=4, barrier_us=50.0).eager_nbytes == 4096  # they take turns: that is no distance
    assert thresholds(barrier_us=0.4, eager_nbytes=3000).eager_nbytes == 3000


def test_what_is_given_is_taken_and_named_as_given():
    given = {"one_shot_nbytes": 5, "flat_reduce_nbytes": 6, "round_nbytes": 128, "past_cache_nbytes": 7}
    given |= {"hierarchical_nbytes": 8, "nearness": 1, "stores": 2, "direct": 1}
    found = thresholds(size=4, latency_us=2.0, touch_gbs=3, **given)
    assert (found.limits.one_shot_nbytes, found.limits.flat_reduce_nbytes, found.limits.round_nbytes) == (5, 6, 128)
    assert (found.limits.costs, found.past_cache_nbytes) == (Costs(2e-6, 3e9), 7)
    assert found.limits.hierarchical_nbytes == 8
    for name in (*COMPARED, "past_cache_nbytes"):
        assert found.why[name] == "argument"
    derived = report(size=4, latency_us=2.0, touch_gbs=3)
    assert (derived["one_shot_nbytes"], derived["flat_reduce_nbytes"]) == (2400, 6000)


def test_every_derived_value_has_its_reason():
    why = thresholds().why
    assert why["latency_us"] == f"measured: 0.60 us a barrier after the rendezvous, and {STEPS_S * 1e6:.1f} us"
    assert why["one_shot_nbytes"] == "derived: 1.00 us a synchronisation, 120 GB/s a rank"
    assert why["touch_gbs"] == "derived: 2 ranks on 2 processors"
    assert why["slot_nbytes"] == "a quarter of 1024 KiB of second-level cache, from 128 to 512 KiB"
    assert why["past_cache_nbytes"] == "derived: the last-level cache"


def test_outputs_are_never_stored_past_a_cache_that_is_not_known():
    assert thresholds().past_cache_nbytes == 32 * MIB
    found = thresholds(cache_nbytes=0)
    assert found.past_cache_nbytes == NO_LIMIT
    assert found.why["past_cache_nbytes"] == "default: the last-level cache is not known"


@given(st.floats(0.1, 1e3) | st.just(float("inf")), st.frozensets(st.integers(0, 4095)))
def test_an_account_arrives_as_it_was_sent(quota, processors):
    account = RankInfo(quota, tuple(k / 2 - 1 for k in range(len(COMPARED))), processors)
    assert RankInfo.unpack(account.pack()) == account


def test_processors_past_the_mask_are_left_out():
    account = RankInfo(1.0, (0.0,) * len(COMPARED), frozenset({1, 4096, 8191, 10**6}))
    assert RankInfo.unpack(account.pack()).processors == {1, 4096, 8191}


def test_calls_begin_with_the_stores_by_which_the_slowest_rank_is_the_fastest():
    assert GUESSED == ("ordinary", "streaming", "prefetched")
    assert STORES[first_stores([(5.0, 9.0, 4.0), (5.0, 9.0, 6.0)])] == "ordinary"
    assert STORES[first_stores([(5.0, 9.0, 4.0), (5.0, 9.0, 4.5)])] == "prefetched"
    assert STORES[first_stores([(8.0, 7.0, 9.0), (8.0, 7.5, 2.0)])] == "streaming"
    assert STORES[first_stores([(3.0, 3.0, 3.0)] * 2)] == "ordinary"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_rank_and_few_ranks_have_thresholds_too(size):
    assert report(size, barrier_us=0)["one_shot_nbytes"] > 0


def test_more_processors_than_ranks_make_no_rank_faster():
    assert thresholds(size=2, processors=8).limits.costs.bytes_per_second == 120e9
    assert thresholds(size=4, processors=2).limits.costs.bytes_per_second == 60e9


def test_a_given_limit_of_nothing_is_taken_too():
    found = thresholds(barrier_us=0.4, eager_nbytes=0)
    assert (found.eager_nbytes, found.why["eager_nbytes"]) == (0, "argument")
    assert not found.is_one_process


@pytest.mark.parametrize(
    ("size", "setting", "cache", "processors", "measures"),
    [
        (2, 1, -1, 8, False),
        (3, 1, 0, 8, True),
        (3, -1, 0, 8, False),
        (3, -1, -1, 8, True),
        (3, 0, -1, 8, False),
        (3, -1, -1, 3, True),
        (3, -1, -1, 2, False),
        (3, 1, -1, 2, True),
    ],
)
def test_nearness_is_measured_if_unknown_or_if_a_setting_asks_for_it(size, setting, cache, processors, measures):
    ranks = [RankInfo(1.0, (), frozenset(), seat=Seat(rank, cache=cache if rank else 0)) for rank in range(size)]
    assert tuning._measures_nearness(setting, ranks, processors) is measures
