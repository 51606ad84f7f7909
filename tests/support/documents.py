"""Code blocks of README.md and docs/*.md, and how each is run.

An HTML comment right before a block, which a reader of the page does not see, has one of these heads:

    <!-- on 2 ranks -->             in 2 ranks of the communicator ``comm``, with ``np`` and ``shmring`` imported
    <!-- as 2 programs -->          in 2 processes with the variables of a launcher
    <!-- as a program -->           in an interpreter of its own; so is a block without a comment
    <!-- with files -->             before shell commands: of a ``sh`` block, lines that call ``shmring`` are run

"with torch", "with jax" or "with mpi" after the head leaves a block to the tests that need that. Code after the head
and a colon runs before the block, and that of a comment ``<!-- check: ... -->`` right after the block runs after it. A
comment ``<!-- prints: ... -->`` there is what a program prints.

A comment ``<!-- rows on 2 ranks: ... -->`` or ``<!-- rows here: ... -->`` stands before a table whose last column
begins with code and ends with a comment. In each row, after the code of the comment above the table, the code of the
column runs, and the row's comment is true then.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
from typing import NamedTuple

from support.installed import ROOT

BLOCK = re.compile(
    r"(?:^<!-- (?P<how>[^:\n]*?)(?: *-->|:\n(?P<setup>.*?)^-->)\n)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$"
    r"(?:\n<!-- (?P<then>check|prints):(?P<after>.*?)-->$)?",
    re.DOTALL | re.MULTILINE,
)

TABLE = re.compile(
    r"^<!-- rows (?P<how>[^:\n]*):\n(?P<setup>.*?)^-->\n(?P<rows>(?:^\|[^\n]*\n)+)", re.DOTALL | re.MULTILINE
)
ROW = re.compile(r"\| `(?P<code>[^`]+)`[^|]*? <!-- (?P<true_then>.+?) --> \|$")


class Row(NamedTuple):
    """One row of a table whose last column is code."""

    line: int
    code: str
    true_then: str


class Table(NamedTuple):
    """A table of such rows."""

    page: str
    how: str
    setup: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """For ids of tests."""
        return f"{self.page}:{self.rows[0].line}"


class Block(NamedTuple):
    """One code block of a page."""

    page: str
    line: int
    """Where its code begins, from 1."""
    language: str
    how: str
    setup: str
    code: str
    check: str
    prints: str

    @property
    def name(self) -> str:
        """For ids of tests."""
        return f"{self.page}:{self.line}"

    @property
    def size(self) -> int:
        """The number of processes that ``how`` has."""
        return int(self.how.split()[1])

    @property
    def source(self) -> str:
        """All its code, with the page's line numbers."""
        before = self.setup + "\n\n" if self.setup else ""  # for the ends of the comment and of its fence
        return "\n" * (self.line - 1 - before.count("\n")) + before + self.code + "\n\n" + self.check


def blocks(language: str) -> list[Block]:
    """All blocks in this language, in the order of the pages."""
    return [block for block in _all_blocks() if block.language == language]


def _all_blocks() -> list[Block]:
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for match in BLOCK.finditer(text):
            after = {match["then"]: match["after"]}
            found.append(
                Block(
                    path.name,
                    text.count("\n", 0, match.start("code")) + 1,
                    match["language"],
                    match["how"] or "",
                    match["setup"] or "",
                    match["code"],
                    after.get("check", ""),
                    after.get("prints", "").strip(),
                )
            )
    return found


def tables() -> list[Table]:
    """All tables of rows that are run, in the order of the pages."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        for match in TABLE.finditer(text):
            first = text.count("\n", 0, match.start("rows")) + 1
            lines = list(enumerate(match["rows"].splitlines(), first))[2:]  # without the head
            rows = tuple(_row(number, line) for number, line in lines)
            found.append(Table(path.name, match["how"], match["setup"], rows))
    return found


def _row(number: int, line: str) -> Row:
    found = ROW.search(line)
    assert found, line
    return Row(number, found["code"], found["true_then"])


def check_rows(table: Table, **names: object) -> None:
    """Run the rows of a table, each with fresh values of what its comment sets."""
    for row in table.rows:
        scope = dict(names)
        exec(table.setup, scope)
        try:
            exec(row.code, scope)
            assert eval(row.true_then, scope), f"{row.true_then} is not true"
        except Exception as error:
            raise AssertionError(f"{table.page}:{row.line}: {row.code}: {error!r}") from error


def execute(block: Block, **names: object) -> None:
    """Execute a block's code here; it may await at its top level."""
    code = compile(block.source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()):
        coroutine = eval(code, names)
        if inspect.iscoroutine(coroutine):
            asyncio.run(coroutine)


def execute_for_launcher(rank: int, block: Block, variables: dict) -> None:
    """The same as rank ``rank`` of a launcher that sets ``variables``."""
    os.environ.update(variables, RANK=str(rank))
    execute(block)
