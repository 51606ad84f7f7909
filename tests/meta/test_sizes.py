"""Files of at most 400 lines of code and functions of at most 60; exceptions have a reason.

Docstrings, comments and blank lines are not counted in files, nor docstrings in functions.
"""

import ast
import re

from support.installed import ROOT

MOST_LINES, MOST_FUNCTION_LINES = 400, 60
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".h"}
LONG_FILES: dict[str, str] = {
    "engine/engine.pyx": "one class, whose methods share its state: not divided for its length",
}
LONG_FUNCTIONS: dict[str, str] = {}

_DOCSTRING = re.compile(r'(?:r|f)?"""(?:[^"\\]|\\.|"(?!""))*"""')
_C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CYTHON_FUNCTION = re.compile(r"^( *)(?:async )?(?:def|cp?def(?! class| enum| struct| union| extern))\b[^\n=]*?(\w+)\(")


def sources():
    """Every source file of the package, by its path within it."""
    package = ROOT / "shmring"
    return {str(path.relative_to(package)): path for path in package.rglob("*") if path.suffix in SUFFIXES}


def code_lines(name, text):
    """How many lines of a file are code. (A docstring is any string in three double quotes.)"""
    if name.endswith(".h"):
        return sum(bool(line.strip()) for line in _C_COMMENT.sub("", text).splitlines())
    lines = (line.strip() for line in _DOCSTRING.sub("", text).splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def python_functions(text):
    """Name and lines of each function, those of its docstring left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            yield node.name, node.end_lineno - node.lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0)


def cython_functions(text):
    """Name and lines of each function, blank lines and docstrings left out: what is indented deeper than its head."""
    text = _DOCSTRING.sub("pass", text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        head = _CYTHON_FUNCTION.match(line)
        if not head or not line.rstrip().endswith((":", ",", "(")):
            continue
        count = 1
        for inner in lines[number + 1 :]:
            depth = len(inner) - len(inner.lstrip())
            if inner.strip() and depth <= len(head[1]) and not inner.lstrip().startswith(")"):
                break
            count += bool(inner.strip())
        yield head[2], count


def test_files_are_short():
    long = {name: n for name, path in sources().items() if (n := code_lines(name, path.read_text())) > MOST_LINES}
    assert long.keys() == LONG_FILES.keys(), long


def test_functions_are_short():
    long = {}
    for name, path in sources().items():
        if path.suffix == ".h":
            continue
        find = cython_functions if path.suffix in (".pyx", ".pxd") else python_functions
        long |= {f"{name}:{f}": n for f, n in find(path.read_text()) if n > MOST_FUNCTION_LINES}
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def test_code_is_counted():
    cython = '"""One.\n\nTwo.\n"""\n\n# why\ncdef int x  # of y\n\n\ndef f():\n    """One."""\n    return x\n'
    assert code_lines("a.pyx", cython) == 3
    assert code_lines("a.h", "/* One.\n   Two. */\n\nint x; /* of y */\n") == 1


def test_functions_are_measured():
    python = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    assert dict(python_functions(python)) == {"f": 2}
    cython = 'cdef int f(\n    int x,\n) except -1:\n    """One.\n\n    Two."""\n    return x\n\n\ndef g():\n    pass\n'
    assert dict(cython_functions(cython)) == {"f": 5, "g": 2}
