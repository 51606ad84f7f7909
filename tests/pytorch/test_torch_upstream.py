"""The tests that torch ships for its backends ask for gloo, and get groups of shmring by the takeover."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.torch_upstream import BY_INTENTION

pytestmark = pytest.mark.skipif(find_spec("expecttest") is None, reason="torch's own tests need expecttest")

RUNNER = Path(__file__).parents[1] / "support" / "torch_upstream.py"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("match", "least"),
    [
        ("all_reduce", 21),
        ("all_gather", 9),
        ("send_recv", 9),
        ("scatter", 5),
        ("group", 27),
    ],
)
def test_torchs_own_tests_pass_under_the_takeover(tmp_path, match, least):
    report = tmp_path / "outcomes.json"
    command = [sys.executable, str(RUNNER), "shmring", "-k", match, "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    failed = [line for line in lines if line["outcome"] == "failed" and line["name"] not in BY_INTENTION]
    assert failed == [], done.stderr
    assert sum(line["outcome"] == "passed" for line in lines) >= least
