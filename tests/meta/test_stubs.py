"""A stub has the names, parameters and defaults of its compiled module, which has no types that it could be made of."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import shmring
from shmring.collective.mpi_names import HINTS

PACKAGE = Path(shmring.__path__[0])
STUBS = sorted(PACKAGE.rglob("*.pyi"))
POSITIONAL, KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def module_of(stub):
    name = ".".join(("shmring", *stub.relative_to(PACKAGE).with_suffix("").parts))
    return importlib.import_module(name) if name.split(".")[1] != "torch" else pytest.importorskip(name)


def parameters_of(definition):
    """By name: the kind, and the default as text; "" if there is none."""
    given = definition.args
    found, both = {}, [*given.posonlyargs, *given.args]
    for one, default in zip(both, [None] * (len(both) - len(given.defaults)) + given.defaults, strict=True):
        found[one.arg] = (POSITIONAL, default)
    if given.vararg:
        found[given.vararg.arg] = (inspect.Parameter.VAR_POSITIONAL, None)
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found[one.arg] = (KEYWORD, default)
    if given.kwarg:
        found[given.kwarg.arg] = (inspect.Parameter.VAR_KEYWORD, None)
    return {name: (kind, default and ast.unparse(default)) for name, (kind, default) in found.items()}


def differences(definition, function):
    """Lines about the parameters of a definition in a stub that are not those of the function."""
    written, found = parameters_of(definition), inspect.signature(function).parameters
    if list(written) != list(found):
        yield f"{definition.name}: ({', '.join(written)}) is ({', '.join(found)})"
        return
    for name, parameter in found.items():
        kind, default = written[name]
        has_default = parameter.default is not inspect.Parameter.empty
        is_value = default not in (None, "...") and not default.isidentifier()
        if kind != parameter.kind or (default is not None) != has_default:
            yield f"{definition.name}: {name} is {parameter.kind.description}, default {parameter.default}"
        elif is_value and ast.literal_eval(default) != parameter.default:
            yield f"{definition.name}: {name}={default} is {parameter.default!r}"


def is_public(name):
    return not name.startswith("_") and name not in HINTS


def disagreements(body, thing, place):
    """Lines about what a stub has of a module or a class, ``thing``, that is not so."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            names.add(node.name)
            yield from disagreements(node.body, getattr(thing, node.name), f"{place}.{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            found = getattr(thing, node.name, None)
            if node.name.startswith("__"):
                continue
            if found is None:
                yield f"{place}.{node.name} is missing"
            elif inspect.isroutine(found) and "overload" not in map(ast.unparse, node.decorator_list):
                yield from (f"{place}: {line}" for line in differences(node, found))
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
            if inspect.isclass(thing) and not hasattr(thing, node.target.id):
                yield f"{place}.{node.target.id} is missing"
    if inspect.isclass(thing):
        lacking = [name for name in vars(thing) if is_public(name) and name not in names]
        yield from (f"{place}.{name} is not in the stub" for name in lacking)


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.stem)
def test_a_stub_has_what_its_module_has(stub):
    assert list(disagreements(ast.parse(stub.read_text()).body, module_of(stub), stub.stem)) == []


class Example:
    def call(self, x, out=None, *, timeout=...): ...
    def other(self): ...


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("def call(self, x, out=None, *, timeout=...): ...\ndef other(self): ...", ""),
        ("def call(self, x, out=1, *, timeout=...): ...\ndef other(self): ...", "out=1 is None"),
        ("def call(self, out=None, x=0, *, timeout=...): ...\ndef other(self): ...", "is (self, x, out, timeout)"),
        ("def call(self, x, out=None, timeout=...): ...\ndef other(self): ...", "timeout is keyword-only"),
        ("def call(self, x, out=None, *, timeout=...): ...", "other is not in the stub"),
        ("def call(self, x, out=None, *, timeout=...): ...\ndef other(self): ...\nz: int", "z is missing"),
    ],
)
def test_what_differs_is_found(text, finds):
    found = list(disagreements(ast.parse(text).body, Example, "Example"))
    assert len(found) == bool(finds)
    assert all(finds in line for line in found)
