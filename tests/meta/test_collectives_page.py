"""The table of docs/collectives.md agrees with the costs of the plans and the names of the calls."""

import re
from pathlib import Path

import pytest
from plan_costs import FORMULAS, Example

import shmring
from shmring.plan.cost import dependent_syncs

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "collectives.md").read_text()
ROWS = {
    match[1]: [cell.strip() for cell in match[2].split("|")]
    for match in re.finditer(r"^\| `(\w+)\([^)]*\)` \|(.*)\|$", PAGE.split("## Ranks")[0], re.MULTILINE)
}
LARGE = {"all_reduce": "two_shot", "reduce": "sliced"}  # what the table is about, where there are several


def test_every_planned_collective_has_a_row():
    assert set(ROWS) == {kind for kind, _ in FORMULAS} | {"barrier"}


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in FORMULAS}))
def test_costs_are_those_of_the_plans(kind):
    algorithm = LARGE.get(kind, "staged")
    touched, syncs = ROWS[kind][2:4]
    assert touched == FORMULAS[kind, algorithm].text
    assert int(syncs) == dependent_syncs([Example(kind, algorithm, 8).plan(rank) for rank in range(8)])


def test_every_call_named_on_the_page_exists():
    called = set(re.findall(r"`(?:comm\.)?(\w+)\(", PAGE)) | set(re.findall(r"comm\.(\w+)\(", PAGE))
    assert called <= set(dir(shmring.Communicator))
