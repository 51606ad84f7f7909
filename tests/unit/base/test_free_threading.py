"""On a free-threaded Python no module of shmring enables the GIL."""

import pkgutil
import sysconfig

import pytest
from support.programs import run_python

import shmring

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# What they import are packages of others, which may enable it.
GUESTS = ("shmring.torch", "shmring.jax", "shmring.vllm", "shmring.nodes")


def test_the_compiled_code_knows_whether_there_is_a_gil():
    from shmring.core.sync.turn import IS_FREE_THREADED

    assert IS_FREE_THREADED == FREE_THREADED


@pytest.mark.skipif(not FREE_THREADED, reason="this Python has the GIL")
def test_no_module_enables_the_gil():
    names = [
        module.name
        for module in pkgutil.walk_packages(shmring.__path__, "shmring.")
        if not module.name.startswith(GUESTS) and not module.name.endswith("__main__")
    ]
    assert "shmring.collectives.engine.engine" in names
    program = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    assert not sys._is_gil_enabled(), name\n"
    )
    run_python("-W", "error::RuntimeWarning", "-c", program)
