"""No test module imports another one: what tests share is in the package `support`."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(path):
    """The last part of every module name, and every name, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").rpartition(".")[2]
            yield from (alias.name for alias in node.names)


def test_no_test_imports_a_test():
    paths = sorted(TESTS.rglob("*.py"))
    modules = {path.stem for path in paths if path.stem.startswith("test_")}
    assert modules
    found = {str(path.relative_to(TESTS)): sorted(modules & set(imported(path))) for path in paths}
    assert not {path: names for path, names in found.items() if names}
