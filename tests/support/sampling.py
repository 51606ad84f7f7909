"""Which cases of a test run by default: some of those with many parameters, chosen by the seed; all with ``--long``.

``@pytest.mark.sample(k)`` runs ``k`` of a test's cases. Each is one, of those left, with the most parameter values that
none before it had; among equals the seed decides. So a few cases show all values of all parameters, if few can, and
repeated runs come to all combinations. ``long`` marks a test, or a case, that runs with ``--long`` alone.
"""

from __future__ import annotations

import random
from collections import defaultdict


def keep(items: list, seed: int) -> set:
    """The items that run."""
    items = [item for item in items if item.get_closest_marker("long") is None]
    kept, grids = set(), defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") is None:
            kept.add(item)
        else:
            grids[item.nodeid.partition("[")[0]].append(item)
    for name, grid in grids.items():
        (count,) = grid[0].get_closest_marker("sample").args
        kept.update(draw(grid, [values_of(item) for item in grid], count, random.Random(f"{seed} {name}")))
    return kept


def draw(cases: list, values: list[set], count: int, rng: random.Random) -> list:
    """``count`` of the cases, of which case i shows ``values[i]``, that together show many values."""
    left = list(range(len(cases)))
    rng.shuffle(left)
    drawn, shown = [], set()
    while left and len(drawn) < count:
        best = max(left, key=lambda i: len(values[i] - shown))
        left.remove(best)
        shown |= values[best]
        drawn.append(cases[best])
    return drawn


def values_of(item) -> set:
    """Parameters of a test's case, each with its value as text, which cases that are listed one by one share, too."""
    callspec = getattr(item, "callspec", None)
    return {(name, repr(value)) for name, value in callspec.params.items()} if callspec is not None else set()
