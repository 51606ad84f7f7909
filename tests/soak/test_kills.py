"""Some of the jobs of kills.py; ten thousand with ``--long``."""

import kills
import pytest


@pytest.mark.stress
def test_random_kills_cause_no_hang_no_leak_and_no_wrong_result(seed, long_run):
    totals, stories = kills.soak(10_000 if long_run else 50, seed)
    print(dict(totals))
    assert not stories, f"{len(stories)} jobs failed\n" + "\n".join(stories[:5])
    assert totals["survivors that named the dead"] > 12
