"""torchrun starts a gang anew after one of its ranks was killed."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("elastic.py")


def test_torchrun_restarts_after_a_death(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--max-restarts=1"]
    run = subprocess.run([*command, PROGRAM, tmp_path], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {name: text for name, text in texts.items() if name.startswith("done")} == {
        f"done.{rank}.1": "3.0" for rank in range(3)
    }
    # torchrun ends the other ranks when it notices the death; a rank that noticed it earlier has named the dead rank.
    assert all(text == "1" for name, text in texts.items() if name.startswith("lost"))
