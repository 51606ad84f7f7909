"""The dimensions of plans: one way for each combination of their values."""

import pytest

from shmring.collectives.plan.choose import DIMENSIONS, Way, pieces, schedules, ways
from shmring.collectives.plan.limits import Limits

ONE_PIECE = Limits(round_nbytes=1 << 18)


def test_there_is_a_way_for_each_combination_the_first_dimension_changing_fastest():
    assert schedules("all_reduce", 2, 1 << 20) == ("two_shot", "exchange")
    names, rows = ways("all_reduce", 2, 1 << 20, ONE_PIECE, threads=(1, 4))
    assert names == {
        "schedule": ("two_shot", "exchange"),
        "piece": ("262144 bytes",),
        "threads": ("by rule", "otherwise"),
    }
    piece = {"round_nbytes": 1 << 18}
    assert rows == [
        Way("two_shot", 1, piece),
        Way("exchange", 1, piece),
        Way("two_shot", 4, piece),
        Way("exchange", 4, piece),
    ]
    assert list(names) == [one.name for one in DIMENSIONS if not one.values]


def test_a_dimension_with_one_value_multiplies_nothing():
    names, rows = ways("scan", 2, 1 << 20, ONE_PIECE)
    assert names == {"schedule": ("staged",), "piece": ("262144 bytes",), "threads": ("by rule",)}
    assert rows == [Way("staged", limits={"round_nbytes": 1 << 18})]


@pytest.mark.parametrize(
    ("kind", "size", "nbytes", "found"),
    [
        ("broadcast", 2, 1 << 20, (1 << 17, 1 << 18, 1 << 15)),
        ("broadcast", 2, (1 << 17) + 1, (1 << 17, 1 << 18, 1 << 15)),
        ("broadcast", 2, 1 << 17, (1 << 17, 1 << 15)),
        ("broadcast", 2, 1 << 15, (1 << 17,)),
        ("all_to_all", 4, 1 << 16, (1 << 17, 1 << 18, 1 << 15)),
        ("all_to_all", 2, 1 << 16, (1 << 17, 1 << 15)),
        ("all_gather", 4, 1 << 15, (1 << 17,)),
        ("all_reduce", 64, 1 << 24, (1 << 17, 1 << 18)),
        ("all_reduce", 512, 1 << 24, (1 << 18,)),
        ("all_gather", 2, (1 << 20, 1 << 20), (1 << 18,)),
    ],
)
def test_pieces_are_one_to_begin_with_a_slot_and_a_quarter_where_they_differ(kind, size, nbytes, found):
    assert pieces(kind, size, nbytes, Limits()) == found
    assert pieces(kind, size, nbytes, Limits(round_nbytes=4096)) == (4096,)
    assert pieces(kind, size, nbytes, Limits(slot_nbytes=4096)) == (4096,)
    assert (1 << 17) not in pieces(kind, size, nbytes, Limits(slot_nbytes=1 << 16))
