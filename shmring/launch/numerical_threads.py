"""The number of threads of the numerical libraries in each rank: a fair share of the processors."""

from __future__ import annotations

from collections.abc import Mapping

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "GOTO_NUM_THREADS",
)
"""The variables that OpenMP, and the libraries of linear algebra under NumPy and torch, read when they are loaded."""

ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")


def thread_share(size: int, processors: float, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that gives each of ``size`` ranks its share of the processors; at least one thread.

    All libraries read OMP_NUM_THREADS where their own variable is not set. Empty if a variable is set already, or if
    one rank has all processors.
    """
    if size == 1 or any(environ.get(name) for name in THREAD_VARIABLES):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, int(processors // size)))}


def thread_share_text(share: Mapping[str, str], size: int) -> str:
    """The line that shows what was set."""
    count = share["OMP_NUM_THREADS"]
    return f"OMP_NUM_THREADS={count} in each of {size} ranks; set it to have another number of threads"
