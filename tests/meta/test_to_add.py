"""The files that "To add ..." in CONTRIBUTING names exist."""

import re

import pytest
from support.installed import ROOT


def test_every_file_that_a_step_names_exists():
    page = ROOT / "CONTRIBUTING.md"
    if not page.exists():
        pytest.skip("needs a checkout")
    (section,) = re.findall(r"^## To add \.\.\.\n(.*?)^## ", page.read_text(), re.DOTALL | re.MULTILINE)
    named = {word for text in re.findall(r"`([^`]+)`", section) for word in text.split() if "/" in word}
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
