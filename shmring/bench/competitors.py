"""The competitors: which implementations the given interpreters have, and how each is launched.

Every competitor gets the settings that its manual recommends for the ranks of one machine, and no advantage over the
others. ``docs/maintainers/benchmark-method.md`` lists the settings.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import shmring
from shmring.bootstrap.environment import rank_variables

WORKER = Path(__file__).with_name("worker")
PROBE_PATIENCE_S = 600.0  # building an operator takes a minute, or several on a loaded machine

CEILING = "ceiling"
OURS = ("shmring", "shared", "share", "plan", "torch-shmring", "shmring-channel", "shmring-queue")


def is_ours(name: str) -> bool:
    """Whether a competitor of this name is shmring, in one of its forms."""
    return name.partition("@")[0] in OURS


@dataclass(frozen=True)
class RankLayout:
    """The number of ranks, and the processors of each rank (None: all)."""

    size: int
    processors: tuple[tuple[int, ...], ...] | None
    nprocessors: int
    """Number of processors for all ranks."""

    @property
    def crowded(self) -> bool:
        """Whether there are more ranks than processors, so that waiting ranks must yield."""
        return self.size > self.nprocessors

    @property
    def threads(self) -> int:
        """Processors per rank."""
        return 1 if self.processors is not None else max(1, self.nprocessors // self.size)


Commands = Iterable[tuple[list[str], dict[str, str]]]


@dataclass(frozen=True)
class Competitor:
    """One implementation: its name in the tables, and how to start it."""

    name: str
    title: str
    python: str
    launch: Callable[[Competitor, RankLayout, list[str], Path], Commands]
    task: Mapping[str, Any] = field(default_factory=dict)
    has_own_threads: bool = False
    """Whether it communicates in threads of its own, which would compete with the caller on one processor."""

    @property
    def is_ours(self) -> bool:
        """Whether this is shmring, in one of its forms."""
        return is_ours(self.name)

    def commands(self, layout: RankLayout, address: str, folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
        """The commands that start its ranks, each with its environment."""
        common = {
            **os.environ,
            "TMPDIR": str(folder),  # temporary files of libraries are removed with the folder
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(layout.threads),
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self.python == sys.executable:  # shmring may be run from its source folder instead of being installed
            path = [str(Path(shmring.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            common["PYTHONPATH"] = os.pathsep.join(path)
        for command, variables in self.launch(self, layout, [address], folder):
            yield command, {**common, **variables}

    def task_of(self, layout: RankLayout, rank: int, folder: Path) -> dict[str, Any]:
        """The task that is sent to a rank."""
        bound = None if layout.processors is None or self.has_own_threads else layout.processors[rank]
        return {
            "size": layout.size,
            "processors": bound,
            "nprocessors": layout.nprocessors,
            "threads": layout.threads,
            "folder": str(folder),
            **self.task,
        }


def find(pythons: Mapping[str, str], deepspeed_source: str = "", on_look: Callable[[str], None] = lambda name: None):
    """Find the competitors that interpreters have.

    Parameters
    ----------
    pythons : mapping
        Label and path of each; the label of this interpreter is ``""``.
    deepspeed_source : str
        DeepSpeed's source folder, or ``""`` for that of an installed one.
    on_look : callable
        Called with each label before its interpreter is examined.

    Returns
    -------
    competitors : list of Competitor
        Those of shmring first. Duplicate names carry the label of their interpreter: ``mpich@other``.
    problems : dict
        For each implementation that was found but cannot be used, the reason.
    """
    found: list[tuple[str, Competitor]] = []
    problems: dict[str, str] = {}
    for label, python in pythons.items():
        on_look(label)
        facts = _probe(python, deepspeed_source)
        if "problem" in facts:
            problems[label or "this Python"] = facts["problem"]
            continue
        for key in ("mpi", "torch", "deepspeed"):
            if "problem" in (facts.get(key) or {}):
                problems[f"{key}@{label}" if label else key] = facts[key]["problem"]
                facts[key] = None
        found += [(label, one) for one in _of_interpreter(label, python, facts)]
    names = [one.name for _, one in found]
    renamed = [
        one if names.count(one.name) == 1 or not label else replace(one, name=f"{one.name}@{label}")
        for label, one in found
    ]
    return sorted(renamed, key=lambda one: not one.is_ours), problems


# Name -> the module that is needed, the distribution, the adapter, and its kind.
_CHANNELS = {
    "shmring-channel": ("", "shmring", "shmring_channel", "channel"),
    "shmring-queue": ("", "shmring", "shmring_channel", "queue"),
    "mp-queue": ("", "multiprocessing", "standard", "queue"),
    "mp-simplequeue": ("", "multiprocessing", "standard", "simple queue"),
    "mp-pipe": ("", "multiprocessing", "standard", "pipe"),
    "faster-fifo": ("faster_fifo", "faster-fifo", "fifo", ""),
    "pyzmq": ("zmq", "pyzmq", "zeromq", ""),
    "iceoryx2": ("iceoryx2", "iceoryx2", "iceoryx", ""),
}


def find_channels(rows: Sequence[tuple[str, int]]) -> tuple[list[Competitor], dict[str, str]]:
    """The libraries of this interpreter that move messages between two processes, and why others cannot take part.

    ``rows`` are the measurements and the bytes of their messages: connections are made for each before the processes
    fork.
    """
    found, problems = [], {}
    for name, (module, distribution, backend, kind) in _CHANNELS.items():
        if module and importlib.util.find_spec(module) is None:
            problems[name] = "it is not installed"
            continue
        versions = {"shmring": shmring.__version__, "multiprocessing": f"Python {platform.python_version()}"}
        version = versions.get(distribution) or metadata.version(distribution)
        task = {"backend": backend, "kind": kind, "rows": list(rows)}
        found.append(Competitor(name, f"{distribution} {version}", sys.executable, _by_fork, task))
    return found, problems


def ceiling() -> Competitor:
    """The copy and round-trip measurement of the machine, timed like a competitor."""
    return Competitor(CEILING, "copy", sys.executable, _by_hand, {"backend": "ceiling"})


def _of_interpreter(label: str, python: str, facts: dict) -> Iterator[Competitor]:
    if not label or facts["shmring"]:
        title = f"shmring {shmring.__version__}" if not label else "shmring"
        for name, kind in (("shmring", "private"), ("shared", "shared"), ("share", "share"), ("plan", "plan")):
            yield Competitor(name, title, python, _by_hand, {"backend": "ours", "kind": kind})
    if mpi := facts["mpi"]:
        flavour = next((_MPI[name] for name in _MPI if mpi["title"].startswith(name)), None)
        if flavour is not None:
            yield Competitor(flavour, mpi["title"], python, _by_mpiexec, {"backend": "mpi"})
    if torch := facts["torch"]:
        for group in ("gloo", "shmring"):
            if group in torch["groups"]:
                name = "gloo" if group == "gloo" else "torch-shmring"
                task = {"backend": "gloo", "group": group}
                yield Competitor(name, f"torch {torch['version']}", python, _by_hand, task, group == "gloo")
    if deepspeed := facts.get("deepspeed"):
        yield Competitor("deepspeed", "DeepSpeed", python, _by_hand, {"backend": "deepspeed", **deepspeed})
    if not label:
        yield Competitor("pipes", "multiprocessing", python, _by_hand, {"backend": "pipes"})


def _probe(python: str, deepspeed_source: str) -> dict:
    command = [python, str(WORKER), "probe", deepspeed_source]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_PATIENCE_S, check=False)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": str(error)}
    except (IndexError, ValueError):
        return {"problem": f"{python} did not list its packages: {done.stderr.strip()[-200:]}"}


# ---- launchers ---------------------------------------------------------------------------------------------------


def _by_hand(one: Competitor, layout: RankLayout, address: list[str], folder: Path) -> Commands:
    """One process for each rank, with the variables of torchrun but without its agent, which never sleeps."""
    common = {
        "MASTER_ADDR": address[0],  # not connected to; DeepSpeed derives the names of its segments from it
        "MASTER_PORT": "0",
        "LOCAL_SIZE": str(layout.size),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for rank in range(layout.size):
        variables = {**common, **rank_variables(rank, layout.size, address[0])}
        yield [one.python, str(WORKER), "rank", *address], variables


def _by_fork(one: Competitor, layout: RankLayout, address: list[str], folder: Path) -> Commands:
    """One process, which connects the ranks and then forks all but the first."""
    yield [one.python, str(WORKER), "fork", *address, json.dumps({"size": layout.size, **one.task})], {}


_MPI = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intelmpi"}

# The benchmark binds the ranks of all competitors in the same way, so launchers must not.
_MPI_OPTIONS = {
    "mpich": (["-bind-to", "none"], {}),
    "openmpi": (
        ["--oversubscribe", "--bind-to", "none"],
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
    "intelmpi": ([], {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}),
}
_MPI_CROWDED = {
    "mpich": {},
    "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
    "intelmpi": {"I_MPI_THREAD_YIELD": "2"},
}


def _by_mpiexec(one: Competitor, layout: RankLayout, address: list[str], folder: Path) -> Commands:
    flavour = one.name.partition("@")[0]
    beside = Path(one.python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    options, variables = _MPI_OPTIONS[flavour]
    crowded = _MPI_CROWDED[flavour] if layout.crowded else {}
    command = [mpiexec, *options, "-n", str(layout.size), one.python, str(WORKER), "rank", *address]
    yield command, {**variables, **crowded}
