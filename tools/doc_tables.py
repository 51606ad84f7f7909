"""Write the tables of `docs/` that the code gives: all errors, all settings and all environment variables.

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


if __name__ == "__main__":
    for name, (page, _) in TABLES.items():
        page.write_text(with_table(name, page.read_text()))
