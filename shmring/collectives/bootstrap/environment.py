"""The environment variables of launchers: rank and size of this process, and the key that all ranks of a job share.

Pure, but for one system call (`_launching_process`), which a test may replace. The variables were read off the
launchers themselves; ``docs/launching.md`` has the table.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shmring.core.base.sysfs import stat_fields

_SEVERAL = (
    "for all of them use shmring.from_mpi() under mpiexec or srun, or torch.distributed with the backend 'shmring' "
    "(docs/several-machines.md)"
)
HOW_TO_SAY = (
    "start the ranks with `shmring run -n N program.py`, torchrun, mpirun or srun, call shmring.spawn(fn, N), or give "
    "init(rank=, size=, session=); for one rank alone: `shmring run -n 1 program.py`, or init(rank=0, size=1)"
)


class Job(NamedTuple):
    """The place of this process in its job.

    ``session`` is equal on all ranks of a job and differs between two jobs that are alive at the same time on one
    machine. ``launcher`` is ``"arguments"`` where no variable was read.
    """

    rank: int
    size: int
    session: str
    launcher: str


class _Family(NamedTuple):
    """The names under which one kind of launcher exports the four numbers; None where it does not."""

    rank: str
    size: str
    local_rank: str | None
    local_size: str | None
    nodes: str | None = None


_TORCH = _Family("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = _Family(
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
)
_PMI = _Family("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SLURM = _Family("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", None, "SLURM_STEP_NUM_NODES")


def discover(
    environ: Mapping[str, str] | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    session: str | None = None,
    launching_process: Callable[[int], str | None] | None = None,
) -> Job:
    """Find this process's rank, the number of ranks and their session key.

    Arguments override the environment. Of several launchers inside one another the one most likely to be innermost is
    taken: ``RANK`` and ``WORLD_SIZE`` (``shmring run``, torchrun, ``env://``) before Open MPI, that before PMI (MPICH,
    Intel MPI), that before Slurm, which also hosts the others.

    ``rank`` and ``size``: both or neither. ``session``: the key, used as it is. ``launching_process``, for tests, takes
    the descriptor in ``PMI_FD`` and returns a text that names the process at its other end, or None. `ValueError` if no
    launcher is recognised, its variables are incomplete or contradict each other (all are named), its ranks are spread
    over several machines, or nothing distinguishes this job from another.
    """
    environ = os.environ if environ is None else environ
    if (rank is None) != (size is None):
        given, missing = ("rank", "size") if size is None else ("size", "rank")
        raise ValueError(f"{given}= was given without {missing}=; give both or neither")
    if rank is not None and size is not None:
        _check_range(rank, size, "rank", "size")
        return Job(rank, size, session or _session_of_arguments(environ, size), "arguments")

    launcher, family = _recognise(environ)
    rank, size = _numbers(environ, family)
    _refuse_other_machines(environ, family, size)
    if session is None:
        session = _session(environ, launcher, launching_process or _launching_process)
    return Job(rank, size, session, launcher)


def detected(environ: Mapping[str, str]) -> str | None:
    """The launcher of the variables that are set, or None. They may be incomplete."""
    try:
        return _recognise(environ)[0]
    except ValueError:
        return None


def rank_variables(rank: int, size: int, session: str) -> dict[str, str]:
    """The variables that this project's own launchers set for a rank; `discover` reads them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "SHMRING_SESSION": session,
    }


