"""Runs classes of CPython's own tests of `multiprocessing` with the contexts of `shmring.multiprocessing`.

    PYTHONPATH=tests python -m support.cpython_multiprocessing spawn WithProcessesTestQueue TestWait.test_wait

The tests are those of the installed Python (``test._test_multiprocessing``); nothing of them is copied. They find our
module under the name of the standard one, in the processes that they start, too: those import this file again.

They assume that no process stands still for a second. So what they wait for may come within a minute, and how long they
have waited is not asserted.
"""

import re
import sys
import unittest
from importlib.util import find_spec, module_from_spec

import shmring.multiprocessing
from shmring.multiprocessing import shared_memory


def load_patiently(name):
    """The module of that name, made from its source with other times."""
    spec = find_spec(name)
    source = spec.loader.get_source(name)
    source = re.sub(r"(poll\()(?:1|1\.0|TIMEOUT1)(\)(?:, True)?\))", r"\g<1>60\2", source)
    source = re.sub(r"(get\(timeout=)[13]\)", r"\g<1>60)", source)
    source = re.sub(r"self\.assert(Less\((delta|t), |Greater\(delta, expected).*$", "pass", source, flags=re.MULTILINE)
    module = sys.modules[name] = module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), vars(module))
    return module


tests = load_patiently("test._test_multiprocessing")
tests.multiprocessing, tests.shared_memory = shmring.multiprocessing, shared_memory
for name in ("Pool", "Pipe", "Queue", "JoinableQueue"):
    setattr(tests.ProcessesMixin, name, staticmethod(getattr(shmring.multiprocessing, name)))
tests.install_tests_in_module_dict(globals(), sys.argv[1])

if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:], sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
