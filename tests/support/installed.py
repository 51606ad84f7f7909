"""Which shmring is under test: one and the same, in pytest and in every process that a test starts.

The checkout holds a ``shmring/`` without compiled extensions, beside the tests. ``pip install . && pytest`` must test
what was installed, so the checkout must not come first on the ``sys.path`` of any process:

- In pytest itself it does not: the ``pytest`` command does not add the current directory, and the import mode "prepend"
  adds the directories of test files and conftests only, as long as there is no conftest at the root and no
  ``__init__.py`` in ``tests/``. So file names in ``tests/`` are unique. (Mode "importlib" adds nothing at all, but then
  processes started with the method "spawn" cannot import the test module whose function they are to run.)
- ``python -c`` and ``python -m`` add the directory they are started in. So tests run in another one.
- ``python -m pytest``, after a build in place, tests the checkout. Then ``PYTHONPATH`` makes processes use it, too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import shmring

ROOT = Path(__file__).resolve().parents[2]


def use_one_shmring(config: pytest.Config) -> None:
    """Go to an empty directory, and set up an environment in which every process finds this `shmring`.

    To be called after collection, before anything is started; undone with the end of the run.
    """
    in_place = Path(shmring.__file__).resolve().parent == ROOT / "shmring"
    # Not TemporaryDirectory, which forked ranks inherit: the first to end as programs do would take it from all.
    empty = tempfile.mkdtemp(prefix="shmring-tests-")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(lambda: shutil.rmtree(empty, ignore_errors=True))  # a process that is ending may write there
    config.add_cleanup(patch.undo)  # runs first: the last added is the first to go
    if in_place:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    patch.chdir(empty)
