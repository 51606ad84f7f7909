"""Whether a call is made by a plan or by the wire: ranks that simulate times choose alike, and what is faster."""

import random

import pytest

from shmring.nodes.transfers import NAMES, Trials

SIZE = 8


def simulate(ranks, ncalls, times, noise=None):
    """Make calls on all ranks; returns the name of the way of each. ``times(call)``: those of both ways, in ns."""
    made = []
    for call in range(ncalls):
        ways = {rank.begin() for rank in ranks}
        assert len(ways) == 1, "the ranks make a call in different ways"
        (way,) = ways
        made.append(NAMES[way])
        over = {rank.note(int(times(call)[way] * (noise() if noise else 1))) for rank in ranks}
        if over == {True}:
            most = [max(pair) for pair in zip(*(rank.least() for rank in ranks), strict=True)]
            for rank in ranks:
                rank.conclude(most)
        else:
            assert over == {False}
    return made


@pytest.mark.parametrize(("times", "best"), [((1000, 500), "wire"), ((500, 1000), "plan"), ((1000, 990), "plan")])
def test_ranks_find_the_faster_way_and_lose_little(times, best):
    made = simulate([Trials() for _ in range(SIZE)], 1000, lambda _: times)
    assert made[-1] == best
    assert sum(way != best for way in made) <= 50


def test_noise_of_single_ranks_and_calls_does_not_part_the_ranks(seed):
    rng = random.Random(seed)

    def noise():
        return 20 if rng.random() < 0.03 else rng.choice([1, 1, 1.1, 1.3])

    made = simulate([Trials() for _ in range(SIZE)], 3000, lambda _: (3000, 1000), noise)
    assert made[-1] == "wire"


def test_a_change_is_found_by_a_later_look():
    made = simulate([Trials()], 20_000, lambda call: (500, 1000) if call < 1000 else (1000, 500))
    assert made[900] == "plan"
    assert made[-1] == "wire"


def test_the_times_of_the_slowest_rank_decide():
    ranks = [Trials() for _ in range(2)]
    for rank, times in zip(ranks, ((100, 200), (900, 300)), strict=True):
        for _ in range(44):
            rank.note(times[rank.begin()])
    most = [max(pair) for pair in zip(*(rank.least() for rank in ranks), strict=True)]
    for rank in ranks:
        rank.conclude(most)
    assert [NAMES[rank.begin()] for rank in ranks] == ["wire", "wire"]
    assert ranks[0].us == [0.9, 0.3]


def test_a_pinned_way_stays():
    rank = Trials()
    rank.pin("wire")
    assert set(simulate([rank], 1000, lambda _: (1, 1000))) == {"wire"}
