"""Comments on memory order are true: each `SYNC tag (meets: f)` names a function that exists and carries the same tag.

A comment names the other side of a sync point as `f` (a function of the same module; the .pyx and the .pxd of one name
are one module) or as `f in room/file.pyx` (the path within `shmring/`). The file must define that function, with a
comment of the same tag in its body. `docs/maintainers/memory-model.md` has one row for each tag, and the functions in
the row's columns *release* and *acquire* carry it.
"""

import re

from support.installed import ROOT

PACKAGE = ROOT / "shmring"  # the sources: an installed package has no .pyx
PAGE = PACKAGE.parent / "docs" / "maintainers" / "memory-model.md"
SUFFIXES = (".pyx", ".pxd", ".py", ".h")

_COMMENT = re.compile(r"\bSYNC ([a-z][a-z0-9 ]*?)\s*\(meets: ([^()]*)\)")
_CYTHON_DEF = re.compile(r"^( *)(?:cdef|cpdef|def|async def)\b(?! +(?:class|extern|struct|enum)\b)[^=(\n]*?\b(\w+)\(")
_C_DEF = re.compile(r"^(?:static|int|void)\b[^;=]*?\b(\w+)\([^;]*$")


def is_generated(path):
    return path.suffix == ".h" and path.with_suffix(".pyx").exists()  # Cython writes some for public declarations


def sources(package):
    """The text of every source file, by its path within the package."""
    paths = (path for path in sorted(package.rglob("*")) if path.suffix in SUFFIXES and not is_generated(path))
    return {str(path.relative_to(package)): path.read_text() for path in paths}


def functions_of_cython(text):
    """``(name, text of the definition)`` for each function of a .py, .pyx or .pxd; declarations are none."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not (found := _CYTHON_DEF.match(line)):
            continue
        end = number + 1
        while "\n".join(lines[number:end]).count("(") > "\n".join(lines[number:end]).count(")"):
            end += 1
        if not re.sub(r"\s+#.*", "", lines[end - 1]).rstrip().endswith(":"):
            continue
        indent = len(found[1])
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
            end += 1
        yield found[2], "\n".join(lines[number:end])


def functions_of_c(text):
    """The same for a C header, where a definition begins in the first column and ends with a brace there."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not (found := _C_DEF.match(line)):
            continue
        end = number
        while end + 1 < len(lines) and not lines[end].endswith("}" if end == number else "\0") and lines[end] != "}":
            end += 1
        yield found[1], "\n".join(lines[number : end + 1])


def functions(path, text):
    return list(functions_of_c(text) if path.endswith(".h") else functions_of_cython(text))


def met_functions(items, path):
    """``(function, paths that may define it)`` for each item of the list behind "meets:"."""
    items = re.sub(r"\n\s*(?:#|\*)\s*", " ", items)
    for item in items.split(","):
        name, _, where = (part.strip() for part in item.partition(" in "))
        stem = path.rpartition(".")[0]
        same = [path] if path.endswith(".h") else [f"{stem}{suffix}" for suffix in (".pyx", ".pxd", ".py")]
        yield name, [where] if where else same


def problems(package, page):
    """What is wrong with the comments of a package and its page: a sentence each."""
    texts = sources(package)
    defined = {path: functions(path, text) for path, text in texts.items()}
    carriers = {}  # tag -> names of the functions with a comment of that tag
    for path in texts:
        for name, body in defined[path]:
            for tag, _ in _COMMENT.findall(body):
                carriers.setdefault(tag, set()).add(name)
    for path, text in texts.items():
        yield from problems_of_file(path, text, defined)
    yield from problems_of_page(page, carriers)


def problems_of_file(path, text, defined):
    for line in text.split("\n"):
        # A comment may break its list across lines, but not between "SYNC" and its opening parenthesis.
        if len(re.findall(r"\bSYNC\b", line)) != len(re.findall(r"\bSYNC [a-z][a-z0-9 ]*\(meets: \w", line)):
            yield f"{path}: not of the form `SYNC tag (meets: function)`: {line.strip()}"
    inside = sum(len(_COMMENT.findall(body)) for _, body in defined[path] if not is_nested(body, defined[path]))
    if inside != len(_COMMENT.findall(text)):
        yield f"{path}: a SYNC comment stands outside of any function"
    for tag, items in _COMMENT.findall(text):
        for name, paths in met_functions(items, path):
            bodies = [body for where in paths for f, body in defined.get(where, ()) if f == name]
            if not bodies:
                yield f"{path}: SYNC {tag} meets {name}, which {' and '.join(paths)} do not define"
            elif not any(tag == other for body in bodies for other, _ in _COMMENT.findall(body)):
                yield f"{path}: SYNC {tag} meets {name}, which has no comment of that tag"


