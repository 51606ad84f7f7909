"""The commands that pages and the heads of programs print: each program is there, and has the options.

Commands are what ``sh`` blocks have, and what is indented by four spaces. A remark stands behind `` #``, or behind
three spaces; an option in brackets may be left out.
"""

import argparse
import ast
import functools
import importlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from support.installed import ROOT
from support.programs import run_program

import shmring
from shmring.cli import COMMANDS

COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:shmring|python|pytest|torchrun|mpiexec)\b")
PROGRAMS = ("bench", "examples", "tools", "tests/soak", "tests/hostile", "tests/faults")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OF_USERS = ("script.py", "train.py", "program.py", "./program", "package.module", "several_machines.py")
LAUNCHERS = {"mpiexec": ("-n", "--hosts"), "torchrun": ("--nproc-per-node",)}  # and their options, which have a value

# Programs of bench/ that no test in them runs, with what shortens them.
SHORTENED = [
    ("bench_choices.py", "--ranks 2 --calls broadcast --sizes 65536 --shared 0 --seconds 0.1"),
    ("bench_kernels.py", "land"),
    pytest.param("bench_multiprocessing.py", 'loaders "one tensor of 10 MB"', marks=pytest.mark.torch),
]


def command_lines():
    """Each command once, with the file that prints it."""
    found = {}
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        shell = "".join(code for language, code in FENCE.findall(text) if language == "sh")
        indented = [line[4:] for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
        _add(found, path, [*shell.splitlines(), *indented])
    for path in sorted(path for folder in PROGRAMS for path in (ROOT / folder).glob("*.py")):
        head = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
        _add(found, path, [line.strip() for line in head.splitlines()])
    return found


def _add(found, path, lines):
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))  # a line that ends with a backslash goes on
    for line in whole.splitlines():
        for part in line.split("; ") if path.suffix == ".py" else re.split(r" && ", line):
            if COMMAND.match(part):
                text = re.sub(r"\s+#.*|\s{3,}.*", "", part)
                found.setdefault(re.sub(r" \[[^]']*\]", "", text).strip(), str(path.relative_to(ROOT)))


@functools.cache
def help_of(path):
    """What a program prints for ``--help``; empty if it has no options."""
    if "parse_args" not in path.read_text():
        return ""
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parents[1])}
    return run_program(sys.executable, str(path), "--help", env=env).stdout


def check(words):
    """Raise where a command names what is not there."""
    while "=" in words[0]:
        words = words[1:]
    first, *rest = [word for word in words if word != "&"]
    if first == "shmring":
        name, *arguments = rest
        assert name in COMMANDS
        module = importlib.import_module(f"shmring.cli.{name}")
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        parsed = parser.parse_args(["1" if word == "PID" else word for word in arguments])
        if name == "run":
            check([word for word in parsed.command if word != "--"])
    elif first in LAUNCHERS:
        while rest[0].startswith("-"):
            assert rest[0] in LAUNCHERS[first]
            rest = rest[2:]
        check(rest)
    elif first == "pytest" or rest[:2] == ["-m", "pytest"]:
        paths = [word for word in rest if "/" in word and not word.startswith("-")]
        assert all((ROOT / path.partition("::")[0]).exists() for path in paths)
    elif first == "python":
        check(rest)
    elif first not in (*OF_USERS, "-m", "setup.py"):
        path = ROOT / first
        assert path.is_file()
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert all(re.search(rf"(?<![\w-]){option}\b", help_of(path)) for option in options), options


@pytest.mark.parametrize("text", command_lines())
def test_a_printed_command_names_a_program_and_options_that_are_there(text):
    check(shlex.split(text))


def test_what_is_not_there_is_noticed():
    for wrong in (
        "shmring dance",
        "shmring info --all",
        "python bench/none.py",
        "python bench/bench_calls.py --rank 1",
        "shmring run -n 2 bench/no.py",
        "pytest tests/no.py",
        "mpiexec -n 2 python bench/no.py",
    ):
        with pytest.raises((AssertionError, SystemExit)):
            check(shlex.split(wrong))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "options"), SHORTENED)
def test_a_program_that_no_other_test_runs_works(name, options, tmp_path):
    if name == "bench_multiprocessing.py":
        pytest.importorskip("torch")
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "bench" / name), *shlex.split(options)]
    assert run_program(*command, cwd=tmp_path, env=env).stdout
