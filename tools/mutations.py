"""Random changes of one place in the code, and which of them the tests notice.

    python tools/mutations.py collectives/plan core/ring --count 40 --seed 1
    python tools/mutations.py shmring/core/sync/turn.pyx --tests tests/unit/sync --count 5

A change is a comparison, an arithmetic or logical operator, a number, a truth value or a condition that is another one
then. Each is made in a copy of this checkout, which is built in place, and tested by the tests of its room; a change
that these do not notice is printed. Such a survivor shows a behaviour without a test, code that does nothing, or a
change that means the same: docs/maintainers/proofs.md has the figures. Orders of memory and the headers in C are not
changed: the models and the sanitizers are for them.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# Those of `collectives/calls` for what is pure Python there; the whole folder takes minutes.
CALLS = ["half_made", "objects", "async_work", "callable_ops", "mpi4py_habits", "numbers", "groups", "hierarchical"]
# The tests of a room; quick ones first, since the first failure ends a run.
TESTS = {
    "collectives/plan": ["tests/unit/plan"],
    "nodes": ["tests/unit/nodes", "tests/mpi"],  # needs mpi4py
    "collectives/bootstrap": [
        "tests/unit/bootstrap",
        "tests/multiproc/watch/test_hang_accounts.py",
        "tests/multiproc/bootstrap",
    ],
    "core/base": ["tests/unit/base"],
    "core/placement": ["tests/unit/placement"],
    "core/memory": ["tests/unit/memory"],
    "core/sync": [
        "tests/unit/sync",
        "tests/unit/channels",
        "tests/multiproc/collective/test_disagreement.py",
        "tests/multiproc/collective/test_collective_timeouts.py",
        "tests/multiproc/channels/test_awaiting.py",
        "tests/multiproc/channels/test_waiting.py",
        "tests/multiproc/engine",
        "tests/multiproc/watch/test_timelines.py",
    ],
    "core/kernel": ["tests/unit/kernel"],
    "core/arrays": [
        "tests/unit/arrays",
        "tests/unit/channels/test_endpoints.py",
        "tests/multiproc/channels/test_latest_leases.py",
    ],
    "core/objects": [
        "tests/unit/objects",
        "tests/multiproc/channels/test_leased_objects.py",
        "tests/multiproc/channels/test_open_files_in_objects.py",
    ],
    "core/ring": ["tests/unit/ring", "tests/unit/channels", "tests/multiproc/channels"],
    "core/blocks": ["tests/unit/blocks", "tests/multiproc/blocks"],
    "watch": ["tests/unit/watch", "tests/multiproc/watch"],
    "launch": ["tests/multiproc/launch"],
    "channels": ["tests/unit/channels", "tests/multiproc/channels"],
    "collectives/engine": [
        "tests/unit/engine",
        "tests/multiproc/engine",
        "tests/multiproc/watch/test_timelines.py",
        "tests/multiproc/collective",
    ],
    "collectives/shared": [
        "tests/unit/shared",
        *(f"tests/multiproc/collective/test_{name}.py" for name in ("shared_arrays", "share", "share_at_once")),
    ],
    "collectives/p2p": ["tests/multiproc/p2p", "tests/multiproc/engine/test_closed.py"],
    "collectives/calls": [f"tests/multiproc/collective/test_{name}.py" for name in CALLS],
}
PATIENCE = 4  # times as long as without a change, and a minute

# What stands for an operator. Formatted code has spaces on both sides of those with two operands.
OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
    "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=",
    "and": "or", "or": "and", "True": "False", "False": "True",
}  # fmt: skip
END_OF_CONDITION = {":", "else", "for", "if", ")", "]", "}", ","}


class Change(NamedTuple):
    """A place in a file, and what stands there instead."""

    path: str
    line: int
    start: int
    """Position in the text of the file; so is ``end``."""
    end: int
    new: str

    def of(self, text: str) -> str:
        """The changed text of the file."""
        return text[: self.start] + self.new + text[self.end :]


def changes_of(path: str, text: str) -> Iterator[Change]:
    """All changes of one file, in order. Annotations are left alone: they are not executed."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    notes = _annotations(text, begins) if path.endswith(".py") else []
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type != tokenize.COMMENT]
    for number, token in enumerate(tokens):
        start, end = (begins[line - 1] + column for line, column in (token.start, token.end))
        if any(first <= start < last for first, last in notes):
            continue
        line = token.start[0]
        is_spaced = text[start - 1 : start] == " " and text[end : end + 1] in (" ", "\n")
        if token.string in ("True", "False") or (token.string in OPERATORS and is_spaced):
            yield Change(path, line, start, end, OPERATORS[token.string])
        elif token.type == tokenize.NUMBER and _has_effect(text, start, end):
            yield Change(path, line, start, end, _other_number(token.string))
        elif token.string in ("is", "in") and tokens[number + 1].string != "not" and tokens[number - 1].string != "not":
            if token.string == "is" or _is_comparison(tokens, number):
                yield Change(path, line, start, end, "is not" if token.string == "is" else "not in")
        elif token.string == "not":
            yield from _without_not(path, tokens[number - 1 : number + 2], begins)
        elif token.string in ("if", "elif", "while"):
            last = _end_of_condition(tokens, number + 1)
            first, stop = end + 1, begins[last.end[0] - 1] + last.end[1]
            yield Change(path, line, first, stop, f"not ({text[first:stop]})")


