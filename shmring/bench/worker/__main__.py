"""Start this package in an interpreter that need not have shmring: ``python PATH/worker ORDER ...``."""

import importlib
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "shmring_bench_worker"


def load():
    """Import this folder as a package of its own, independent of other packages of the interpreter."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]  # its modules are not top-level
    spec = importlib.util.spec_from_file_location(NAME, HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


if __name__ == "__main__":
    load()
    order, arguments = sys.argv[1], sys.argv[2:]
    sys.exit(importlib.import_module(f"{NAME}.{order}").main(*arguments))