def _recognise(environ: Mapping[str, str]) -> tuple[str, _Family]:
    if _TORCH.rank in environ or _TORCH.size in environ:
        if "TORCHELASTIC_RUN_ID" in environ:
            return "torchrun", _TORCH
        return ("shmring" if "SHMRING_SESSION" in environ else "env"), _TORCH
    if _OPENMPI.rank in environ or _OPENMPI.size in environ:
        return "openmpi", _OPENMPI
    if _PMI.rank in environ or _PMI.size in environ:
        # Slurm's own PMI exports no local rank, but the variables of its step.
        alone = _PMI.local_size not in environ and "SLURM_STEP_NUM_NODES" in environ
        family = _PMI._replace(nodes="SLURM_STEP_NUM_NODES") if alone else _PMI
        return ("intelmpi" if "I_MPI_HYDRA_UUID" in environ else "mpich"), family
    # A batch script has SLURM_PROCID=0 too, but it is not one of the ranks; only srun opens a step.
    if _SLURM.rank in environ and ("SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ):
        size = next((name for name in (_SLURM.size, "SLURM_NTASKS", "SLURM_NPROCS") if name in environ), _SLURM.size)
        nodes = next((name for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES") if name in environ), None)
        return "slurm", _SLURM._replace(size=size, nodes=nodes)
    raise ValueError(f"rank and size are unknown: no launcher's variables are set; {HOW_TO_SAY}")


def _numbers(environ: Mapping[str, str], family: _Family) -> tuple[int, int]:
    for name, other in ((family.rank, family.size), (family.size, family.rank)):
        if name not in environ:
            raise ValueError(f"{other}={environ[other]} is set but {name} is not; set both, or {HOW_TO_SAY}")
    rank, size = _integer(environ, family.rank), _integer(environ, family.size)
    _check_range(rank, size, family.rank, family.size)
    return rank, size


def _refuse_other_machines(environ: Mapping[str, str], family: _Family, size: int) -> None:
    if family.nodes and (nodes := _integer(environ, family.nodes)) != 1:
        raise ValueError(
            f"{family.nodes}={nodes}: ranks on other machines cannot be reached through shared memory; {_SEVERAL}, or "
            "make one communicator per machine with init(rank=, size=, session=)"
        )
    if family.local_size is None or family.local_size not in environ:
        return
    local_size = _integer(environ, family.local_size)
    if local_size > size:
        raise ValueError(f"{family.local_size}={local_size} contradicts {family.size}={size}")
    if family.local_rank is not None and family.local_rank in environ:
        _check_range(_integer(environ, family.local_rank), local_size, family.local_rank, family.local_size)
    if local_size != size:
        raise ValueError(
            f"{family.size}={size} but {family.local_size}={local_size}: {size - local_size} ranks are on other "
            f"machines and cannot be reached through shared memory; {_SEVERAL}, or make one communicator per machine "
            f"with init(rank=<{family.local_rank}>, size=<{family.local_size}>, session=<a key per machine>)"
        )


def _session(environ: Mapping[str, str], launcher: str, launching_process: Callable[[int], str | None]) -> str:
    """The key: the launcher's own names for this job and for its restarts, and ``SHMRING_SESSION``, condensed."""
    own = environ.get("SHMRING_SESSION", "")
    parts = [f"{name}={environ[name]}" for name in _IDENTITY[launcher] if environ.get(name)]
    if not parts and not own and launcher == "mpich":
        # Hydra exports no name for the job; but each rank holds a socket that hydra's proxy made.
        proxy = launching_process(_integer(environ, "PMI_FD")) if "PMI_FD" in environ else None
        parts = [proxy] if proxy else []
    if not parts and not own:
        raise ValueError(
            f"nothing that {launcher} exports tells this job from another on this machine "
            f"(looked for {', '.join(_IDENTITY[launcher] or ('SHMRING_SESSION',))}); "
            "set SHMRING_SESSION to the same fresh text on all ranks, or give init(session=)"
        )
    return _condense(launcher, [own, *parts]) if parts else own


_IDENTITY = {
    "shmring": (),
    # The restart count: a restarted gang must never meet what its predecessor left behind.
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "env": ("MASTER_ADDR", "MASTER_PORT"),
    "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "intelmpi": ("I_MPI_HYDRA_UUID",),
    "mpich": ("PMI_JOBID",),
    # A requeued job keeps its id and counts its steps from 0 again.
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_RESTART_COUNT"),
}


def _session_of_arguments(environ: Mapping[str, str], size: int) -> str:
    if own := environ.get("SHMRING_SESSION"):
        return own
    if size == 1:
        return secrets.token_hex(8)
    raise ValueError(
        "rank= and size= were given without session=: give all ranks the same fresh text, for example "
        "secrets.token_hex(8) made by the process that starts them, or set SHMRING_SESSION"
    )


def _launching_process(descriptor: int) -> str | None:
    """The process that made the socket at ``descriptor``, as the kernel knows it, whatever shells are in between."""
    try:
        end = socket.socket(fileno=descriptor)
        try:
            credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        finally:
            end.detach()  # it is the launcher's and stays open
        pid = struct.unpack("3i", credentials)[0]
        start_time = stat_fields(pid)[19]
    except (OSError, AttributeError, IndexError):
        return None
    return f"pid={pid} start_time={start_time}"


def _condense(launcher: str, parts: list[str]) -> str:
    # Letters and digits alone, of bounded length: the key becomes part of segment names.
    return launcher + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name}={environ[name]!r} is not an integer") from None


def _check_range(rank: int, size: int, rank_name: str | None, size_name: str) -> None:
    if size < 1:
        raise ValueError(f"{size_name}={size} must be at least 1")
    if not 0 <= rank < size:
        raise ValueError(f"{rank_name}={rank} must be at least 0 and less than {size_name}={size}")
