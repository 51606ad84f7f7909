"""Programs on the C table: the example in C of docs/embedding.md, and a module in Cython."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support import compiled
from support.capi import ABORTED, build, compiler
from support.documents import blocks
from support.harness import run_ranks
from support.programs import run_in_launcher, run_python

import shmring

EXAMPLE = Path(__file__).parents[3] / "examples" / "capi"


def test_the_example_of_the_page_is_built_and_runs(tmp_path):
    compiler("C11")
    (document,) = [block for block in blocks("c") if block.page.endswith("embedding.md")]
    assert document.code in (EXAMPLE / "heat.c").read_text()
    for name in ("heat.c", "setup.py", "run.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    env = os.environ | {"PYTHONPATH": str(Path(shmring.__file__).parents[1]), "CFLAGS": "-O0 -Wall -Werror"}

    run_python("setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path, env=env)
    output = run_in_launcher(2, "run.py", cwd=tmp_path, env=env)
    assert "80.000000 of heat in 20 cells of 2 ranks, 4.000000 in each" in output


def shift(comm):
    module = compiled.load("capi_cython")
    x, out = np.full(4, float(comm.rank)), np.zeros(4)
    before = (comm.rank - 1) % comm.size
    assert module.all_reduce_and_shift(comm, x, out) == (before, 7)
    assert (x == sum(range(comm.size))).all()
    assert (out == before).all()
    comm.close()
    with pytest.raises(RuntimeError, match="is closed"):
        module.all_reduce_and_shift(comm, x, out)


def test_a_module_in_cython():
    compiled.load("capi_cython")  # built here, where a missing compiler skips the test
    run_ranks(3, shift)


EXITING = """
import sys, threading
sys.path.insert(0, {tests!r})
from support.capi import RECV, Table
from support.waits import until_waiting
import numpy as np
import shmring
comm = shmring.init()
x = np.ones(100000)
fields = dict(x=x, out=x, count=x.size)
table = Table({library!r})
handle = table.open(comm)
if comm.rank == 0:
    threading.Thread(target=lambda: table.call("all_reduce", handle, **fields), daemon=True).start()
    until_waiting(comm, 0)
    sys.exit(0)
found = table.error_of(RECV, handle, **fields, peer=0)  # until rank 0 has left
assert table.error_of("all_reduce", handle, **fields) == found
code, rank, text = found
assert rank == 0, text
print(f"code {{code}}")
"""


def test_a_rank_exits_while_a_thread_is_in_a_call(tmp_path):
    library = build(tmp_path)
    program = tmp_path / "exiting.py"
    program.write_text(EXITING.format(tests=str(Path(__file__).parents[2]), library=library))
    env = os.environ | {"PYTHONPATH": str(Path(shmring.__file__).parents[1])}
    assert f"code {ABORTED}" in run_in_launcher(2, program, cwd=tmp_path, env=env)
