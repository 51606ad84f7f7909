"""torchrun starts a gang anew after one of its ranks was killed, and names the rank that failed."""

import re
import sys
from pathlib import Path

import pytest
from support.harness import PATIENCE
from support.programs import run_program, run_python

PROGRAM = Path(__file__).with_name("elastic.py")


def test_torchrun_restarts_after_a_death(tmp_path):
    options = ("--standalone", "--nproc-per-node=3", "--max-restarts=1")
    run_python("-m", "torch.distributed.run", *options, PROGRAM, tmp_path, timeout=300 * PATIENCE)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {name: text for name, text in texts.items() if name.startswith("done")} == {
        f"done.{rank}.1": "3.0" for rank in range(3)
    }
    # torchrun ends the other ranks when it notices the death; a rank that noticed it earlier has named the dead rank.
    assert all(text == "1" for name, text in texts.items() if name.startswith("lost"))


# Rank 2 fails, and its process ends a third of a second later than the others learn of that.
FAILING = """
import atexit, os, sys, time
atexit.register(lambda: time.sleep(0.35 * (os.environ["RANK"] == "2")))
import torch, torch.distributed as dist
import shmring.torch
from torch.distributed.elastic.multiprocessing.errors import record

def main():
    dist.init_process_group("shmring")
    x = torch.ones(10)
    dist.all_reduce(x)
    if dist.get_rank() == 2:
        raise KeyError("the data of step 7")
    dist.all_reduce(x)

(record(main) if sys.argv[1] == "recorded" else main)()
"""


@pytest.mark.parametrize("how", ["recorded", "plain"])
def test_torchrun_names_the_rank_that_failed_of_itself(tmp_path, how):
    (tmp_path / "failing.py").write_text(FAILING)
    options = ("--standalone", "--nproc-per-node=3", str(tmp_path / "failing.py"), how)
    done = run_program(sys.executable, "-m", "torch.distributed.run", *options, status=1, timeout=300 * PATIENCE)
    cause = done.stderr.partition("Root Cause")[2]
    assert re.search(r"rank +: (\d)", cause)[1] == "2", done.stderr
