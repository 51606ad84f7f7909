"""Domains from measured times."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmring.core.placement.latency_clusters import FAR_NS, STEP, domains_by_times, partner, stages

CACHE, NODE, PACKAGE = 60.0, 210.0, 420.0


def table(levels, scale=(CACHE, NODE, PACKAGE), noise=None):
    """Times that grow with every border between two ranks; ``noise``: longer now and then, by up to ten times."""
    size = len(levels[0])

    def time(a, b):
        clean = scale[sum(level[a] != level[b] for level in levels)]
        return clean * noise.uniform(1, 1.15) * (10 if noise.random() < 0.1 else 1) if noise else clean

    return [[time(a, b) for b in range(size)] for a in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 17, 64])
def test_every_two_ranks_are_a_pair_in_one_stage_and_no_rank_twice_in_a_stage(size):
    met = set()
    for stage in range(stages(size)):
        for rank in range(size):
            other = partner(rank, stage, size)
            if other is not None:
                assert partner(other, stage, size) == rank != other
                met.add((rank, other))
    assert len(met) == size * (size - 1)


def test_leaps_in_the_times_are_borders():
    sockets = (0, 0, 0, 0, 1, 1, 1, 1)
    caches = (0, 0, 1, 1, 2, 2, 3, 3)
    assert domains_by_times(table([sockets], (CACHE, PACKAGE))) == (sockets,)
    assert domains_by_times(table([caches, sockets])) == (caches, sockets)


def test_ranks_need_not_be_neighbours_to_be_near():
    assert domains_by_times(table([(0, 1, 0, 1)], (CACHE, PACKAGE))) == ((0, 1, 0, 1),)


def test_where_all_are_equally_far_or_near_there_is_no_border():
    for time in (CACHE, PACKAGE):
        assert domains_by_times([[time] * 6] * 6) == ()
    assert domains_by_times([[0.0]]) == ()
    assert domains_by_times([[0.0, PACKAGE], [PACKAGE, 0.0]]) == ()


def test_the_least_latencies_of_a_border_are_one():
    assert domains_by_times(table([(0, 0, 1, 1)], (FAR_NS / 2, FAR_NS))) == ((0, 0, 1, 1),)
    assert domains_by_times(table([(0, 0, 1, 1)], (FAR_NS, STEP * FAR_NS))) == ((0, 0, 1, 1),)


def test_threads_of_a_core_are_no_domain():
    assert domains_by_times(table([(0, 0, 1, 1)], (20.0, 80.0))) == ()


def test_times_that_differ_little_are_no_border():
    assert domains_by_times(table([(0, 0, 1, 1)], (300.0, 360.0))) == ()


@given(st.integers(0, 1 << 30))
def test_pairs_that_were_disturbed_do_not_change_the_domains(seed):
    rng = random.Random(seed)
    sockets = tuple(r // 8 for r in range(16))
    caches = tuple(r // 4 for r in range(16))
    assert domains_by_times(table([caches, sockets], noise=rng)) == (caches, sockets)


@given(st.integers(2, 12), st.integers(0, 1 << 30))
def test_whatever_the_times_the_levels_lie_inside_each_other(size, seed):
    rng = random.Random(seed)
    times = [[rng.choice((30, 100, 250, 600, 2000)) * rng.uniform(1, 1.3) for _ in range(size)] for _ in range(size)]
    levels = domains_by_times(times)
    for level in levels:
        assert len(level) == size
        assert 1 < len(set(level)) < size
    for inner, outer in pairwise(levels):
        assert len(set(zip(inner, outer, strict=True))) == len(set(inner))
