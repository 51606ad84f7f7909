"""Who can compete here: what the interpreters at hand have, and how each competitor is launched.

Every competitor gets what its own manual would advise for ranks of one machine, and nothing that the others do not get
too. What is set is set here, and ``docs/benchmarks.md`` repeats it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import shmring
from shmring.bootstrap.environment import rank_variables

WORKER = Path(__file__).with_name("worker")
PROBE_PATIENCE_S = 600.0  # building an operator takes a minute, on a loaded machine some

CEILING = "ceiling"
OURS = ("shmring", "shared", "plan", "torch-shmring")


@dataclass(frozen=True)
class Stage:
    """Where all perform: how many ranks, and which processors each may use (None: all)."""

    size: int
    processors: tuple[tuple[int, ...], ...] | None
    nprocessors: int
    """How many there are for all ranks."""

    @property
    def crowded(self) -> bool:
        """More ranks than processors: who waits has to make room."""
        return self.size > self.nprocessors

    @property
    def threads(self) -> int:
        """Processors for each rank."""
        return 1 if self.processors is not None else max(1, self.nprocessors // self.size)


Commands = Iterable[tuple[list[str], dict[str, str]]]


@dataclass(frozen=True)
class Competitor:
    """One way to do it: its name in the tables, and what it takes to start it."""

    name: str
    title: str
    python: str
    launch: Callable[[Competitor, Stage, list[str], Path], Commands]
    task: Mapping[str, Any] = field(default_factory=dict)
    has_own_threads: bool = False
    """It communicates in threads of its own, which on one processor would be in the caller's way."""

    @property
    def is_ours(self) -> bool:
        """Whether this is shmring, in one of its ways."""
        return self.name.partition("@")[0] in OURS

    def commands(self, stage: Stage, address: str, folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
        """The commands that start its ranks, each with its whole environment."""
        common = {
            **os.environ,
            "TMPDIR": str(folder),  # what libraries put there goes with it
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(stage.threads),
            "OPENBLAS_NUM_THREADS": "1",
        }
        for command, variables in self.launch(self, stage, [address], folder):
            yield command, {**common, **variables}

    def task_of(self, stage: Stage, rank: int, folder: Path) -> dict[str, Any]:
        """What a rank is told to be."""
        bound = None if stage.processors is None or self.has_own_threads else stage.processors[rank]
        return {
            "size": stage.size,
            "processors": bound,
            "nprocessors": stage.nprocessors,
            "threads": stage.threads,
            "folder": str(folder),
            **self.task,
        }


def find(pythons: Mapping[str, str], deepspeed_source: str = "", on_look: Callable[[str], None] = lambda name: None):
    """Look into interpreters for competitors.

    Parameters
    ----------
    pythons : mapping
        Label and path of each; this one is called ``""``.
    deepspeed_source : str
        DeepSpeed's source folder, or ``""`` for that of an installed one.
    on_look : callable
        Told each label before its interpreter is looked into.

    Returns
    -------
    competitors : list of Competitor
        Ours first. Those of the same name carry their interpreter's label: ``mpich@other``.
    problems : dict
        What looked as if it could compete and why it cannot.
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


def ceiling() -> Competitor:
    """The machine itself, which takes part like everybody else."""
    return Competitor(CEILING, "copy", sys.executable, _by_shmring, {"backend": "ceiling"})


def _of_interpreter(label: str, python: str, facts: dict) -> Iterator[Competitor]:
    if not label or facts["shmring"]:
        title = f"shmring {shmring.__version__}" if not label else "shmring"
        for name, kind in (("shmring", "private"), ("shared", "shared"), ("plan", "plan")):
            yield Competitor(name, title, python, _by_shmring, {"backend": "ours", "kind": kind})
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
        yield Competitor("pipes", "multiprocessing", python, _by_pipes, {"backend": "pipes"})


def _probe(python: str, deepspeed_source: str) -> dict:
    command = [python, str(WORKER), "probe", deepspeed_source]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_PATIENCE_S, check=False)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": str(error)}
    except (IndexError, ValueError):
        return {"problem": f"{python} said nothing of what it has: {done.stderr.strip()[-200:]}"}


# ---- launchers ---------------------------------------------------------------------------------------------------


def _by_shmring(one: Competitor, stage: Stage, address: list[str], folder: Path) -> Commands:
    run = [one.python, "-m", "shmring", "run", "-n", str(stage.size), "--"]
    variables = {}
    if one.python == sys.executable:  # perhaps it is not installed but run from where it lies
        path = [str(Path(shmring.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(path)
    yield [*run, one.python, str(WORKER), "rank", *address], variables


def _by_hand(one: Competitor, stage: Stage, address: list[str], folder: Path) -> Commands:
    """One process for each rank, with torchrun's variables but without its agent, which would never sleep."""
    common = {
        "MASTER_ADDR": address[0],  # nobody connects: DeepSpeed makes the names of its segments from it
        "MASTER_PORT": "0",
        "LOCAL_SIZE": str(stage.size),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for rank in range(stage.size):
        variables = {**common, **rank_variables(rank, stage.size, address[0])}
        yield [one.python, str(WORKER), "rank", *address], variables


def _by_pipes(one: Competitor, stage: Stage, address: list[str], folder: Path) -> Commands:
    yield [one.python, str(WORKER), "pipes", *address, str(stage.size)], {}


_MPI = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intelmpi"}

# Ranks are bound by this program, all competitors' alike, so the launchers shall not.
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


def _by_mpiexec(one: Competitor, stage: Stage, address: list[str], folder: Path) -> Commands:
    flavour = one.name.partition("@")[0]
    beside = Path(one.python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    options, variables = _MPI_OPTIONS[flavour]
    crowded = _MPI_CROWDED[flavour] if stage.crowded else {}
    command = [mpiexec, *options, "-n", str(stage.size), one.python, str(WORKER), "rank", *address]
    yield command, {**variables, **crowded}
