"""The tables of docs/collectives.md have every collective, and the names of the calls."""

import re
from pathlib import Path

from plan_costs import FORMULAS

import shmring

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "collectives.md").read_text()
ROWS = set(re.findall(r"^\| `(\w+)\(", PAGE.split("## Ranks")[0], re.MULTILINE))


def test_every_planned_collective_has_a_row():
    assert {kind for kind, _ in FORMULAS} | {"barrier"} == ROWS


def test_every_call_named_on_the_page_exists():
    called = set(re.findall(r"`(?:comm\.)?(\w+)\(", PAGE)) | set(re.findall(r"comm\.(\w+)\(", PAGE))
    assert called <= set(dir(shmring.Communicator))
