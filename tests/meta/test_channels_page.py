"""Every feature of shmring in the table of features names a test, and the test exists."""

import re

from support.installed import ROOT

PAGE = ROOT / "docs/channel-benchmarks.md"


def rows():
    """The rows of the tables of features: the cell of shmring, and what it is shown by."""
    text = PAGE.read_text().partition("## Features")[2]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(row[0], row[-2], row[-1]) for row in cells if row[-1] not in ("---", "shown by")]


def test_every_feature_is_shown_by_a_test_or_a_page():
    sources = [path.read_text() for path in ROOT.glob("tests/**/test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert len(rows()) > 25
    for feature, ours, shown_by in rows():
        assert ours not in ("-", "?", ""), feature
        named = set(re.findall(r"`(test_\w+)`", shown_by))
        assert named or re.search(r"\]\(|the tables above", shown_by), f"{feature}: nothing shows it"
        assert named <= tests, f"{feature}: no {named - tests}"