def is_nested(body, all_functions):
    return any(body != other and body in other for _, other in all_functions)


def problems_of_page(page, carriers):
    rows = {}
    for line in page.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] not in ("name", "---"):
            if cells[0] in rows:
                yield f"the page has two rows for {cells[0]}"
            rows[cells[0]] = set(re.findall(r"`(\w+)`", cells[1] + cells[2]))
    for tag in sorted(carriers.keys() - rows.keys()):
        yield f"the page has no row for {tag}"
    for tag, names in rows.items():
        if tag.startswith("("):  # not in our sources: an act of the kernel
            continue
        if tag not in carriers:
            yield f"the page has a row for {tag}, which no source has"
        for name in sorted(names - carriers.get(tag, names)):
            yield f"the page names {name} for {tag}, but {name} has no comment of that tag"


def names_of_the_page(page):
    """Files and tests that the page names."""
    return re.findall(r"`(shmring/[\w./]*|tests/[\w./]+)`", page), re.findall(r"`(test_\w+)`", page)


def test_the_page_names_files_and_tests_that_exist():
    paths, tests = names_of_the_page(PAGE.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in tests if not any(f"def {name}(" in text for text in texts)] == []
    assert len(paths) > 10
    assert len(tests) > 20


def test_comments_on_memory_order_name_functions_that_carry_the_same_tag():
    assert list(problems(PACKAGE, PAGE.read_text())) == []


# ---- the test itself -------------------------------------------------------------------------------------------------

RIGHT = {
    "a.pyx": "cdef void put(int x) noexcept nogil:\n    store()     # SYNC sent (meets: get in c.h)\n\n"
    "cdef int last():\n    pass\n",
    "c.h": "static int get(int x) {\n    /* SYNC sent (meets: put in\n     * a.pyx). */\n    return load();\n}\n",
}
RIGHT_PAGE = "| name | release | acquire | what | shown by |\n| sent | `put` | `get` | x | y |\n"


def found_in(folder, changes, page=RIGHT_PAGE):
    (folder / "core/c").mkdir(parents=True, exist_ok=True)
    for name, text in (RIGHT | changes).items():
        text = text.replace("in c.h", "in core/c/c.h")
        (folder / ("core/c/" + name if name.endswith(".h") else name)).write_text(text)
    return list(problems(folder, page))


def changed(name, old, new):
    assert old in RIGHT[name]
    return {name: RIGHT[name].replace(old, new)}


def test_true_comments_pass(tmp_path):
    assert found_in(tmp_path, {}) == []


def test_false_comments_are_found(tmp_path):
    lies = [
        (changed("a.pyx", "get in c.h", "get"), "do not define"),
        (changed("a.pyx", "get in c.h", "get in d.h"), "do not define"),
        (changed("a.pyx", "get in c.h", "gets in c.h"), "do not define"),
        (changed("a.pyx", "SYNC sent", "SYNC posted"), "no comment of that tag"),
        (changed("c.h", "SYNC sent", "SYNC posted"), "no comment of that tag"),
        (changed("c.h", "SYNC sent (meets: put in\n     * a.pyx)", "SYNC sent"), "not of the form"),
        (changed("a.pyx", "    store()     # SYNC", "x = 1  # SYNC"), "outside of any function"),
        (changed("c.h", "put in", "last in"), "no comment of that tag"),
        (changed("a.pyx", "nogil:\n    store()     # ", "nogil\n# "), "outside of any function"),
    ]
    for lie, sentence in lies:
        assert any(sentence in problem for problem in found_in(tmp_path, lie)), (lie, sentence)
        for name, text in RIGHT.items():
            found_in(tmp_path, {name: text})


def test_a_false_page_is_found(tmp_path):
    lies = [
        ("", "no row for sent"),
        (RIGHT_PAGE.replace("`put`", "`last`"), "names last for sent"),
        (RIGHT_PAGE + "| gone | `put` | `get` | x | y |\n", "row for gone"),
        (RIGHT_PAGE + "| sent | `put` | `get` | x | y |\n", "two rows for sent"),
    ]
    for page, sentence in lies:
        assert any(sentence in problem for problem in found_in(tmp_path, {}, page)), sentence
