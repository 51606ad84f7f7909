"""Systems other than Linux, simulated by `sys.platform`: what can be imported there, and what is built."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import run_program

PRETEND = "import sys, multiprocessing, multiprocessing.pool, multiprocessing.queues; sys.platform = 'darwin'; "


def run(code):
    """What a program prints that believes it runs elsewhere."""
    return run_program(sys.executable, "-W", "always", "-c", PRETEND + code)


def test_the_drop_in_gives_the_standard_classes_with_one_warning():
    done = run(
        "import shmring.multiprocessing as ours, shmring.multiprocessing.pool, shmring.multiprocessing.queues\n"
        "from shmring.multiprocessing.pool import Pool\n"
        "assert Pool is multiprocessing.pool.Pool and ours.queues is multiprocessing.queues\n"
        "assert all(getattr(ours, name) == getattr(multiprocessing, name) for name in ours.__all__)\n"
        "assert ours.get_context('spawn') is multiprocessing.get_context('spawn')\n"
        "import shmring.multiprocessing.shared_memory\n"
        "print(ours.shared_memory.__name__)"
    )
    assert done.stdout == "multiprocessing.shared_memory\n"
    assert done.stderr.count("RuntimeWarning: shmring needs Linux, and this system is darwin") == 1


@pytest.mark.parametrize(
    "code", ["from shmring import init", "import shmring; shmring.Queue", "import shmring; shmring.ring"]
)
def test_all_else_is_an_import_error_that_says_why(code):
    done = run(f"\ntry:\n    {code}\nexcept ImportError as error:\n    print(error)")
    assert "needs Linux, and this system is darwin" in done.stdout


def test_nothing_is_compiled_there():
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "setup.py").exists():
        pytest.skip("needs a checkout")
    code = "import sys, setup; print(len(setup.extensions())); sys.platform = 'darwin'; print(setup.extensions())"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True)
    first, second = done.stdout.split("\n")[:2]
    assert int(first) > 40
    assert second == "[]"
