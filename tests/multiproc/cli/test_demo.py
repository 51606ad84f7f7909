"""`shmring demo` trains, checks the result, and reports failures by its exit status."""

import numpy as np
import pytest
from support.command import status_of_command
from support.programs import run_shmring

from shmring.cli import _training


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_demo_learns_and_every_check_holds(ranks):
    done = run_shmring("demo", "-n", str(ranks))
    assert done.stdout.count("\n  yes ") == 4
    assert "epoch 20/20" in done.stdout
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert ("multiprocessing pipes" in done.stdout) == (ranks > 1)


def test_a_network_that_learned_too_little_is_a_failure():
    done = run_shmring("demo", "-n", "2", "--epochs", "1", status=1)
    assert "failed: test accuracy" in done.stderr
    assert done.stdout.count("\n  yes ") == 3


def test_quiet_prints_nothing_when_all_is_well():
    done = run_shmring("demo", "-n", "2", "--quiet", "--seed", "7")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("options", [["-n", "0"], ["--epochs", "-1"], ["--seed", "-1"], ["-n", "many"]])
def test_senseless_options_are_refused_before_anything_starts(options, capsys):
    assert status_of_command("demo", *options) == 2
    shown = capsys.readouterr()
    assert options[0] in shown.err
    assert shown.out == ""


def test_a_process_that_drops_a_share_is_distinguished_from_one_that_rounds_differently():
    def trained(size, ranks):
        return _training.train(3, 0, size, range(ranks), _training.add_in_order)

    whole = trained(1, 1)
    allowed = _training.tolerance(whole, 3 * len(list(_training.batches(1437, 0, 0))))
    assert np.abs(trained(5, 5) - whole).max() <= allowed
    assert np.abs(trained(5, 1) - whole).max() > 100 * allowed  # the share of the first rank alone
    assert len(whole) == _training.NPARAMETERS
