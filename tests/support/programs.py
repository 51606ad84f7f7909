"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
import sys

from support.harness import PATIENCE

WATCHDOG_S = 500 * PATIENCE  # less than that of the whole test (`support.watchdog`)


def run_program(*command, status=0, timeout=WATCHDOG_S, **options):
    """Run a command, which must end with this status: else the test fails with all that it printed.

    Returns
    -------
    subprocess.CompletedProcess
        With what it printed, as text. ``options`` are those of `subprocess.run`.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def run_python(*arguments, **options):
    """`run_program` with the interpreter of the tests; what it printed to its standard output."""
    return run_program(sys.executable, *arguments, **options).stdout


def run_shmring(*arguments, **options):
    """`run_program` with the command ``shmring``."""
    return run_program(sys.executable, "-m", "shmring", *arguments, **options)


def run_in_launcher(size, *command, **options):
    """`run_python` with ``shmring run`` of so many ranks."""
    return run_python("-m", "shmring", "run", "-n", str(size), *map(str, command), **options)
