"""The command lines that pages and the heads of programs print: of ``sh`` blocks, and indented by four spaces.

A remark stands behind `` #``, or behind three spaces; an option in brackets may be left out.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from support.installed import ROOT

COMMAND = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:shmring|python3?|pytest|torchrun|mpiexec|pip|ruff|sphinx-build|export|\.ci/run)\b"
)
PROGRAMS = ("bench", "examples", "tools", "tests/soak", "tests/hostile", "tests/faults")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class CommandLine(NamedTuple):
    """One command line: the file that prints it, and its text without a remark."""

    page: str
    text: str


def command_lines() -> list[CommandLine]:
    """Each once for each file, in the order of the files."""
    found: dict[CommandLine, None] = {}
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        shell = "".join(code for language, code in FENCE.findall(text) if language == "sh")
        indented = [line[4:] for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
        found.update(dict.fromkeys(_commands(path, [*shell.splitlines(), *indented])))
    for path in sorted(path for folder in PROGRAMS for path in (ROOT / folder).glob("*.py")):
        head = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
        found.update(dict.fromkeys(_commands(path, [line.strip() for line in head.splitlines()])))
    return list(found)


def _commands(path, lines):
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))  # a line that ends with a backslash goes on
    for line in whole.splitlines():
        for part in line.split("; ") if path.suffix == ".py" else [line]:
            if COMMAND.match(part):
                text = re.sub(r"\s+#.*|\s{3,}.*", "", part)
                yield CommandLine(str(path.relative_to(ROOT)), re.sub(r" \[[^]']*\]", "", text).strip())
