"""The C-level functions of the ring, used by an extension outside the package: the example is built and run."""

import os
import shutil
from pathlib import Path

import pytest
from support.documents import blocks
from support.programs import run_python

import shmring

EXAMPLE = Path(__file__).parents[3] / "examples" / "embedding"


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="needs a C compiler")
def test_the_example_extension_is_built_and_runs(tmp_path):
    pytest.importorskip("Cython")
    for name in ("pump.pyx", "setup.py", "run.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    # The function of the document takes the place of the example's.
    (document,) = blocks("cython")
    (extension,) = [block for block in blocks("python") if block.code.startswith('Extension("pump"')]
    assert extension.code.strip() in (tmp_path / "setup.py").read_text()
    example = (tmp_path / "pump.pyx").read_text().replace("def push_numbers", "def push_numbers_of_the_example")
    (tmp_path / "pump.pyx").write_text(example + document.code)
    env = os.environ | {"PYTHONPATH": str(Path(shmring.__file__).parents[1]), "CFLAGS": "-O0"}

    run_python("setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path, env=env)
    assert run_python("run.py", cwd=tmp_path, env=env) == "1000000 numbers, their sum is 499999500000\n"
