"""The collectives and messages of a communicator for C, C++ and Cython: a table of functions, without linking.

``shmring/capi.h`` below `get_include()` declares it; ``docs/embedding.md`` has the rules and a complete program.
"""

from shmring.capi.table import _C_API, table_address  # the header's shmring_import() looks the capsule up here

__all__ = ["_C_API", "get_include", "table_address"]


def get_include() -> str:
    """Return the folder that must be on the include path for ``#include "shmring/capi.h"``.

    Returns
    -------
    str
        Cython needs the same folder for ``from shmring.capi cimport ...``.

    Examples
    --------
    ``Extension("solver", ["solver.c"], include_dirs=[shmring.capi.get_include()])``
    """
    return f"{__path__[0]}/include"
