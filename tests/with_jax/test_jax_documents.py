"""The code in docs/jax.md runs as it stands there, and the example, in processes that `shmring run` starts."""

import functools

import pytest
from support.documents import blocks
from support.installed import ROOT
from support.jax_programs import LIMIT_S
from support.programs import run_in_launcher

run = functools.partial(run_in_launcher, timeout=LIMIT_S)


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.how.endswith(" with jax")], ids=lambda block: block.name
)
def test_code_of_a_document(block, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(block.source)
    run(block.size, *(() if "import shmring" in block.code else ("--jax",)), script)


def test_the_example_has_the_losses_of_one_process():
    output = run(2, "--jax", ROOT / "examples/jax_train.py")
    assert "data-parallel over (2, 1): loss 2.3300" in output, output
    assert "tensor-parallel over (1, 2): loss 2.3300" in output, output
