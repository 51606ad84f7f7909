"""The fault grid: which cases there are, how they are dealt into descents, and what a descent must come to."""

from __future__ import annotations

import secrets
from itertools import product

from descent import WAITS, Case, descend
from fault_calls import CALLS
from fault_deaths import DEATHS
from support.harness import start_processes

RANKS = 4
# The rank with the abort record, which is the root of most calls; a rank between two others; the last rank.
VICTIMS = (0, 1, -1)

# Calls that make segments are interrupted at their system calls as well; how many those are is not known beforehand.
MAKERS = ("split", "subgroup", "close", "shrink", "empty", "shared_result", "share")
IN_KERNEL = (*(f"kernel@{n}" for n in (1, 4, 9, 16, 25, 36)), "shm_unlink@1", "shm_unlink@2")
MOMENTS = {name: ("before", "waiting", "after", *(IN_KERNEL if name in MAKERS else ())) for name in CALLS}


def cells(call, *moments):
    """All cases of one call at these moments, but for the victim."""
    return list(product([call], moments, DEATHS, WAITS))


def cross(metafunc, moments):
    """Give a test every call with every moment of it, so that ``-k`` can choose parts; without ``--long`` none."""
    calls = CALLS if metafunc.config.getoption("--long") else ()
    metafunc.parametrize(("call", "moment"), [(call, moment) for call in calls for moment in moments[call]])


def draw(moments, dice):
    """A case of every call, at some of its ``moments``, as descents; all ways to fail equally often."""
    ways = [way for _ in range(len(CALLS) // len(DEATHS) + 1) for way in dice.sample(list(DEATHS), len(DEATHS))]
    cases = [
        Case(call, dice.choice(moments[call]), death, dice.choice(list(WAITS)), dice.choice(VICTIMS))
        for call, death in zip(dice.sample(list(CALLS), len(CALLS)), ways, strict=False)
    ]
    return [tuple(cases[at : at + RANKS - 1]) for at in range(0, len(cases), RANKS - 1)]


DRAWN = -(-len(CALLS) // (RANKS - 1))  # so many descents


def deal(cells, dice):
    """Descents in which every cell meets every size of group once."""
    columns = [dice.sample(cells, len(cells)) for _ in range(RANKS - 1)]
    return [tuple(Case(*cell, victim=dice.choice(VICTIMS)) for cell in row) for row in zip(*columns, strict=True)]


def play(cases, size=None):
    """Run a descent; how long each survivor of each case took to notice, and whether the victim died where it should.

    Parameters
    ----------
    cases : sequence of Case
    size : int, optional
        How many ranks begin it; by default one more than there are cases.

    Returns
    -------
    list of (Case, ranks, seconds or None, died_in_place)
        One for each survivor and case; None where the victim could not say when it died.
    """
    size = size or len(cases) + 1
    for _ in range(3):
        gang = start_processes(size, descend, secrets.token_hex(8), size, cases)
        outcomes = gang.outcomes()
        if not any(map(is_of_a_slow_rank, outcomes)):
            break
    story = "\n".join([*map(str, cases), *map(str, outcomes)])
    assert not any(outcome.stuck for outcome in outcomes), story
    found = []
    survivors = list(range(size))
    for number, case in enumerate(cases):
        victim = survivors.pop(case.victim % len(survivors))
        outcome = outcomes[victim]
        reports = gang.reports(victim)
        check_end(outcome, case, story)
        died_at = moment(reports, f"died {number} ")
        for rank in survivors:
            noticed_at = moment(gang.reports(rank), f"noticed {number} ")
            taken = noticed_at - died_at if died_at and noticed_at else None
            found.append((case, size - number, taken, "missed" not in reports))
    for rank in survivors:
        assert outcomes[rank].ok, story
    return found


def is_of_a_slow_rank(outcome):
    """Whether the timeout was over before the stop: the system may keep a rank from its processor, if not each time."""
    return isinstance(outcome.error, TimeoutError) or "OtherLateError" in str(outcome.error)


def moment(reports, prefix):
    """The time that stands behind the first report with this prefix; None if there is none."""
    return next((float(report[len(prefix) :]) for report in reports if report.startswith(prefix)), None)


def check_end(outcome, case, story):
    """The victim came to the end that it was to come to."""
    how = {"SIGKILL": 9, "SIGSTOP": 9, "SIGTERM": 15}.get(case.death)
    if how is not None:
        assert outcome.signal == how, story
    elif case.death == "os._exit":
        assert outcome.status in (0, 3), story
        assert outcome.error is None, story
    else:
        assert type(outcome.error) is {"raise": LookupError, "sys.exit": SystemExit}[case.death], story
