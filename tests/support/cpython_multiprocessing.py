"""Runs classes of CPython's own tests of `multiprocessing` with the contexts of `shmring.multiprocessing`.

    PYTHONPATH=tests python -m support.cpython_multiprocessing spawn WithProcessesTestQueue TestWait.test_wait

The tests are those of the installed Python (``test._test_multiprocessing``); nothing of them is copied. They find our
module under the name of the standard one, in the processes that they start, too: those import this file again.
"""

import sys
import unittest

import test._test_multiprocessing as tests

import shmring.multiprocessing

tests.multiprocessing = shmring.multiprocessing
for name in ("Pool", "Pipe", "Queue", "JoinableQueue"):
    setattr(tests.ProcessesMixin, name, staticmethod(getattr(shmring.multiprocessing, name)))
tests.install_tests_in_module_dict(globals(), sys.argv[1])

if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:], sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
