"""Write the table of all errors into `docs/errors.md`, from the classes of `shmring.errors`.

`tests/unit/base/test_error_table.py` compares.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from shmring import errors

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
BEGIN, END = "<!-- written by tools/error_table.py -->", "<!-- end -->"


def table() -> str:
    """A row for each class: its bases, its meaning, its attributes."""
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.ShmringError)]
    rows = [_row(one) for one in classes]
    return "\n".join(["| error | is a | meaning | attributes |", "| --- | --- | --- | --- |", *rows])


def _row(error: type[Exception]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    text = inspect.getdoc(error) or ""
    meaning = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    attributes = re.findall(r"^([a-z, ]+) : ", text, re.MULTILINE)
    named = ", ".join(f"`{name}`" for line in attributes for name in line.split(", "))
    return f"| `{error.__name__}` | {bases} | {meaning} | {named} |"


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
