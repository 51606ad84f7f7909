"""Every call x every moment x every way to fail x spinning and sleeping peers x 4, 3 and 2 ranks.

    pytest tests/faults                 one case of every call, drawn by the seed
    pytest tests/faults --long          all of it; a part of it with, say, -k 'split and kernel'
    python tests/faults/report.py       all of it, with the times that survivors took to notice

A failure prints its case; `Case` in descent.py explains the words.
"""

import random

import pytest
from fault_grid import DRAWN, MOMENTS, cells, cross, deal, draw, play

pytestmark = pytest.mark.stress


def pytest_generate_tests(metafunc):
    if "moment" in metafunc.fixturenames:
        cross(metafunc, MOMENTS)


@pytest.mark.sample(8)
@pytest.mark.parametrize("number", range(DRAWN))
def test_survivors_of_a_failure_name_the_rank_and_continue(number, seed):
    play(draw(MOMENTS, random.Random(f"{seed} grid"))[number])


def test_survivors_of_every_failure_name_the_rank_and_continue(call, moment, seed):
    for cases in deal(cells(call, moment), random.Random(f"{seed} {call} {moment}")):
        play(cases)
