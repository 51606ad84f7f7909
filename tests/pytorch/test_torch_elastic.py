"""torchrun starts a gang anew after one of its ranks was killed."""

from pathlib import Path

from support.harness import PATIENCE
from support.programs import run_python

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
