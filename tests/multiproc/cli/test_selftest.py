"""`python -m shmring.selftest`: passes here, and names what does not work elsewhere."""

import json
import os
import signal
import sys

import numpy as np
import pytest
from support.children import in_child, status_of
from support.command import status_of_command
from support.namespaces import needs_mount
from support.programs import run_program, run_python

from shmring import leftovers, selftest, sweep
from shmring.core.memory import segment
from shmring.core.memory.header import ARRAY
from shmring.core.memory.names import SHM_DIRECTORY
from shmring.core.memory.spelling import segment_name
from shmring.selftest import checks, ranks


def test_every_check_passes_here():
    printed = run_python("-m", "shmring.selftest", "-n", "3", "--seed", "7")
    assert printed.count("\n  ok ") == len(selftest.CHECKS)
    assert "3 ranks: 149 results compared" in printed
    assert "rank 2 of 3 was killed: all others raised PeerLostError" in printed


@needs_mount
def test_too_little_shared_memory_fails_with_its_remedy():
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec"
    done = run_program("unshare", "-m", "sh", "-c", f"{mount} {sys.executable} -m shmring selftest --json", status=1)
    found = json.loads(done.stdout)
    assert found["passed"] is False
    by_name = {check["name"]: check for check in found["checks"]}
    assert not by_name["ranks"]["passed"]
    assert "OutOfSharedMemoryError" in by_name["ranks"]["text"]
    assert "--shm-size" in by_name["ranks"]["remedy"]
    assert by_name["machine"]["passed"]


def test_a_check_that_fails_does_not_end_the_others(monkeypatch):
    def fail(size, seed):
        raise ZeroDivisionError("broken")

    some = (checks.Check("first", fail, "repair it"), checks.Check("second", lambda size, seed: f"{size} {seed}", "-"))
    monkeypatch.setattr(checks, "CHECKS", some)
    first, second = checks.run_checks(2, 9)
    assert first[:4] == ("first", False, "ZeroDivisionError: broken", "repair it")
    assert second[:4] == ("second", True, "2 9", "")


def leave_a_name(size, seed):
    """A process makes a segment with a name and dies."""
    name = segment_name("left", "r0")
    pid = in_child(lambda: (segment.create(name, 8192, kind=ARRAY), os.kill(os.getpid(), signal.SIGKILL)))
    assert status_of(pid) == -signal.SIGKILL
    return name


def test_only_what_the_checks_left_is_a_failure(monkeypatch):
    nothing_left = checks.CHECKS[-1]
    assert nothing_left.name == "nothing left"
    leave_a_name(2, 0)  # another job
    try:
        assert [one.status for one in leftovers("left")] == ["stale"]
        monkeypatch.setattr(checks, "CHECKS", (nothing_left,))
        assert [outcome.passed for outcome in checks.run_checks(2, 0)] == [True]
        leaves = checks.Check("leaves", leave_a_name, "-")
        monkeypatch.setattr(checks, "CHECKS", (leaves, nothing_left))
        left, found = checks.run_checks(2, 0)
    finally:
        sweep("left")
    name = left.text
    assert not found.passed
    assert name in found.text
    os.unlink(SHM_DIRECTORY + name)


def test_a_result_with_other_bits_is_noticed():
    with pytest.raises(ranks.WrongResultError, match="all_reduce: float64"):
        ranks.expect(np.array([0.0]), np.array([-0.0]), "all_reduce")
    with pytest.raises(ranks.WrongResultError):
        ranks.expect(np.zeros(2), np.zeros((2, 1)), "all_reduce")


@pytest.mark.parametrize("options", [["-n", "0"], ["--seed", "-1"]])
def test_senseless_options_are_refused(options):
    assert status_of_command("selftest", *options) == 2


def test_slow_checks_are_named_with_the_load_of_the_machine(monkeypatch, capsys):
    found = [("quick", 0.1), ("death", 4.0), ("ranks", 9.0)]
    outcomes = [checks.Outcome(name, True, "", "", seconds) for name, seconds in found]
    monkeypatch.setattr("shmring.cli.selftest.run_checks", lambda size, seed: iter(outcomes))
    assert status_of_command("selftest") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("slow: 13 s: ranks 9.0 s, death 4.0 s; the load average of the last minute is ")
    outcomes[2] = outcomes[0]
    assert status_of_command("selftest") == 0
    assert "slow" not in capsys.readouterr().out
