"""Cython modules of the tests: built when a test needs them, once for each state of their sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

import shmring

HERE = Path(__file__).resolve().parent
PACKAGE = Path(shmring.__file__).resolve().parent

SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup
import shmring.capi, sys
name = sys.argv.pop()
setup(
    name=name,
    ext_modules=cythonize([
        Extension(
            name, [name + ".pyx"], include_dirs=[shmring.get_include(), shmring.capi.get_include()],
            define_macros=[("_GNU_SOURCE", "1")],
        )
    ]),
    script_args=["-q", "build_ext", "--inplace"],
)
"""


def load(name: str) -> ModuleType:
    """The module ``tests/support/NAME.pyx``, built for the shmring under test; skips where there is no compiler."""
    pytest.importorskip("Cython", reason="needs Cython")
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        pytest.skip("needs a C compiler", allow_module_level=True)
    tested = hashlib.blake2b(f"{sys.version} {PACKAGE}".encode(), digest_size=4).hexdigest()
    digest = hashlib.blake2b(digest_size=8)
    for path in (HERE / f"{name}.pyx", *sorted(PACKAGE.rglob("*.pxd")), *sorted(PACKAGE.rglob("*.h"))):
        digest.update(path.read_bytes())
    place = HERE.parents[1] / "build" / "tests" / f"{name}-{tested}-{digest.hexdigest()}"
    if not place.is_dir():
        _build(name, place)
    spec = importlib.util.spec_from_file_location(name, place / f"{name}{EXTENSION_SUFFIXES[0]}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(name: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        shutil.copy2(HERE / f"{name}.pyx", work)
        done = subprocess.run(
            [sys.executable, "-c", SETUP, name],
            cwd=work,
            env=os.environ | {"PYTHONPATH": str(PACKAGE.parent), "CFLAGS": f"{os.environ.get('CFLAGS', '')} -O0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"cannot build {name}:\n{done.stdout[-3000:]}")
        try:
            os.rename(work, place)
        except OSError:  # another process was first
            if not place.is_dir():
                raise
            return
        # Of other states of the sources; not those of another Python, whose suite may run at this time.
        for old in set(place.parent.glob(f"{place.name.rpartition('-')[0]}-*")) - {place}:
            shutil.rmtree(old, ignore_errors=True)
        os.mkdir(work)  # for the context manager to remove
