"""The code in docs/jax.md runs as it stands there, and the example, in processes that `shmring run` starts."""

import os
import subprocess
import sys

import pytest
from support.documents import blocks
from support.installed import ROOT
from support.jax_programs import LIMIT_S


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", "shmring", "run", *command], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.how.endswith(" with jax")], ids=lambda block: block.name
)
def test_code_of_a_document(block, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(block.source)
    run("-n", str(block.size), *(() if "import shmring" in block.code else ("--jax",)), str(script))


def test_the_example_has_the_losses_of_one_process():
    output = run("--jax", "-n", "2", os.fspath(ROOT / "examples/jax_train.py"))
    assert "data-parallel over (2, 1): loss 2.3300" in output, output
    assert "tensor-parallel over (1, 2): loss 2.3300" in output, output