def _annotations(text: str, begins: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for node in ast.walk(ast.parse(text)):
        for name in ("annotation", "returns"):
            if (note := getattr(node, name, None)) is not None:
                ends = (note.lineno, note.col_offset), (note.end_lineno, note.end_col_offset)
                found.append(tuple(begins[line - 1] + column for line, column in ends))
    return found


def _has_effect(text: str, start: int, end: int) -> bool:
    """Whether a number matters. In Cython the value that means an error does not, nor the 0 that means none, nor the
    room in a small array."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    if re.search(r"\bexcept\??\s*-\s*$|\bcdef [\w ]+\[$", before):
        return False
    if before.strip() != "return" or text[start:end] != "0":
        return True
    declared = list(re.finditer(r"^ *cp?def [^\n]*\(", text[:start], re.MULTILINE))
    return not declared or "except -1" not in text[declared[-1].start() : text.find(":\n", declared[-1].start())]


def _other_number(text: str) -> str:
    value = ast.literal_eval(text)
    return str(value + 1) if isinstance(value, int) else repr(2 * value + 1)


def _is_comparison(tokens: Sequence[tokenize.TokenInfo], number: int) -> bool:
    """Whether this ``in`` compares, and does not belong to a loop over something."""
    line = tokens[number].start[0]
    before = [one.string for one in tokens[max(0, number - 12) : number] if one.start[0] == line]
    return "for" not in before


def _without_not(path: str, around: Sequence[tokenize.TokenInfo], begins: Sequence[int]) -> Iterator[Change]:
    """Without the word ``not``: of ``is not`` and ``not in``, and before a value."""
    before, token, after = around
    if before.string == "is" or after.string == "in" or not keyword.iskeyword(after.string):
        start = begins[token.start[0] - 1] + token.start[1]
        yield Change(path, token.start[0], start, start + len("not "), "")


def _end_of_condition(tokens: Sequence[tokenize.TokenInfo], first: int) -> tokenize.TokenInfo:
    """The last token of the condition that begins with token number ``first``."""
    depth = 0
    for number in range(first, len(tokens)):
        text = tokens[number].string
        if depth == 0 and (text in END_OF_CONDITION or tokens[number].type == tokenize.NEWLINE):
            break
        depth += (text in "([{" and bool(text)) - (text in ")]}" and bool(text))
    return next(one for one in reversed(tokens[:number]) if one.type != tokenize.NL)


class Laboratory:
    """A copy of the checkout in which changes are made and tested."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        ignored = shutil.ignore_patterns(".git", "dist", "__pycache__", ".pytest_cache", ".hypothesis")
        shutil.copytree(ROOT, self.root, ignore=ignored, symlinks=True)
        if not self._builds():
            raise SystemExit("this checkout does not build: python setup.py build_ext --inplace")

    def passes(self, tests: Sequence[str], seconds: float | None = None) -> bool:
        """Whether the tests pass, within that time."""
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--seed", "1", *tests]
        return self._status(command, seconds) == 0

    def notices(self, change: Change, tests: Sequence[str], seconds: float) -> bool:
        """Whether the tests fail with a change, which is undone then; so does one that the compiler refuses."""
        file = self.root / change.path
        kept = {path: (path.read_bytes(), path.stat()) for path in (file, *self._made_of(file))}
        try:
            file.write_text(change.of(file.read_text()))
            return not ((file.suffix == ".py" or self._builds()) and self.passes(tests, seconds))
        finally:
            for path, (content, stat) in kept.items():  # with its time, by which nothing is built again
                path.unlink(missing_ok=True)
                path.write_bytes(content)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _made_of(self, file: Path) -> list[Path]:
        """What the build makes of a .pyx: C, object file and module."""
        name = file.relative_to(self.root).with_suffix("")
        built = [path for end in ("c", "o", "*.so") for path in self.root.glob(f"build/**/{name}.{end}")]
        return [*built, *file.parent.glob(f"{file.stem}.*.so")] if file.suffix == ".pyx" else []

    def _builds(self) -> bool:
        return self._status([sys.executable, "setup.py", "build_ext", "--inplace"], None) == 0

    def _status(self, command: list[str], seconds: float | None) -> int | None:
        """The exit status of a command; None if it was ended after that time."""
        output = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=self.root, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def files_of(target: str) -> list[str]:
    """The files of a room in Python and Cython, or a file by its path."""
    if target not in TESTS:
        return [target]
    room = ROOT / "shmring" / target
    return [str(path.relative_to(ROOT)) for path in sorted([*room.rglob("*.py"), *room.rglob("*.pyx")])]


def main() -> int:
    """Make changes, and print those that no test notices; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", help=f"rooms ({', '.join(TESTS)}) or files")
    parser.add_argument("--tests", nargs="+", help="for files: the tests that may notice")
    parser.add_argument("--count", type=int, default=20, help="changes in all, of all targets alike (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of changes (default: 1)")
    args = parser.parse_args()
    possible = [
        (target, change)
        for target in args.targets
        for path in files_of(target)
        for change in changes_of(path, (ROOT / path).read_text())
    ]
    chosen = random.Random(args.seed).sample(possible, min(args.count, len(possible)))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="shmring-mutations-") as folder:
        laboratory = Laboratory(Path(folder))
        for target in args.targets:
            changes = sorted(change for of, change in chosen if of == target)
            if changes:
                survivors += _try_target(laboratory, target, args.tests or TESTS[target], changes)
    print(f"seed {args.seed}: {len(chosen) - survivors} of {len(chosen)} changes noticed, of {len(possible)} possible")
    return int(survivors > 0)


def _try_target(laboratory: Laboratory, target: str, tests: Sequence[str], changes: Sequence[Change]) -> int:
    """Make changes of one target; how many were not noticed."""
    begin = os.times().elapsed
    if not laboratory.passes(tests):
        raise SystemExit(f"{target}: {' '.join(tests)} fail without a change")
    seconds = PATIENCE * (os.times().elapsed - begin) + 60
    missed = 0
    for change in changes:
        if not laboratory.notices(change, tests, seconds):
            missed += 1
            text = (ROOT / change.path).read_text()
            before, after = (each.splitlines()[change.line - 1].strip() for each in (text, change.of(text)))
            print(f"{change.path}:{change.line}: {before}\n    -> {after}", flush=True)
    print(f"{target}: {len(changes) - missed} of {len(changes)} noticed", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
