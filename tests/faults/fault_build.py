"""A build of shmring with injection points, beside the one under test: `python tests/faults/fault_build.py` makes it.

It lies in ``build/faults/`` of the checkout, one directory for each state of the sources, and is made anew only when
they have changed. Only modules in which there are points are compiled; the others are those of the shmring under test.
Needs what every build from a checkout needs: a C compiler, Cython and setuptools.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import shmring

ROOT = Path(__file__).resolve().parents[2]
UNDER_TEST = Path(shmring.__file__).resolve().parent
SOURCES = ("**/*.py", "**/*.pyx", "**/*.pxd", "**/*.h", "kernel/*.c")


def fault_build() -> str:
    """The directory that holds the ``shmring`` with injection points; made if need be, in half a minute.

    Raises
    ------
    RuntimeError
        It cannot be built here; the text has the output of the build.
    """
    files = [ROOT / "setup.py", *(path for pattern in SOURCES for path in sorted((ROOT / "shmring").glob(pattern)))]
    for path in files[1:]:
        twin = UNDER_TEST / path.relative_to(ROOT / "shmring")
        if path.suffix == ".py" and (not twin.exists() or twin.read_bytes() != path.read_bytes()):
            raise RuntimeError(f"the shmring under test, {UNDER_TEST}, was not made from this checkout: {path.name}")
    sanitizers = os.environ.get("SHMRING_SANITIZED", "")  # tests/sanitizers/run.sh
    digest = hashlib.blake2b(f"{sys.version} {UNDER_TEST} {sanitizers}".encode(), digest_size=8)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    place = ROOT / "build" / "faults" / digest.hexdigest()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that share the tests one builds
        if not place.is_dir():
            _build(place, files, sanitizers)
    return str(place)


def _build(place: Path, files: list[Path], sanitizers: str) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="under-way-") as work:
        for path in files:
            if path.suffix == ".pyx" and not has_points(path):
                continue
            copy = Path(work, "tree", path.relative_to(ROOT))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=Path(work, "tree"),
            env={**os.environ, "SHMRING_FAULTS": "1", "SHMRING_SANITIZE": sanitizers, "LD_PRELOAD": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"cannot build shmring with injection points:\n{done.stdout[-3000:]}")
        shutil.rmtree(Path(work, "tree", "build"), ignore_errors=True)
        made = Path(work, "tree", "shmring")
        for path in UNDER_TEST.rglob(f"*{EXTENSION_SUFFIXES[0]}"):
            link = made / path.relative_to(UNDER_TEST)
            if not link.exists():
                link.symlink_to(path)
        for old in place.parent.glob("[0-9a-f]*"):  # of other states of the sources
            shutil.rmtree(old, ignore_errors=True)
        os.rename(Path(work, "tree"), place)


def has_points(path: Path) -> bool:
    """Whether a module has injection points: its own, or those of inline functions that it cimports."""
    text = path.read_text()
    if path.with_suffix(".pxd").exists():
        text += path.with_suffix(".pxd").read_text()
    return "fault_point(" in text or any(f"from {name} cimport" in text for name in inline_points())


@functools.cache
def inline_points() -> tuple[str, ...]:
    """The modules with injection points in their .pxd, which are compiled into those that cimport them."""
    paths = [path for path in (ROOT / "shmring").rglob("*.pxd") if path.name != "faults.pxd"]
    found = [path for path in paths if "fault_point(" in path.read_text()]
    return tuple(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found)


if __name__ == "__main__":
    print(fault_build())
