"""What all tests share: the harness of ranks as fixtures, the leak check around every test, the seed, the long runs."""

import gc
import os
import random
import signal
import threading
import time
from multiprocessing import resource_tracker

import hypothesis
import pytest
from support import harness, installed, sampling, watchdog

# No test asserts a maximum time; a watchdog ends what hangs.
hypothesis.settings.register_profile("shmring", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shmring")


def pytest_addoption(parser):
    """Add the options of randomized tests."""
    parser.addoption("--seed", type=int, help="seed of randomized tests (default: SHMRING_SEED, else a fresh one)")
    parser.addoption("--long", action="store_true", help="all cases of every test; randomized ones for minutes")
    parser.addoption("--seconds", type=float, help="begin no test after this time; exit status: that of the others")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """The whole suite runs in three processes, since its tests wait half of the time; `-n 0` for one process."""
    if hasattr(config, "workerinput") or not config.pluginmanager.has_plugin("xdist"):
        return  # this is one of the three
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS and config.option.numprocesses is None:
        option = config.option
        is_part = option.markexpr or option.keyword or option.collectonly or option.usepdb
        option.numprocesses = 0 if is_part else 3


def pytest_configure(config):
    """Fix the seed of this run, and mark the names it makes in shared memory."""
    if not hasattr(config, "workerinput") and installed.is_in_place() and (stale := installed.stale_extensions()):
        pytest.exit(
            f"{len(stale)} extensions do not fit their sources: {', '.join(stale[:3])}, ...: run "
            "`python setup.py build_ext --inplace`",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
    harness.mark_names()
    seed = config.getoption("--seed")
    if seed is None:
        seed = int(os.environ.get("SHMRING_SEED") or random.SystemRandom().randrange(2**32))
    config.shmring_seed = seed
    if getattr(config.option, "hypothesis_seed", "") is None:  # the option --hypothesis-seed, not given
        config.option.hypothesis_seed = seed
    config.shmring_end = time.monotonic() + (config.getoption("--seconds") or float("inf"))
    config.shmring_not_begun = 0
    os.environ["SHMRING_SEED"] = str(seed)  # of all processes that share the tests
    # Shells start background jobs with SIGINT ignored, nohup with SIGHUP, and that is inherited: ranks could not be
    # interrupted, nor be sent away.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    config.pluginmanager.register(watchdog)
    config.addinivalue_line("markers", "leaks: this test leaves descriptors or threads to later ones on purpose")


def pytest_report_header(config):
    """Print the seed at the head of every run."""
    return f"shmring: seed {config.shmring_seed} (repeat with --seed {config.shmring_seed})"


def pytest_collection_modifyitems(config, items):
    """Without ``--long``, keep some cases of each test that is marked `sample`, and none of those marked `long`."""
    if config.getoption("--long"):
        return
    kept = sampling.keep(items, config.shmring_seed)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish(session):
    """Settle which shmring is tested; make the nursery while everything is loaded and nothing has run."""
    installed.use_one_shmring(session.config)
    if session.items and not session.config.option.collectonly:
        harness.nursery()
        # multiprocessing keeps one helper process for all of a program's life; no test is to blame for it.
        resource_tracker.ensure_running()
        gc.freeze()  # collections pass over what was collected here, and children that a test forks share its pages


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Pass over the tests that are left when the time of ``--seconds`` is over."""
    if time.monotonic() < item.config.shmring_end:
        return None
    item.config.shmring_not_begun += 1
    return True


def pytest_terminal_summary(terminalreporter, config):
    """Print how many those were."""
    if config.shmring_not_begun:
        terminalreporter.write_line(f"notice: {config.shmring_not_begun} tests were not begun, as --seconds was over")


def pytest_unconfigure(config):
    """End the nursery with the run."""
    harness.close_nursery()


@pytest.fixture(autouse=True)
def no_leaks(request):
    """Fail a test that leaves names in shared memory, processes, descriptors or threads."""
    before = harness.shared_names(), harness.open_files(), set(threading.enumerate())
    yield
    left = harness.end_all()
    assert not left, f"ranks left running: {[gang.pids for gang in left]}"
    if request.node.get_closest_marker("leaks") is None:
        harness.fail_on_leaks(*before)


@pytest.fixture
def seed(request):
    """The seed of this run; shown with a failing test."""
    value = request.config.shmring_seed
    print(f"seed {value}: repeat with --seed {value}")
    return value


@pytest.fixture
def long_run(request):
    """Whether ``--long`` was given."""
    return request.config.getoption("--long")
