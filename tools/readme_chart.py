"""Draw the chart and write the table of README.md from the stored figures, docs/pictures/figures.json.

    python tools/readme_chart.py

A figure is stored as the page named in ``from`` has it. The two bars of a task have a scale of their own.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED, CHART, README = ROOT / "docs/pictures/figures.json", ROOT / "docs/pictures/figures.svg", ROOT / "README.md"
BEGIN, END = "<!-- figures, by tools/readme_chart.py -->\n", "<!-- end of figures -->\n"

_WIDTH, _TASK, _BAR, _LEFT, _FULL = 500, 74, 17, 152, 250  # narrow: at the width of a phone it is hardly scaled
_STYLE = """<style>
text { font: 16px system-ui, sans-serif; fill: #24292f } .task { font-weight: 600 } .faint { fill: #57606a }
.ours { fill: #1a7f37 } .theirs { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9da7b1 } .ours { fill: #3fb950 } .theirs { fill: #57606a }
}
</style>"""


def times(figure: dict) -> str:
    """How many times as fast shmring is, to two digits."""
    factor = figure["theirs"] / figure["ours"]
    return f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"


def table(figures: list[dict]) -> str:
    """The rows of README.md."""
    lines = ["| | shmring | peer | times as fast |", "| --- | ---: | --- | ---: |"]
    for one in figures:
        task = f"[{one['task']}](docs/{one['from']})"
        unit, theirs = one["unit"], f"{one['peer']}, {one['theirs']:g} {one['unit']}"
        lines.append(f"| {task} | {one['ours']:g} {unit} | {theirs} | {times(one)} |")
    return "\n".join(lines) + "\n"


def chart(figures: list[dict]) -> str:
    """Two bars for each task, on a transparent ground; its colours follow the reader's light or dark mode."""
    body = []
    for row, one in enumerate(figures):
        top = row * _TASK
        body.append(f'<text x="8" y="{top + 20}" class="task">{escape(one["task"])}</text>')
        body.append(f'<text x="{_WIDTH - 8}" y="{top + 20}" text-anchor="end">{times(one)} times as fast</text>')
        for line, (name, key) in enumerate([("shmring", "ours"), (one["peer"], "theirs")]):
            y = top + 28 + line * (_BAR + 3)
            length = _FULL * one[key] / max(one["ours"], one["theirs"])
            body.append(f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
            body.append(f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" class="{key}"/>')
            value = f"{one[key]:g} {one['unit']}"
            body.append(f'<text x="{_LEFT + length + 6:.1f}" y="{y + 14}" class="faint">{value}</text>')
    height = len(figures) * _TASK
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
    )
    return "\n".join([head, _STYLE, *body, "</svg>\n"])


def with_table(readme: str, figures: list[dict]) -> str:
    """README.md with this table between its two marks."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(figures) + END + rest.split(END)[1]


def main() -> None:
    """Both."""
    figures = json.loads(STORED.read_text())
    CHART.write_text(chart(figures))
    README.write_text(with_table(README.read_text(), figures))


if __name__ == "__main__":
    main()
