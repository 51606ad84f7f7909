"""Tests, and the processes they start, see the same shmring."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.installed import ROOT

import shmring


@pytest.mark.parametrize("how", [["-c", "import shmring; print(shmring.__file__)"], ["-m", "where"], ["where.py"]])
def test_a_process_started_by_a_test_imports_the_shmring_under_test(how):
    Path("where.py").write_text("import shmring; print(shmring.__file__)")
    output = subprocess.run([sys.executable, *how], capture_output=True, text=True, check=True).stdout
    assert output.strip() == shmring.__file__


def test_tests_do_not_run_in_the_checkout():
    assert not Path.cwd().is_relative_to(ROOT)
    assert not os.path.exists("shmring")


def test_names_of_test_files_are_unique_and_make_no_packages():
    files = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    support = ROOT / "tests" / "support"  # imported as a package, so its names may repeat
    names = [path.name for path in files if path.name != "conftest.py" and support not in path.parents]
    assert len(names) == len(set(names))
    assert "__init__.py" not in names
    assert not (ROOT / "conftest.py").exists()


def test_no_test_starts_a_process_in_the_checkout():
    starts_there = re.compile(r"\bcwd=\s*(ROOT|Path|str)\b")
    found = [path.name for path in (ROOT / "tests").rglob("test_*.py") if starts_there.search(path.read_text())]
    assert not found
