"""The attacks of attack.py: some cases of each kind by default, minutes of each with ``--long``."""

import subprocess
import sys

import pytest
from attack import KINDS
from support.installed import ROOT

CASES = {
    "arguments": 10,
    "states": 40,
    "cycles": 10,
    "fork": 10,
    "handlers": 10,
    "threads": 10,
    "ranks": 8,
    "shares": 8,
}
LONG_FACTOR = 60


@pytest.mark.sample(2)
@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_any_use_of_any_object_ends_in_an_answer_or_a_documented_error(kind, seed, long_run, tmp_path):
    cases = CASES[kind] * (LONG_FACTOR if long_run else 1)
    program = ROOT / "tests" / "hostile" / "attack.py"
    arguments = [kind, "--seed", str(seed), "--cases", str(cases), "--folder", str(tmp_path)]
    run = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, errors="replace")
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout[-20_000:]
    assert f"{kind}: {cases} cases" in run.stdout
