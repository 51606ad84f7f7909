"""How many threads each rank gets: the rule, for machines of every kind."""

import pytest

from shmring.collectives.bootstrap.tuning import MOST_BY_DEFAULT, RankInfo, processors_each, team_size


def rank(mask, threads=-1, quota=float("inf")):
    return RankInfo(quota, (), frozenset(mask), threads)


def ranks(*masks, threads=-1, quota=float("inf")):
    return [rank(mask, threads, quota) for mask in masks]


def test_processors_in_several_masks_are_divided():
    assert processors_each(ranks(range(16), range(16))) == [8, 8]
    assert processors_each(ranks(range(8), range(8, 16))) == [8, 8]
    assert processors_each(ranks(range(8), range(4, 8))) == [6, 2]


def test_a_quota_is_divided_among_all():
    assert processors_each(ranks(range(64), range(64), quota=6.0)) == [3, 3]
    assert processors_each(ranks(range(4), range(4), quota=100.0)) == [2, 2]


@pytest.mark.parametrize(
    ("masks", "size"),
    [
        ([range(2)] * 2, 1),
        ([range(6)] * 2, 1),
        ([range(8)] * 2, 2),
        ([range(16)] * 2, 4),
        ([range(64)] * 8, 4),
        ([range(16)] * 16, 1),
        ([range(16 * r, 16 * r + 16) for r in range(8)], 8),
        ([range(224)] * 2, MOST_BY_DEFAULT),
        ([range(32), range(30, 32)], 1),
        ([range(64)], 1),
    ],
)
def test_half_of_what_the_rank_with_the_fewest_processors_has_from_four_processors_up(masks, size):
    assert team_size(ranks(*masks), 32) == size


def test_what_is_asked_for_counts_and_the_least_of_it():
    assert team_size(ranks(range(2), range(2), threads=4), 32) == 4
    both = [rank(range(2), 6), rank(range(2), 3)]
    assert team_size(both, 32) == 3
    assert team_size([rank(range(64), 8), rank(range(64), -1)], 32) == 8
    assert team_size([rank(range(8), 8), rank(range(8), -1)], 32) == 2
    assert team_size([rank(range(64), 1), rank(range(64), -1)], 32) == 1


def test_there_is_a_most():
    assert team_size(ranks(range(64), range(64), threads=100), 32) == 32


def test_thirds_of_processors_make_whole_ones():
    # Three ranks on twelve: 1/3 is not exact in binary, and 4 must not come out as 3.99.
    assert team_size(ranks(*[range(12)] * 3), 32) == 2
