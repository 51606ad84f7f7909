"""A room imports only from rooms below it: the order of the folders in `ROOMS`, checked against every import.

The rooms of `core` and `collectives` are folders in these wings.

No modules import each other in a circle, within a room either, wherever in a file the import stands. Modules of the
top folder have their place in the same order (`TOP`). A new folder or a new module of the top folder fails here until
it has one.
"""

import ast
import graphlib
import re
from pathlib import Path

import pytest
from support.installed import ROOT

PACKAGE = ROOT / "shmring"  # the sources: an installed package has no .pyx

# From the bottom up. `base` and the other names in `TOP` are modules of the top folder.
ROOMS = [
    "core/c", "core/base", "core/sync", "core/memory", "core/placement", "core/kernel", "core/arrays", "core/blocks",
    "core/objects", "core/ring", "channels", "collectives/plan", "collectives/engine", "collectives/observe",
    "collectives/bootstrap", "collectives/shared", "collectives/calls", "collectives/p2p", "communicator", "launch",
    "nodes", "face", "guests",
]  # fmt: skip
WINGS = {"core": "core/c", "collectives": "collectives/plan"}  # and the room of the wing's own file
TOP = {
    "errors": "core/base",
    "config": "core/base",
    "dtypes": "core/base",
    "version": "core/base",
    "typing": "core/base",
    "communicator": "communicator",
    "__init__": "face",
    "ring": "face",
    "__main__": "guests",
}
GUESTS = {"capi", "cli", "jax", "multiprocessing", "selftest", "torch", "vllm", "watch"}
MOST_TOP_FILES = 13
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".h")

