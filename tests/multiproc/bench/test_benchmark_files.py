"""The files of `bench/`, as the pages' commands start them."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.installed import ROOT
from support.programs import run_program

import shmring


def test_the_commands_of_pages_measure_the_installed_package_in_a_checkout_that_is_not_compiled(tmp_path):
    """`python -m pytest` puts the checkout first on the path."""
    pytest.importorskip("pytest_benchmark")
    checkout = tmp_path / "checkout"
    for folder in ("bench", "shmring", "tests/support"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    command = [sys.executable, "-m", "pytest", "bench/bench_channels.py", "-q", "-k", "broadcast_of_arrays"]
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parent.parent)}  # as if it were installed there
    done = run_program(*command, "--benchmark-disable", "-p", "no:cacheprovider", cwd=checkout, env=env)
    assert "6 passed" in done.stdout
