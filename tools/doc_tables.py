"""Write the tables of `docs/` that the code gives, all errors, all settings and all environment variables, and the
picture of the figures in the README.

`tests/unit/base/test_doc_tables.py` compares.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from shmring import config, errors

DOCS = Path(__file__).parents[1] / "docs"
END = "<!-- end -->"


def errors_table() -> str:
    """A row for each class: its bases, its meaning, its attributes."""
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.ShmringError)]
    return _table("error | is a | meaning | attributes", [_error_row(one) for one in classes])


def _error_row(error: type[Exception]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    text = inspect.getdoc(error) or ""
    attributes = re.findall(r"^([a-z, ]+) : ", text, re.MULTILINE)
    named = ", ".join(f"`{name}`" for line in attributes for name in line.split(", "))
    return f"`{error.__name__}` | {bases} | {_one_line(text.partition(chr(10) * 2)[0])} | {named}"


def settings_table() -> str:
    """A row for each setting of a communicator: its default and its meaning."""
    return _settings_of(config.Config)


def internals_table() -> str:
    """A row for each setting for tests and diagnosis."""
    return _settings_of(config.Internals)


def _settings_of(kind: type) -> str:
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    meaning = {
        field.target.id: ast.literal_eval(text.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    rows = [
        f"`{name}` | `{config.SETTINGS[name]}` | {_one_line(text)}"
        for name, text in meaning.items()
        if name in config.SETTINGS
    ]
    return _table("setting | default | meaning", rows)


def variables_table() -> str:
    """A row for each environment variable that is no setting."""
    rows = [f"`{name}` | {_one_line(text)}" for name, text in config.VARIABLES.items()]
    return _table("variable | meaning", rows)


def _table(titles: str, rows: list[str]) -> str:
    rule = re.sub("[^|]+", " --- ", titles)
    return "\n".join([f"| {titles} |", f"|{rule}|", *(f"| {row} |" for row in rows)])


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


# Name of the table in the page -> the page and what makes the table.
TABLES: dict[str, tuple[Path, Callable[[], str]]] = {
    "errors": (DOCS / "errors.md", errors_table),
    "settings": (DOCS / "tuning.md", settings_table),
    "internals": (DOCS / "tuning.md", internals_table),
    "variables": (DOCS / "tuning.md", variables_table),
}


def with_table(name: str, page: str) -> str:
    """The page with the table of this name as it should be."""
    begin = f"<!-- {name}: written by tools/doc_tables.py -->"
    head, found, rest = page.partition(begin)
    if not found:
        raise ValueError(f"the page has no line {begin}")
    return f"{head}{begin}\n{TABLES[name][1]()}\n{END}{rest.partition(END)[2]}"


# ---- the picture ----

PICTURE = DOCS / "pictures" / "figures.svg"
WIDTH, LEFT, LONGEST, ROW_HEIGHT = 500, 152, 250, 74
STYLE = """<style>
text { font: 16px system-ui, sans-serif; fill: #24292f } .task { font-weight: 600 } .faint { fill: #57606a }
.ours { fill: #1a7f37 } .theirs { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9da7b1 } .ours { fill: #3fb950 } .theirs { fill: #57606a }
}
</style>"""


def picture(readme: str) -> str:
    """Two bars for each row of the table of figures."""
    rows = re.findall(r"^\| \[(.+?)\]\(.+?\) \| (.+?) \| (.+?), (.+?) \| (.+?) \|$", readme, re.MULTILINE)
    height = ROW_HEIGHT * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        STYLE,
    ]
    for i, (task, ours, peer, theirs, ratio) in enumerate(rows):
        y = 20 + ROW_HEIGHT * i
        lines.append(f'<text x="8" y="{y}" class="task">{task}</text>')
        lines.append(f'<text x="{WIDTH - 8}" y="{y}" text-anchor="end">{ratio} times as fast</text>')
        longest = max(_microseconds(ours), _microseconds(theirs))
        for name, time, kind in (("shmring", ours, "ours"), (peer, theirs, "theirs")):
            y += 22 if kind == "ours" else 20
            length = LONGEST * _microseconds(time) / longest
            lines.append(f'<text x="{LEFT - 10}" y="{y}" text-anchor="end">{name}</text>')
            bar = f'x="{LEFT}" y="{y - 14}" width="{length:.1f}" height="17" rx="2"'
            lines.append(f'<rect {bar} class="{kind}"/>')
            lines.append(f'<text x="{LEFT + length + 6:.1f}" y="{y}" class="faint">{time}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _microseconds(time: str) -> float:
    number, unit = time.split()
    return float(number) * {"us": 1, "ms": 1000}[unit]


if __name__ == "__main__":
    PICTURE.write_text(picture((DOCS.parent / "README.md").read_text()))
    for name, (page, _) in TABLES.items():
        page.write_text(with_table(name, page.read_text()))
