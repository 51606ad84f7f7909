"""The command lines that pages and programs print, as a new user types them: in a checkout that is not compiled.

A command that takes long gets options behind it which shorten it; of a command of pytest the tests are only collected.
"""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support import mpi
from support.command_lines import command_lines
from support.installed import ROOT
from support.programs import run_program

import shmring

BENCH = "--cycles 1 --slice 1 --sizes 8 --peers none"


class Way(NamedTuple):
    """How a command is run."""

    more: str = ""
    """What shortens it."""
    module: str = ""
    """What it needs besides."""
    mark: str = ""


# The first that matches a line from its beginning; a line that none here nor below matches is an error.
RUN = {
    r"python -m pytest bench/bench_tensors": Way("--collect-only -q -p no:cacheprovider", "torch", "torch"),
    r"(SHMRING_\S+ )*(python -m )?pytest\b": Way("--collect-only -q -p no:cacheprovider", "pytest_benchmark"),
    r"shmring bench .*--list": Way(),
    r"shmring bench .*--plot": Way(BENCH.replace("--sizes 8", "--sizes 8,16"), "matplotlib"),
    r"shmring bench --channels": Way("--cycles 1 --slice 1 --op message --sizes 8 --peers none"),
    r"shmring bench": Way(BENCH),
    r"shmring top": Way("--once"),
    r"shmring run --jax -n 4 script": Way("", "jax", "jax"),
    r".*bench_(torch|inference)\.py": Way("--help", "torch", "torch"),
    r".*bench_nodes\.py.*--wire gloo": Way("--cycles 1 --sizes 4", "torch", "torch"),
    r"mpiexec .*bench_nodes\.py": Way("--cycles 1 --sizes 4", "", "mpi"),
    r"mpiexec (?!.*--hosts)": Way("", "", "mpi"),
    r".*torchrun": Way("", "torch", "torch"),
    r"python bench/bench_jax\.py": Way("--cycles 1 --sizes 4096 --turns 1 --turn 0.01", "jax", "jax"),
    r"python bench/bench_calls\.py": Way("--cycles 1"),
    r"python bench/bench_choices\.py": Way("--ranks 2 --calls broadcast --sizes 65536 --shared 0 --seconds 0.1"),
    r"python bench/bench_kernels\.py": Way("land"),
    r"python bench/bench_launchers\.py": Way("--help", "torch", "torch"),
    r"python bench/bench_multiprocessing\.py loaders": Way('"one tensor of 10 MB"', "torch", "torch"),
    r"python bench/bench_multiprocessing\.py": Way("", "torch", "torch"),
    r"python bench/bench_shared_arrays\.py": Way("--kinds all_reduce --sizes 64K"),
    r"python several_machines|shmring info|shmring run -n 4 (--bind core )?(script|several)": Way(),
    r"python tests/hostile/attack\.py cycles": Way(),
    r"python tests/soak/kills\.py": Way("--jobs 2"),
    r"python tools/plan_tables\.py predict .*--plot": Way("--sizes 16K", "matplotlib"),
    r"python tools/plan_tables\.py predict": Way("--sizes 16K"),
    r"python tools/mutations\.py": Way("--help"),
    r"python tools/(plan_tables\.py show|readme_chart)": Way(),
}

# Those that other tests run, and those that cannot be run here.
NOT_HERE = {
    ".ci/run": r"pip install|python3 -m venv|ruff |sphinx-build|python setup\.py|\.ci/run",
    ".ci/run, or all tests": r"(python -m )?pytest( -m \w+| tests/unit| bench --benchmark-disable)?$",
    "tests/multiproc/watch": r"shmring dump",
    "tests/hostile": r"python tests/hostile/attack\.py (states|all)",
    "tests/multiproc/cli": r"shmring (selftest|demo)",
    "test_documents.py": r"shmring (trace|run -n 4 (train|-m|--tag))|SHMRING_(DUMP_SIGNAL|TRACE)=",
    "test_examples.py and those of frameworks": r"python examples/|.*shmring run .* examples/",
    "a model of vLLM": r"(SHMRING_VLLM=1 )?python -m vllm|export SHMRING_VLLM|python bench/bench_vllm_queue",
    "two machines": r"mpiexec .*--hosts",
    "a build with injection points": r"python tests/faults/report\.py",
    "minutes of a quiet machine": r"python tools/(watching_pictures|stored_run)|shmring bench (--channels )?--json",
}

# Programs of the user.
RANKS = "import shmring\nwith shmring.init() as comm:\n    comm.barrier()\n"
JAX = "import jax\njax.distributed.initialize()\nprint(jax.process_count())\n"
TORCH = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"


def way_of(text):
    """None: it is not run here."""
    if any(re.match(start, text) for start in NOT_HERE.values()):
        return None
    for start, way in RUN.items():
        if re.match(start, text):
            return way
    raise ValueError(f"a page prints {text!r}: neither RUN nor NOT_HERE has it")


def shortened():
    """Each command once, as it is run here."""
    ways = {line.text: way_of(line.text) for line in command_lines()}
    unique = {f"{text} {way.more}".rstrip(): way for text, way in ways.items() if way}
    return [pytest.param(text, way, marks=[getattr(pytest.mark, way.mark)] if way.mark else [], id=text)
            for text, way in unique.items()]  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """This checkout as git has it."""
    folder = tmp_path_factory.mktemp("new") / "checkout"
    built = shutil.ignore_patterns("*.so", "*.html", "__pycache__", ".git", "build", "*.egg-info", ".*_cache", ".venv")
    shutil.copytree(ROOT, folder, ignore=built, symlinks=True)
    return folder


def commands_in(folder, python):
    """``python``, ``shmring`` and ``pytest`` of one interpreter, as its environment has them."""
    texts = {
        "python": f'#!/bin/sh\nexec "{python}" "$@"\n',
        "shmring": f"#!{python}\nimport sys\nfrom shmring.cli import main\nsys.exit(main())\n",
        "pytest": f"#!{python}\nimport sys, pytest\nsys.exit(pytest.console_main())\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("text", "way"), shortened())
def test_a_printed_command_line_works(text, way, checkout, tmp_path):
    if way.module and importlib.util.find_spec(way.module) is None:
        pytest.skip(f"needs {way.module}")
    python = mpi.PYTHONS[0] if way.mark == "mpi" and mpi.PYTHONS else sys.executable
    if way.mark == "mpi" and not mpi.PYTHONS:
        pytest.skip("needs an MPI")
    commands_in(tmp_path, python)
    for label in ("mpich", "openmpi"):  # of `shmring bench --python`
        (tmp_path / label / "bin").mkdir(parents=True)
        shutil.copy(tmp_path / "python", tmp_path / label / "bin")
    (tmp_path / "script.py").write_text(JAX if way.mark == "jax" else RANKS)
    (tmp_path / "train.py").write_text(TORCH)
    environ = mpi.environment() if way.mark == "mpi" else {**os.environ, "OMP_NUM_THREADS": "1"}
    environ["PATH"] = os.pathsep.join([str(tmp_path), str(Path(python).parent), environ["PATH"]])
    # As if it were installed there.
    environ |= {"PYTHONPATH": str(Path(shmring.__file__).parents[1]), "HOME": str(tmp_path)}
    is_own = re.search(r" (script|train)\.py", text)  # a program of the user, in a folder of theirs
    where = tmp_path if is_own else checkout / "examples" if "several_machines" in text else checkout
    run_program("/bin/sh", "-c", text, cwd=where, env=environ)

