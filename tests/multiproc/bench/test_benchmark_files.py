"""The files of `bench/`, as the pages' commands start them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness import PATIENCE
from support.installed import ROOT

import shmring


def test_the_commands_of_pages_measure_the_installed_package_in_a_checkout_that_is_not_compiled(tmp_path):
    """`python -m pytest` puts the checkout first on the path."""
    pytest.importorskip("pytest_benchmark")
    checkout = tmp_path / "checkout"
    for folder in ("bench", "shmring", "tests/support"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    command = [sys.executable, "-m", "pytest", "bench/bench_channels.py", "-q", "-k", "broadcast_of_arrays"]
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parent.parent)}  # as if it were installed there
    done = subprocess.run(
        [*command, "--benchmark-disable", "-p", "no:cacheprovider"],
        capture_output=True, text=True, timeout=120 * PATIENCE, cwd=checkout, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