_FROM = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*c?import\s+([\w., \t]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^\s*#\s*include\s+\"([^\"]+)\"|\bextern\s+from\s+\"([^\"]+)\"", re.MULTILINE)


def files():
    """Every source file, by its path within the package."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES)
    return sorted(str(path) for path in found if not _is_generated(path))


def _is_generated(path):
    return path.suffix == ".h" and (PACKAGE / path).with_suffix(".pyx").exists()  # for public declarations


def room_of(path):
    """The room of a file; None where it has none."""
    first, *rest = Path(path).parts
    if not rest:
        return TOP.get(Path(first).stem)
    if first in GUESTS:
        return "guests"
    if first in WINGS:
        return WINGS[first] if len(rest) == 1 else f"{first}/{rest[0]}" if f"{first}/{rest[0]}" in ROOMS else None
    return first if first in ROOMS else None


def room_of_module(module):
    """The room of a dotted name below ``shmring``; None for what is not there (a function, another package)."""
    package, *parts = module.split(".")
    if package != "shmring":
        return None
    if not parts:
        return "face"
    if (PACKAGE / parts[0]).is_dir():
        return room_of("/".join([*parts[:2], "x"] if parts[0] in WINGS and len(parts) > 1 else [parts[0], "x"]))
    return TOP.get(parts[0])


def imports(path, text):
    """The dotted names that a Python or Cython file imports, at whatever depth of it."""
    for module, names in _statements(path, text):
        inner = [f"{module}.{name}" for name in names]
        rooms = [name for name in inner if module == "shmring" and room_of_module(name)]
        yield from rooms if inner and len(rooms) == len(inner) else [module, *rooms]


def _statements(path, text):
    """Every import: the dotted name of a module, and the names that are taken from it, if any."""
    package = ["shmring", *Path(path).parts[:-1]]

    def absolute(module, dots):
        base = package[: len(package) - dots + 1] if dots else []
        return ".".join([*base, *([module] if module else [])])

    if path.endswith((".py", ".pyi")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield absolute(node.module, node.level), [alias.name for alias in node.names]
        return
    text = re.sub(r"#[^\n]*|\"\"\".*?\"\"\"", "", text, flags=re.DOTALL)
    for module, names in _FROM.findall(text):
        bare = module.lstrip(".")
        yield absolute(bare, len(module) - len(bare)), re.findall(r"\w+", names)
    for names in _IMPORT.findall(text):
        yield from ((name.split()[0], []) for name in names.split(",") if name.strip())


def module_of(path):
    """The dotted name of the module of a file; declarations beside a module in Python are one of their own."""
    parts = Path(path).with_suffix("").parts
    name = ".".join(["shmring", *(parts[:-1] if parts[-1] == "__init__" else parts)])
    return f"{name} (.pxd)" if path.endswith(".pxd") and (PACKAGE / path).with_suffix(".py").exists() else name


def graph():
    """Module -> the modules that it imports or cimports, the package itself left out."""
    paths = [path for path in files() if not path.endswith(".h")]
    known = {module_of(path) for path in paths} - {"shmring"}
    found = {name: set() for name in known}
    for path in paths:
        own = module_of(path)
        for module, names in _statements(path, (PACKAGE / path).read_text()):
            of_modules = {f"{module}.{name}" for name in names} & known
            used = of_modules if names and len(of_modules) == len(names) else {module, *of_modules}
            if not path.endswith((".py", ".pyi")):  # a cimport
                used = {f"{name} (.pxd)" if f"{name} (.pxd)" in known else name for name in used}
            found.setdefault(own, set()).update(used & known - {own})
    return found


def uses(path):
    """The rooms that a file depends on, its own left out."""
    text = (PACKAGE / path).read_text()
    found = set() if path.endswith(".h") else {room_of_module(name) for name in imports(path, text)} - {None}
    if not path.endswith((".py", ".pyi")):
        headers = {first or second for first, second in _INCLUDE.findall(text)}
        folders = [Path(path).parent, Path()]  # as the compiler looks for them
        found |= {room_of(str(at / name)) for name in headers for at in folders if (PACKAGE / at / name).exists()}
    return found - {room_of(path)}


def test_every_file_is_in_a_room_and_imports_only_from_rooms_below():
    wrong = {}
    for path in files():
        own = room_of(path)
        if own is None:
            wrong[path] = "is in no room: place it in ROOMS or TOP"
            continue
        used, level = uses(path), ROOMS.index(own)
        if bad := {room for room in used if ROOMS.index(room) > level}:
            wrong[path] = f"is in the room {own} and imports from {bad}"
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail("each imports the next: " + " <- ".join(error.args[1]))


def test_the_top_folder_is_small():
    top = sorted(path for path in files() if "/" not in path)
    assert len(top) <= MOST_TOP_FILES, f"{len(top)} files in shmring/ itself: {top}"


def test_every_room_has_files():
    used = {room_of(path) for path in files()}
    assert used == set(ROOMS)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", "from shmring.core.memory.segment import sweep", {"shmring.core.memory.segment"}),
        ("a.py", "from shmring import errors", {"shmring.errors"}),
        ("a.py", "from shmring import spawn", {"shmring"}),
        ("a.py", "def f():\n    import shmring.launch.spawn", {"shmring.launch.spawn"}),
        ("a.py", "from . import config\nfrom .errors import x", {"shmring.config", "shmring.errors"}),
        ("cli/a.py", "from ..errors import x\nfrom .demo import x", {"shmring.errors", "shmring.cli.demo"}),
        (
            "a.pyx",
            "from shmring.core.sync.wait cimport (a,\n    b)  # c\ncimport shmring.core.ring.spsc",
            {"shmring.core.sync.wait", "shmring.core.ring.spsc"},
        ),
        ("a.pxd", "    from shmring.collectives.engine.engine cimport Engine", {"shmring.collectives.engine.engine"}),
    ],
)
def test_imports_of_every_form_are_seen(path, text, expected):
    assert set(imports(path, text)) == expected


def test_includes_and_externs_are_seen():
    assert _INCLUDE.findall('#include "layout.h"\ncdef extern from "core/c/atomics.h" nogil:') == [
        ("layout.h", ""),
        ("", "core/c/atomics.h"),
    ]
