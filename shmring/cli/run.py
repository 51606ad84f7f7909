"""Run a Python script, a module or any program in N ranks that find each other with shmring.init().

  shmring run -n 4 train.py --epochs 3
  shmring run -n 4 -m package.module
  shmring run -n 4 --tag-output -- ./program
  shmring run -n 4 --jax train.py
  shmring run -n 4 --nodes 2 train.py
  shmring run -n 4 --nodes 2 --mpi program.py

When a rank fails the others are ended, and its status (128 + N if signal N killed it) is the status of the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from shmring.core.placement.cpu_binding import UNITS
from shmring.launch.run import run
from shmring.nodes.discovery import FORCED_COUNT

from .arguments import BadArgument, limit, ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring run``."""
    parser.add_argument("-n", "--ranks", type=ranks, required=True, metavar="N", help="number of ranks")
    parser.add_argument(
        "-m", "--module", action="store_true", help="the command is the name of a module, as in python -m"
    )
    parser.add_argument(
        "--jax",
        action="store_true",
        help="a script or module of JAX, the collectives of which run over shmring (docs/jax.md)",
    )
    parser.add_argument(
        "--nodes",
        type=ranks,
        metavar="K",
        help="the ranks behave as if on K machines, for trying programs: torch.distributed over gloo, or with --mpi",
    )
    parser.add_argument(
        "--mpi",
        action="store_true",
        help="start the ranks by mpiexec, for shmring.from_mpi(); --tag-output, --bind and --grace are ignored",
    )
    parser.add_argument(
        "--tag-output", "--prefix", action="store_true", help="prefix each output line with the [rank] that wrote it"
    )
    parser.add_argument(
        "--bind", choices=UNITS, default="none", help="bind each rank to one core, last-level cache or NUMA node"
    )
    parser.add_argument(
        "--grace", type=limit, default=5.0, metavar="SECONDS", help="from SIGTERM to SIGKILL (default: %(default)s)"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="[--] command ...", help="script.py, module or program; arguments"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command; returns 127 or 126, as a shell does, if it does not exist or is not executable."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command or not command[0]:
        print("shmring run: no command given: expected a script, `-m MODULE`, or a program", file=sys.stderr)
        return 2
    try:
        command = _complete(command, args.module, args.jax)
        if args.nodes is not None:
            if args.nodes > args.ranks:
                raise BadArgument(f"--nodes {args.nodes}: at most as many as there are ranks, {args.ranks}")
            os.environ[FORCED_COUNT] = str(args.nodes)
        if args.mpi:
            _become_mpiexec(args.ranks, command)
        status = run(command, args.ranks, tag_output=args.tag_output, bind=args.bind, grace=args.grace)
        if status and not args.jax and _needs_jax_option(command):
            print(
                f"shmring run: {command[1]} calls jax.distributed.initialize() without arguments, which finds the "
                "other ranks if the program is started by `shmring run --jax`",
                file=sys.stderr,
            )
        return status
    except (FileNotFoundError, PermissionError) as error:
        print(f"shmring run: {error.filename or command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _needs_jax_option(command: list[str]) -> bool:
    """Whether a script calls JAX's initialize without arguments. Called once it has failed."""
    if len(command) < 2 or not command[1].endswith(".py"):
        return False
    try:
        text = Path(command[1]).read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"distributed\.initialize\(\s*\)", text) is not None


def _become_mpiexec(size: int, command: list[str]) -> NoReturn:
    """Replace this process by the mpiexec of this interpreter's environment, or the one found by PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if mpiexec is None:
        raise FileNotFoundError(2, "no mpiexec: install an MPI, for instance pip install mpich mpi4py", "mpiexec")
    sys.stdout.flush()
    os.execv(mpiexec, [mpiexec, "-n", str(size), *command])


def _complete(command: list[str], is_module: bool, is_jax: bool) -> list[str]:
    python = [sys.executable, "-m", "shmring.jax"] if is_jax else [sys.executable]
    if is_module:
        return [*python, "-m", *command]
    if command[0].endswith((".py", ".pyc", ".pyz")) or os.path.isdir(command[0]):
        if not os.path.exists(command[0]):
            raise FileNotFoundError(2, "no such script", command[0])
        return [*python, *command]
    if is_jax:
        raise BadArgument(f"--jax takes a script (.py) or -m MODULE, not {command[0]}: it has to be there before jax")
    return command
