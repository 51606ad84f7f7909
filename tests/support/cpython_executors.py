"""Runs CPython's own tests of `ProcessPoolExecutor` with that of `shmring.multiprocessing`.

    PYTHONPATH=tests python -m support.cpython_executors spawn

The tests are those of the installed Python (``test.test_concurrent_futures``); nothing of them is copied. They find our
class under the name of the standard one, in the processes that they start, too: those import this file again.

Some look at parts of the standard class that ours has not, or has later: the thread that manages it, its queue of
calls, the processes. `Seen` has these for them.
"""

import concurrent.futures
import importlib
import os
import pkgutil
import sys
import time
import unittest

from test.support import script_helper

import shmring.multiprocessing

DIFFERENT = {
    "test_killed_child": "an executor goes on without a worker that was killed",
    "test_error_at_task_unpickle": "the future has the error",
    "test_error_during_result_unpickle_in_result_handler": "the future has the error",
    "test_exit_during_result_unpickle_in_result_handler": "the future has the error",
}

OURS = """
import concurrent.futures, shmring.multiprocessing
concurrent.futures.ProcessPoolExecutor = shmring.multiprocessing.ProcessPoolExecutor
"""


class Ended:
    """In place of a thread or a queue of the standard class: `join` waits until the executor has ended."""

    def __init__(self, executor):
        self.join = self.join_thread = executor._calls.join


class Seen(shmring.multiprocessing.ProcessPoolExecutor):
    """Our class, with what the tests look at."""

    _executor_manager_thread = property(Ended)
    _call_queue = property(Ended)

    @property
    def _processes(self):
        """The processes, once the pool has started all that it wants."""
        pool = self._calls._pool
        while pool is not None and pool._state == "RUN" and len(super()._processes) != pool._tasks.nwanted:
            time.sleep(0.001)
        return super()._processes


Seen.__name__ = "ProcessPoolExecutor"
concurrent.futures.ProcessPoolExecutor = Seen
run_program = script_helper.assert_python_ok


def run_with_ours(option, program, **options):
    """`assert_python_ok`, for a program that uses our class."""
    return run_program(option, OURS + program, **{"PYTHONPATH": os.pathsep.join(sys.path), **options})


script_helper.assert_python_ok = run_with_ours


def cases(method):
    """The classes of tests whose executors start processes by a method."""
    tests = importlib.import_module("test.test_concurrent_futures")
    parts = [f"{tests.__name__}.{part.name}" for part in pkgutil.iter_modules(getattr(tests, "__path__", ()))]
    for module in [tests, *map(importlib.import_module, parts)]:
        for case in vars(module).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and getattr(case, "ctx", None) == method:
                yield case


if __name__ == "__main__":
    suite = unittest.TestSuite()
    for case in cases(sys.argv[1]):
        for name, reason in DIFFERENT.items():
            if hasattr(case, name):
                setattr(case, name, unittest.skip(reason)(getattr(case, name)))
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
