"""The pace of waits that no process ends by a wake-up."""

import time
from itertools import pairwise

from shmring.core.base.pace import FIRST_S, TICK_S, Pace


def test_pauses_double_up_to_the_tick(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    pace = Pace()
    for _ in range(30):
        pace.pause()
    assert pauses[0] == FIRST_S
    assert all(later == min(2 * pause, TICK_S) for pause, later in pairwise(pauses))
    assert pauses[-1] == TICK_S
