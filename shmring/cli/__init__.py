"""The command line: ``shmring COMMAND ...``, one module for each command.

A command's module has ``add_arguments(parser)`` and ``main(args) -> int``, and its docstring is the command's help.
Only the module of the command at hand is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from shmring.errors import ShmringError
from shmring.version import __version__

from .arguments import BadArgument
from .settings import check

COMMANDS = {
    "run": "run a script, module or program in N ranks",
    "top": "the running jobs: what each rank does, and which ranks keep the others",
    "dump": "explain a job that hangs",
    "trace": "merge and summarize the timelines that a job has recorded",
    "info": "kernels, topology, limits, launcher, leftovers of dead jobs",
    "selftest": "check that shmring works on this machine and in this container",
    "demo": "train a small network in several processes, and check the result",
    "bench": "time shmring beside gloo and MPI, where they are installed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 1 if it failed, 2 if an argument or a setting is invalid.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; ``sys.argv[1:]`` if not given.

    Notes
    -----
    An error that is neither of an argument, nor of a setting, nor of the system, is a defect, and keeps its traceback.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed, as by `>&-`
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115  (kept open)
    if not argv or argv[0] not in COMMANDS:
        _overview().parse_args(argv or ["--help"])
        return 2  # not reached: argparse exits with its own status
    name = argv[0]
    try:
        check(name)
        module = importlib.import_module(f".{name}", __name__)
        parser = argparse.ArgumentParser(
            prog=f"shmring {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(parser)
        status = module.main(parser.parse_args(argv[1:]))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except BadArgument as error:
        print(f"shmring {name}: {error}", file=sys.stderr)
        return 2
    except (ShmringError, OSError) as error:
        print(f"shmring {name}: {error}", file=sys.stderr)
        _discard_output()
        return 1


def _discard_output() -> None:
    """Let the interpreter's last flush succeed after one that failed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<8} {what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="shmring",
        description="Communication engine for processes that share one machine.",
        epilog=f"commands:\n{lines}\n\n`shmring COMMAND --help` shows the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shmring {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return parser
