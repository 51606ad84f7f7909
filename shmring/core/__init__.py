"""How processes share memory and wait for each other; each room imports only from rooms below it."""

from importlib.util import find_spec
from sys import platform

# Here, not in `shmring` itself: torch imports that by the entry point, and must not fail beside a source tree.
if platform == "linux" and find_spec("shmring.communicator") is None:
    raise ImportError(
        f"shmring is not compiled here ({__path__[0]}): this is its source tree. Install it with "
        "`pip install .` and import it from elsewhere, or build it in place with `python setup.py build_ext --inplace`"
    )
