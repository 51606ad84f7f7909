"""The code in README.md and docs/*.md runs as it stands there (how: `support.documents`).

Blocks that need PyTorch or JAX are run by tests/pytorch and tests/with_jax.
"""

import re
import secrets
import sys

import numpy as np
import pytest
from support.documents import blocks, check_rows, execute, execute_for_launcher, tables
from support.harness import run_processes, run_ranks
from support.installed import ROOT
from support.programs import run_program, run_python

import shmring

HERE = [block for block in blocks("python") if not block.how.endswith((" with torch", " with jax", " with mpi"))]
COMMAND = re.compile("^shmring (?!selftest|demo).*$", re.MULTILINE)  # those two: tests/multiproc/cli
COMMANDS = [block for block in blocks("sh") if COMMAND.search(block.code)]


def those(how):
    return pytest.mark.parametrize(
        "block", [block for block in HERE if re.fullmatch(how, block.how)], ids=lambda block: block.name
    )


def execute_with(comm, block):
    execute(block, comm=comm, np=np, shmring=shmring)


@those(r"on \d ranks?")
def test_code_of_a_rank(block):
    run_ranks(block.size, execute_with, block)


@those(r"as \d programs")
def test_programs_of_a_launcher(block):
    variables = {"WORLD_SIZE": str(block.size), "SHMRING_SESSION": secrets.token_hex(8)}
    run_processes(block.size, execute_for_launcher, block, variables)


@pytest.mark.sample(8)
@those("|as a program")
def test_a_whole_program(block, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(block.source)
    assert block.prints in run_python(path)


def check_rows_with(comm, table):
    check_rows(table, comm=comm, np=np, shmring=shmring)


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
def test_rows_of_a_table(table):
    if table.how == "here":
        check_rows(table, np=np, shmring=shmring)
    else:
        run_ranks(int(table.how.split()[1]), check_rows_with, table)


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.name)
def test_commands(block, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shmring_here = f'shmring() {{ "{sys.executable}" -m shmring "$@"; }}'
    script = ["set -e", shmring_here, block.setup, *COMMAND.findall(block.code)]
    assert block.prints in run_program("/bin/sh", "-c", "\n".join(script), cwd=tmp_path).stdout


def test_every_block_of_python_is_run():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert len(blocks("python")) == text.count("```python")
    known = re.compile(r"((on \d ranks?|as \d programs)( with (torch|jax|mpi))?|as a program|)")
    assert [block.name for block in blocks("python") if not known.fullmatch(block.how)] == []
