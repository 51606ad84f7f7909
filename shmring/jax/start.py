"""`initialize`: JAX's distributed client, with shmring as the collectives of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shmring.config import configure
from shmring.jax import environment, world


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Call `jax.distributed.initialize` so that JAX's collectives on the CPU run over shmring.

    Parameters
    ----------
    coordinator_address : str, optional
        ``host:port`` at which process 0 listens.
    num_processes, process_id : int, optional
        These three are JAX's own arguments. Under ``shmring run`` all may be left out; elsewhere JAX looks for a
        cluster that it knows (Slurm, Open MPI).
    settings : mapping, optional
        Fields of `shmring.config.Config` for the communicators: ``{"timeout": 60}``. Equal on all processes; they
        override the variables ``SHMRING_*``.
    **options
        Further arguments of `jax.distributed.initialize`, ``initialization_timeout`` for example.

    Raises
    ------
    TypeError, ValueError
        A bad setting; or an error of JAX, if arguments are missing and JAX finds no cluster.
    RuntimeError
        jax was imported earlier without the variables; or an error of JAX, if a computation has run or JAX is
        initialized.

    Notes
    -----
    Call it before the first ``import jax``, once in each process. Blocks until all processes have called. They must
    have one CPU device each and share one machine and ``/dev/shm``; that is checked when JAX makes its CPU backend, as
    at the first computation. Nothing else of a program changes: see ``docs/jax.md``.

    Examples
    --------
    ``shmring.jax.initialize("127.0.0.1:9876", 2, rank); import jax``
    """
    given = dict(settings or {})
    configure(**given)  # raises here, not in the first computation
    environment.prepare()
    import jax

    environment.check_opened()
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    world.settings.clear()
    world.settings.update(given)
    jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
