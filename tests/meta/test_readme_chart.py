"""The chart and the table of README.md are those of the stored figures, and the pages have these figures."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools/readme_chart.py"))
FIGURES = json.loads(TOOL["STORED"].read_text())


def test_the_chart_and_the_table_are_drawn_from_the_stored_figures():
    readme = TOOL["README"].read_text()
    assert TOOL["CHART"].read_text() == TOOL["chart"](FIGURES)
    assert TOOL["with_table"](readme, FIGURES) == readme


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["task"])
def test_a_stored_figure_stands_on_its_page(figure):
    rows = [line for line in (ROOT / "docs" / figure["from"]).read_text().splitlines() if line.startswith("|")]
    numbers = [set(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows]
    wanted = {float(figure["ours"]), float(figure["theirs"])}
    assert any(wanted <= {float(text) for text in row} for row in numbers)


def test_lines_of_the_readme_fit_a_terminal():
    outside = re.sub(
        re.escape(TOOL["BEGIN"]) + ".*?" + re.escape(TOOL["END"]), "", TOOL["README"].read_text(), flags=re.S
    )
    assert [line for line in outside.splitlines() if len(line) > 100] == []
