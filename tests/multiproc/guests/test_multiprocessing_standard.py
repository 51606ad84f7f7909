"""CPython's own tests of `multiprocessing`, those of what our contexts replace, and of executors, in all start methods.

They run as `tests/support/cpython_multiprocessing.py` and `cpython_executors.py` describe: the tests of the installed
Python, in a process of their own. A part runs by default, all with ``--long``.
"""

import os
import sys
from importlib.util import find_spec

import pytest
from support.installed import ROOT
from support.programs import run_program, run_python

METHODS = ("fork", "spawn", "forkserver")

QUICK = {
    "fork": (
        "WithProcessesTestQueue.test_put WithProcessesTestQueue.test_fork WithProcessesTestQueue.test_qsize "
        "WithProcessesTestQueue.test_queue_feeder_on_queue_feeder_error WithProcessesTestConnection TestSimpleQueue "
        "WithProcessesTestPoll.test_dont_merge WithProcessesTestPicklingConnections.test_access TestWait.test_wait "
        "WithProcessesTestPoolWorkerErrors TestTimeouts.test_timeout"
    ),
    "spawn": (
        "TestSimpleQueue WithProcessesTestPicklingConnections.test_access TestWait.test_wait "
        "WithProcessesTestSharedMemory.test_shared_memory_across_processes "
        "WithProcessesTestSharedMemory.test_shared_memory_pickle_unpickle "
        "WithProcessesTestSharedMemory.test_shared_memory_ShareableList_basics"
    ),
    "forkserver": "WithProcessesTestQueue.test_fork WithProcessesTestConnection.test_connection TestWait.test_wait",
}

WHOLE = (
    "WithProcessesTestQueue",
    "WithProcessesTestConnection",
    "WithProcessesTestPoll WithProcessesTestPollEintr",
    "WithProcessesTestProcess",
    "WithProcessesTestPicklingConnections WithProcessesTestListener WithProcessesTestListenerClient",
    "TestWait",
    "TestSimpleQueue TestInvalidHandle TestTimeouts TestIgnoreEINTR TestStdinBadfiledescriptor TestCloseFds",
    "WithProcessesTestPool",
    "WithProcessesTestPoolWorkerErrors WithProcessesTestPoolWorkerLifetime TestPoolNotLeakOnFailure TestInitializers",
)

HAS_TESTS = find_spec("test") is not None and find_spec("test._test_multiprocessing") is not None
pytestmark = pytest.mark.skipif(not HAS_TESTS, reason="this Python comes without its own tests")


def with_support():
    """Environment in which programs find `support`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])}


def run_standard_tests(folder, method, names):
    """Run tests by their names, separated by blanks; what the run has printed."""
    done = run_program(
        sys.executable,
        "-m",
        "support.cpython_multiprocessing",
        method,
        *names.split(),
        cwd=folder,
        env=with_support(),
    )
    assert "\nOK" in done.stderr, done.stderr
    return done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", METHODS)
def test_a_part_of_the_standard_tests_passes(tmp_path, method):
    run_standard_tests(tmp_path, method, QUICK[method])


@pytest.mark.long
@pytest.mark.parametrize("names", WHOLE, ids=lambda names: names.split()[0])
@pytest.mark.parametrize("method", METHODS)
def test_the_standard_tests_pass(tmp_path, method, names):
    run_standard_tests(tmp_path, method, names)


@pytest.mark.long
@pytest.mark.skipif(
    not HAS_TESTS or find_spec("test.test_concurrent_futures") is None, reason="this Python comes without these tests"
)
@pytest.mark.parametrize("method", METHODS)
def test_the_standard_tests_of_executors_pass(tmp_path, method):
    done = run_program(sys.executable, "-m", "support.cpython_executors", method, cwd=tmp_path, env=with_support())
    assert "\nOK" in done.stderr, done.stderr


def test_the_tests_run_with_our_classes():
    program = (
        "import sys; sys.argv[1:] = ['fork']; import support.cpython_multiprocessing as run;"
        "import shmring.multiprocessing as ours; a, b = run.WithProcessesTestPoll.Pipe();"
        "print(isinstance(a, ours.connection.RingConnection), run.tests.multiprocessing is ours)"
    )
    assert run_python("-c", program, env=with_support()).split() == ["True", "True"]
