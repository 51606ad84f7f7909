"""Nothing imports from a floor above its own, and every file has a floor: the house rule, read from the sources.

A new file fails here until it is placed in `FLOORS`. Read what stands on the same floor or below, and it will be clear
where it belongs.
"""

import ast
import re
from pathlib import Path

import pytest

import shmring

PACKAGE = Path(shmring.__file__).parent

# From the ground up. A room is a module (its .py, .pyx, .pxd and .pyi together), a C header, or a whole package.
FLOORS = {
    "words": """
        errors dtypes contents version unraisable atomics layout faults
        _c/atomics.h _c/layout.h _c/vectors.h _c/copy.h _c/folds.h _c/kernels.h _c/dispatch.h _c/moment.h _c/sleep.h
        _c/keeper.h _c/team.h _c/dlpack_abi.h _c/faults.h _c/numa.h _c/robust.h
    """,
    "machine": """
        sysfs processors drawing topology topologyfile domains nearness binding teamsize environment processes
        config blocks pages placing names header mapping lifeline segment wants wait reduce dlpack arrays
    """,
    "parts": """
        packing lending ring ringwait ringlook ringsets anywait alarm asynchronous
        frames overtaking channelmemory branches queuememory inspection
        directory whisper signature rounds stores journey talk program team plan/ lanes requests
    """,
    "engine": "meeting diagnosis engine agreement collectives survey thresholds teamwork assembly",
    "abilities": """
        ends sender receiver recordends fanning broadcasting queueing
        work prepared folding counts calls coalescing persistent matching pointtopoint messages objects
        objectmessages groups sharedarrays explaining locating
    """,
    "face": "communicator channels fans joining launch run __init__",
    "guests": "bench/ cli/ torch/ __main__",
}

LEVELS = {room: level for level, rooms in enumerate(FLOORS.values()) for room in rooms.split()}
NAMES = list(FLOORS)
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".h")

_FROM = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*c?import\s+([\w., \t]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^\s*#\s*include\s+\"([^\"]+)\"|\bextern\s+from\s+\"([^\"]+)\"", re.MULTILINE)


def files():
    """Every source file, by its path within the package."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES)
    return sorted(str(path) for path in found if not _is_generated(path))


def _is_generated(path):
    return path.suffix == ".h" and path.parent != Path("_c")  # Cython writes some for public declarations


def room_of(path):
    """The room that a file belongs to."""
    parts = Path(path).parts
    if len(parts) > 1 and parts[0] != "_c":
        return f"{parts[0]}/"
    return path if path.endswith(".h") else str(Path(path).with_suffix(""))


def room_of_module(module):
    """The room of a dotted name below ``shmring``; None for what is not there (a function, another package)."""
    parts = module.split(".")
    if parts[0] != "shmring":
        return None
    if len(parts) == 1:
        return "__init__"
    if (PACKAGE / parts[1]).is_dir():
        return f"{parts[1]}/"
    return parts[1] if any((PACKAGE / (parts[1] + suffix)).exists() for suffix in SUFFIXES) else None


def imports(path, text):
    """The dotted names that a Python or Cython file imports, at whatever depth of it."""
    package = ["shmring", *Path(path).parts[:-1]]

    def absolute(module, dots):
        base = package[: len(package) - dots + 1] if dots else []
        return ".".join([*base, *([module] if module else [])])

    if path.endswith((".py", ".pyi")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from _named(absolute(node.module, node.level), [alias.name for alias in node.names])
        return
    text = re.sub(r"#[^\n]*|\"\"\".*?\"\"\"", "", text, flags=re.DOTALL)
    for module, names in _FROM.findall(text):
        bare = module.lstrip(".")
        yield from _named(absolute(bare, len(module) - len(bare)), re.findall(r"\w+", names))
    for names in _IMPORT.findall(text):
        yield from (name.split()[0] for name in names.split(",") if name.strip())


def _named(module, names):
    """``from module import names``: modules of a package, or things of a module."""
    inner = [f"{module}.{name}" for name in names]
    rooms = [name for name in inner if module == "shmring" and room_of_module(name)]
    return rooms if len(rooms) == len(inner) else [module, *rooms]


def uses(path):
    """The rooms that a file depends on."""
    text = (PACKAGE / path).read_text()
    found = set() if path.endswith(".h") else {room_of_module(name) for name in imports(path, text)} - {None}
    if not path.endswith((".py", ".pyi")):
        headers = {Path(first or second).name for first, second in _INCLUDE.findall(text)}
        found |= {f"_c/{name}" for name in headers if (PACKAGE / "_c" / name).exists()}
    return found - {room_of(path)}


@pytest.mark.parametrize("path", files())
def test_every_file_has_a_floor(path):
    assert room_of(path) in LEVELS, f"shmring/{path} has no floor; place {room_of(path)!r} in FLOORS"


@pytest.mark.parametrize("path", files())
def test_nothing_imports_from_above(path):
    own = LEVELS.get(room_of(path), len(NAMES))
    above = {room: NAMES[LEVELS[room]] for room in uses(path) if LEVELS.get(room, 0) > own}
    assert not above, f"shmring/{path} is on the floor of {NAMES[own]} and imports from above: {above}"


@pytest.mark.parametrize("room", LEVELS)
def test_every_room_exists(room):
    assert any(room_of(path) == room for path in files()), f"{room!r} has a floor but no file"


def test_no_room_is_on_two_floors():
    rooms = [room for rooms in FLOORS.values() for room in rooms.split()]
    assert len(rooms) == len(set(rooms))


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", "from shmring.segment import sweep", {"shmring.segment"}),
        ("a.py", "from shmring import names", {"shmring.names"}),
        ("a.py", "from shmring import spawn", {"shmring"}),
        ("a.py", "def f():\n    import shmring.launch", {"shmring.launch"}),
        ("a.py", "from . import segment\nfrom .wait import x", {"shmring.segment", "shmring.wait"}),
        ("cli/a.py", "from ..run import run\nfrom .demo import x", {"shmring.run", "shmring.cli.demo"}),
        ("a.pyx", "from shmring.wait cimport (a,\n    b)  # c\ncimport shmring.ring", {"shmring.wait", "shmring.ring"}),
        ("a.pxd", "    from shmring.engine cimport Engine", {"shmring.engine"}),
    ],
)
def test_imports_of_every_form_are_seen(path, text, expected):
    assert set(imports(path, text)) == expected


def test_includes_and_externs_are_seen():
    assert _INCLUDE.findall('#include "layout.h"\ncdef extern from "atomics.h" nogil:') == [
        ("layout.h", ""),
        ("", "atomics.h"),
    ]
