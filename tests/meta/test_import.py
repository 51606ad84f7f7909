"""What `import shmring` loads: little. The rest comes at the first use of what needs it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shmring

# Each costs milliseconds to load; none is needed to start.
HEAVY = {
    "asyncio", "concurrent.futures", "ctypes", "hashlib", "inspect", "jax", "json", "logging", "multiprocessing",
    "secrets", "socket", "ssl", "subprocess", "tempfile", "torch", "uuid",
}  # fmt: skip


def loaded_by(statement):
    """The modules that a statement loads in a new interpreter which has NumPy."""
    program = f"import sys, numpy\nbefore = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def test_importing_shmring_loads_nothing_heavy_and_no_room():
    loaded = loaded_by("import shmring")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.count(".") > 1} == set()


def test_collectives_need_no_asyncio_no_multiprocessing_and_no_channels():
    loaded = loaded_by("import shmring; shmring.init")
    assert not loaded & {"asyncio", "multiprocessing", "subprocess", "tempfile", "torch"}
    assert not any(name.startswith(("shmring.channels", "shmring.cli")) for name in loaded)


def test_every_public_name_is_there_and_listed():
    assert all(getattr(shmring, name) is getattr(shmring, name) for name in shmring.__all__)
    assert set(shmring.__all__) <= set(dir(shmring))
    with pytest.raises(AttributeError, match="no attribute 'chanel'"):
        shmring.chanel  # noqa: B018
    everything = {}
    exec("from shmring import *", everything)
    assert set(shmring.__all__) <= set(everything)


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(shmring.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in checked.body for alias in node.names}
    assert seen == shmring._HOMES


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_type_checkers_see_the_names_of_a_guest_from_its_modules(package):
    tree = ast.parse((Path(shmring.__file__).parent / package / "__init__.py").read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    given = {node.targets[0].id: ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)}
    seen = {alias.name: node.module.removeprefix("shmring.") for node in checked.body for alias in node.names}
    assert seen == given["_MODULES"]
    assert set(given["__all__"]) - {"register"} == set(seen)
