"""Run a script or module of JAX, unchanged, with shmring as its collectives on the CPU.

  python -m shmring.jax script.py arguments ...
  python -m shmring.jax -m package.module arguments ...

`shmring run --jax -n N script.py` starts N processes of it, which a bare jax.distributed.initialize() connects.
"""

from __future__ import annotations

import os
import runpy
import sys

from shmring.jax.environment import prepare


def main() -> int | None:
    """Run the program in this process, as ``__main__``; returns 2 if none was given."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    command = arguments[is_module:]
    if not command or command[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    prepare()
    sys.argv = command
    try:
        if is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
            runpy.run_path(command[0], run_name="__main__")
    finally:
        if os.environ.get("RANK") == "0" and "SHMRING_SESSION" in os.environ:
            _show_if_apart(command[0], int(os.environ["WORLD_SIZE"]))
    return None


def _show_if_apart(program: str, nprocesses: int) -> None:
    """Print that the processes of a job were none for JAX, if so."""
    distributed = sys.modules.get("jax._src.distributed")
    if nprocesses > 1 and distributed and distributed.global_state.coordinator_address is None:
        print(
            f"shmring run --jax: {program} has not called jax.distributed.initialize(): its {nprocesses} processes ran "
            "apart, each as a job of its own",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
