"""A build of shmring with injection points, beside the one under test: `python tests/faults/fault_build.py` makes it.

It lies in ``build/faults/`` of the checkout, one directory for each state of the sources, and is made anew only when
they have changed. Needs what every build from a checkout needs: a C compiler, Cython and setuptools.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("*.py", "*.pyx", "*.pxd", "_c/*.h", "plan/*.py")


def fault_build() -> str:
    """The directory that holds the ``shmring`` with injection points; made if need be, in a minute or two.

    Raises
    ------
    RuntimeError
        It cannot be built here; the text has what the build said.
    """
    files = [ROOT / "setup.py", *(path for pattern in SOURCES for path in sorted((ROOT / "shmring").glob(pattern)))]
    digest = hashlib.blake2b(sys.version.encode(), digest_size=8)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    place = ROOT / "build" / "faults" / digest.hexdigest()
    if place.is_dir():
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="under-way-") as work:
        for path in files:
            copy = Path(work, "tree", path.relative_to(ROOT))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=Path(work, "tree"), env={**os.environ, "SHMRING_FAULTS": "1", "SHMRING_SANITIZE": ""},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        if done.returncode:
            raise RuntimeError(f"cannot build shmring with injection points:\n{done.stdout[-3000:]}")
        shutil.rmtree(Path(work, "tree", "build"), ignore_errors=True)
        for old in place.parent.glob("[0-9a-f]*"):  # of other states of the sources
            shutil.rmtree(old, ignore_errors=True)
        os.rename(Path(work, "tree"), place)
    return str(place)


if __name__ == "__main__":
    print(fault_build())
