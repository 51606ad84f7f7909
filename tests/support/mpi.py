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

from support.namespaces import CABLE, Room


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
    """Run ``python *command`` in ``n`` ranks. What MPICH leaves in /dev/shm where a rank was killed is removed."""
    beside = Path(python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    try:
        return subprocess.run(
            [mpiexec, *options, "-n", str(n), python, *command],
            capture_output=True,
            text=True,
            timeout=300,
            env={**environment(), **(env or {})},
        )
    finally:
        for left in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
            left.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """That of this process, with what lets ranks share processors under any MPI."""
    more = {
        "I_MPI_FABRICS": "shm",
        "I_MPI_PIN": "0",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_THREAD_YIELD": "2",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **more}


def start_on(machines: tuple[Room, Room], folder: Path, python: str, n: int, *command: str) -> subprocess.Popen:
    """Start ``python *command`` in ``n`` ranks of MPICH on each of the machines of `namespaces.two_machines`."""
    agent = folder / "agent"  # in place of ssh: options, a host, a command
    agent.write_text(
        "#!/bin/bash\n"
        'while [[ "$1" == -* ]]; do shift; done; shift\n'
        f'exec {" ".join(machines[1].line("bash", "-c"))} "$*"\n'
    )
    agent.chmod(0o755)
    mpiexec = str(Path(python).parent / "mpiexec")
    hosts = f"10.0.0.1:{n},10.0.0.2:{n}"
    options = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", CABLE, "-hosts", hosts]
    line = machines[0].line(mpiexec, *options, "-n", str(2 * n), python, *command)
    env = {**os.environ, "UCX_NET_DEVICES": CABLE, "UCX_TLS": "tcp,self,sm", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
