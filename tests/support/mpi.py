"""Programs under ``mpiexec`` for tests, with every MPI at hand.

``SHMRING_MPI_PYTHONS`` lists interpreters that have mpi4py (and numpy and posix_ipc of the tests' Python). Without
it, that of the tests is used if it has mpi4py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path


def _interpreters() -> list[str]:
    named = os.environ.get("SHMRING_MPI_PYTHONS", "")
    own = [sys.executable] if importlib.util.find_spec("mpi4py") else []
    return [python for python in named.split(os.pathsep) if python] or own


PYTHONS = _interpreters()


def flavour(python: str) -> str:
    """The MPI of an interpreter: ``mpich``, ``openmpi``, ``intelmpi``, or its name."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    text = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60).stdout
    known = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel": "intelmpi"}
    return next((name for start, name in known.items() if start in text[:40]), text[:20])


def run(python: str, n: int, *command: str, options=(), env=None) -> subprocess.CompletedProcess:
    """Run ``python *command`` in ``n`` ranks."""
    beside = Path(python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    more = {
        "I_MPI_FABRICS": "shm", "I_MPI_PIN": "0", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1", "I_MPI_THREAD_YIELD": "2",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [mpiexec, *options, "-n", str(n), python, *command],
        capture_output=True, text=True, timeout=300, env={**os.environ, **more, **(env or {})},
    )  # fmt: skip
