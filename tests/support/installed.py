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
import runpy
import shutil
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import shmring

ROOT = Path(__file__).resolve().parents[2]


def is_in_place() -> bool:
    """Whether the checkout is tested, not what was installed from it."""
    return Path(shmring.__file__).resolve().parent == ROOT / "shmring"


def stale_extensions() -> list[str]:
    """The .pyx files of which nothing was built in place, or only of older sources; extensions whose source is gone."""
    from Cython.Build.Dependencies import create_dependency_tree  # a checkout that is built in place has it

    here = os.getcwd()
    os.chdir(ROOT)
    try:
        extension = runpy.run_path("setup.py", run_name="setup")["extension"]
        behind = create_dependency_tree(quiet=True).all_dependencies
        built = map(str, Path("shmring").rglob(f"*{EXTENSION_SUFFIXES[0]}"))
        stems = {path: path.removesuffix(EXTENSION_SUFFIXES[0]) for path in built if "/_cython." not in path}
        found = [path for path, stem in stems.items() if not os.path.exists(f"{stem}.pyx")]
        for path in sorted(map(str, Path("shmring").rglob("*.pyx"))):
            known, built = extension(path), Path(path.removesuffix(".pyx") + EXTENSION_SUFFIXES[0])
            newest = max(os.stat(source).st_mtime for source in {*known.sources, *known.depends, *behind(path)})
            if not built.exists() or built.stat().st_mtime < newest:
                found.append(path)
        return sorted(found)
    finally:
        os.chdir(here)


def use_one_shmring(config: pytest.Config) -> None:
    """Go to an empty directory, and set up an environment in which every process finds this `shmring`.

    To be called after collection, before anything is started; undone with the end of the run.
    """
    # Not TemporaryDirectory, which forked ranks inherit: the first to end as programs do would take it from all.
    empty = tempfile.mkdtemp(prefix="shmring-tests-")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(lambda: shutil.rmtree(empty, ignore_errors=True))  # a process that is ending may write there
    config.add_cleanup(patch.undo)  # runs first: the last added is the first to go
    if is_in_place():
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    patch.chdir(empty)
