"""Every call x every moment x every way to fail x spinning and sleeping peers x 4, 3 and 2 ranks.

    pytest tests/faults                 some of each, drawn by the seed
    pytest tests/faults --long          all of it
    python tests/faults/report.py       all of it, with the times that survivors took to notice

A failure tells its case; `Case` in descent.py says what the words mean.
"""

import random

import pytest
from fault_calls import CALLS
from fault_grid import MOMENTS, cells, deal, play


@pytest.mark.stress
@pytest.mark.parametrize("call", CALLS)
def test_survivors_of_every_failure_know_who_it_was_and_go_on(call, seed, long_run):
    dice = random.Random(f"{seed} {call}")
    descents = deal(cells(call, MOMENTS[call]), dice)
    for cases in descents if long_run else descents[:4]:
        play(cases)
