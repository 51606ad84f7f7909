"""Runs classes of CPython's own tests of `multiprocessing` with the contexts of `shmring.multiprocessing`.

    python -m support.cpython_multiprocessing fork WithProcessesTestQueue TestWait.test_wait ...

The tests are those of the installed Python (``test._test_multiprocessing``); nothing of them is copied. They find our
module under the name of the standard one; processes that they start fresh have the standard module, and get our objects
as their arguments.
"""

import sys
import unittest


def load(method):
    """The test module of a start method, with our module in place of the standard one."""
    import test._test_multiprocessing as tests

    import shmring.multiprocessing as ours

    tests.multiprocessing = ours
    for name in ("Pool", "Pipe", "Queue", "JoinableQueue"):
        setattr(tests.ProcessesMixin, name, staticmethod(getattr(ours, name)))
    module = sys.modules[__name__]
    tests.install_tests_in_module_dict(vars(module), method)
    return module


if __name__ == "__main__":
    sys.modules["support.cpython_multiprocessing"] = sys.modules["__main__"]
    method, *names = sys.argv[1:]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names, load(method))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
