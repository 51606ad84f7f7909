"""The cases that run by default: as many as asked for, showing all values where they can, the same for one seed."""

import itertools
import random

from support.sampling import draw

CASES = list(itertools.product(range(5), "abcd"))
VALUES = [{("n", n), ("kind", kind)} for n, kind in CASES]


def test_a_few_cases_show_every_value_of_every_parameter():
    for seed in range(100):
        drawn = draw(CASES, VALUES, 5, random.Random(seed))
        assert len(set(drawn)) == 5
        assert ({n for n, _ in drawn}, {kind for _, kind in drawn}) == (set(range(5)), set("abcd"))


def test_one_seed_draws_the_same_and_many_draw_all():
    assert draw(CASES, VALUES, 3, random.Random(1)) == draw(CASES, VALUES, 3, random.Random(1))
    assert {case for seed in range(200) for case in draw(CASES, VALUES, 1, random.Random(seed))} == set(CASES)


def test_no_more_are_drawn_than_there_are():
    assert sorted(draw(CASES, VALUES, 99, random.Random(1))) == CASES
