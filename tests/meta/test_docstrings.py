"""Every public name has a numpydoc docstring whose parameters are those of the signature."""

import inspect
import re
from itertools import takewhile
from pathlib import Path

import shmring

# What everybody knows needs no section: the context manager's and the copier's methods are not listed either.
SECTIONS = {"Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns", "Notes", "See Also", "Examples"}


def public_names():
    """Everything reachable from ``shmring.__all__``: (dotted name, object), members of classes included."""
    found = {}
    for name in shmring.__all__:
        thing = getattr(shmring, name)
        if name.startswith("__") or isinstance(thing, int):  # constants are described where they are used
            continue
        found[name] = thing
        if inspect.isclass(thing):
            for owner in thing.__mro__:
                if owner.__module__.partition(".")[0] == "shmring":
                    for key, member in vars(owner).items():
                        if not key.startswith("_") and is_described(member):
                            found.setdefault(f"{name}.{key}", member)
    return found


def is_described(member):
    """Whether a class member carries a docstring of its own: methods and properties; plain attributes do not."""
    return callable(member) or isinstance(member, (property, classmethod, staticmethod)) or is_property(member)


def is_property(member):
    """Properties, Cython's included; not the read-only fields of an extension type, which its class documents."""
    return isinstance(member, property) or (inspect.isgetsetdescriptor(member) and bool(member.__doc__))


PUBLIC = public_names()
FUNCTIONS = {name: thing for name, thing in PUBLIC.items() if not inspect.isclass(thing) and not is_property(thing)}
CLASSES = {name: thing for name, thing in PUBLIC.items() if inspect.isclass(thing)}


def without_signature(thing):
    """The docstring as written: Cython puts the signature before it."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(f"{getattr(thing, '__name__', ' ')}(") else text


def sections(thing):
    """The docstring's sections: title -> lines; the text before the first one under ``""``."""
    lines = inspect.cleandoc(without_signature(thing)).splitlines()
    found = {"": []}
    title = ""
    for number, line in enumerate(lines):
        underline = lines[number + 1] if number + 1 < len(lines) else ""
        if line.strip() and re.fullmatch(r"-{3,}", underline.strip()):
            title = line.strip()
            found[title] = []
        elif not re.fullmatch(r"-{3,}", line.strip()):
            found[title].append(line)
    return found


def documented(lines):
    """The names that a Parameters or Attributes section describes: ``a, b : int`` or ``**rest`` at its margin."""
    heads = [line.partition(" : ")[0] for line in lines if line and not line[0].isspace()]
    return [name.strip().lstrip("*") for head in heads for name in head.split(",")]


def parameters(thing):
    """The names of the signature, in order, but for the instance or class."""
    names = [name for name in inspect.signature(thing).parameters if not name.startswith("_")]
    return [name for name in names if name not in ("self", "cls")]


def test_every_public_name_has_a_summary_of_one_sentence():
    first = {name: " ".join(takewhile(str.strip, sections(thing)[""])) for name, thing in PUBLIC.items()}
    assert {name: text for name, text in first.items() if not re.search(r"^[A-Z].*[.:]$", text)} == {}


def test_sections_have_names_that_readers_know():
    assert {title for thing in PUBLIC.values() for title in sections(thing)} - {""} <= SECTIONS


def test_documented_parameters_are_those_of_the_signature():
    described = {name: documented(sections(thing).get("Parameters", [])) for name, thing in FUNCTIONS.items()}
    assert described == {name: parameters(thing) for name, thing in FUNCTIONS.items()}


def test_what_is_returned_is_described():
    """By a section; where there are no parameters, by one line that says all: "The ... of ...", or "Whether ..."."""
    for name, thing in FUNCTIONS.items():
        returned = inspect.signature(thing).return_annotation
        if returned not in (inspect.Signature.empty, None, "None"):
            assert "Returns" in sections(thing) or not parameters(thing), name


def test_what_an_error_carries_is_described():
    for name, thing in CLASSES.items():
        if issubclass(thing, Exception) and "__init__" in vars(thing):
            carried = [each for each in parameters(thing.__init__) if each != "message"]
            assert documented(sections(thing).get("Attributes", [])) == carried, name


def test_the_reader_of_docstrings_sees_names_types_and_margins():
    def example(a, b, *, c=None, **rest):
        """Do it.

        Parameters
        ----------
        a, b : int
            Two.
        c : {"x", "y"}, optional
            Choice: one.
        **rest
            Others.

        Returns
        -------
        int
        """

    assert documented(sections(example)["Parameters"]) == ["a", "b", "c", "rest"] == parameters(example)
    assert list(sections(example)) == ["", "Parameters", "Returns"]


def test_a_stub_has_no_text_of_its_own():
    assert [stub for stub in Path(shmring.__path__[0]).rglob("*.pyi") if '"""' in stub.read_text()] == []
