"""Sphinx: the pages of docs/ as they are, a landing page, and the reference made of the docstrings.

`sphinx-build -n -W --keep-going -c docs/site docs build/site` builds it, where the package and the dependency group
`docs` are installed.
"""

import ast
import builtins
import inspect
import os
import re
import textwrap
from pathlib import Path

from docutils import nodes
from numpydoc.docscrape_sphinx import SphinxDocString
from sphinx.util.docutils import SphinxDirective

from shmring.version import __version__

DOCS = Path(__file__).resolve().parents[1]

project = "shmring"
version = release = __version__
project_copyright = "the authors of shmring"
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
root_doc = "site/index"
exclude_patterns = ["index.md"]  # for readers of the files; here it is the navigation

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
highlight_language = "text"  # of blocks that name none: output of commands, command lines
suppress_warnings = ["myst.header"]  # pages begin a section where their table of contents needs it

html_theme = "furo"
html_title = f"shmring {__version__}"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_extra_path = ["extra"]  # index.html, which leads to the landing page
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

# Docstrings are numpydoc; single backquotes are names, linked where this site has them.
default_role = "py:obj"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Of each function and method, compiled or not: a summary, known sections in order, the parameters of the signature.
numpydoc_validation_checks = {"GL06", "GL07", "GL08", "SS01", "SS02", "PR01", "PR02", "PR03"}
# Not: classes, most of which users do not make; methods whose docstring is a sentence.
numpydoc_validation_exclude = {r"\.[A-Z]\w*$", r"^shmring\.(config|ring)\."}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
add_module_names = False
python_display_short_literal_types = True
nitpick_ignore = [("py:exc", name) for name in dir(builtins)] + [("py:class", name) for name in dir(builtins)]
_ELSEWHERE = r"(queue|os|pickle|asyncio|typing|collections|concurrent|numpy|np|multiprocessing|torch|dist|jax|MPI)\..*"
_ALIASES = r"(.*\.)?(T|DTypeLike|Settings|StartMethod|WhenFull)"  # of types, in signatures
nitpick_ignore_regex = [("py:.*", _ELSEWHERE), ("py:.*", "timedelta"), ("py:class", _ALIASES)]
copybutton_exclude = ".linenos, .gp"

# `sphinx-build -b linkcheck`, which needs the network. Pages of GitHub make their anchors in the browser.
linkcheck_timeout = 30
linkcheck_retries = 2
linkcheck_workers = 4
linkcheck_ignore = [r"https?://(127\.0\.0\.1|localhost)\b"]
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]

# Inventories come over the network: a build that may not use it has no links to other projects.
if os.environ.get("SHMRING_SITE_INVENTORIES") == "1":
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

# Files beside docs/ that are pages, and those that are not.
_PAGES = {"README.md": "site/index", "CONTRIBUTING.md": "site/contributing", "CHANGELOG.md": "site/changelog"}
# In the order of the doors of docs/index.md.
_API = ("torch", "jax", "communicator", "launch", "multiprocessing", "channels", "capi", "ring", "errors")
_REFERENCE = [f"site/api/{name}" for name in _API]
_FILE_AS_TEXT = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\((/?[\w./-]+\.md(?:#[\w-]+)?)\)")
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")


def _link(match: re.Match) -> str:
    """A link that leads up: as it is to a page of docs/, to the page made of a file beside docs/, else its text."""
    text, _, path, anchor = match.groups()
    if path in _PAGES:
        return f"[{text}](/{_PAGES[path]}.md{anchor or ''})"
    return match[0] if (DOCS / path).exists() else text


def _page_of(path: str) -> str:
    """A file beside docs/ as a page of this site: its links begin at the checkout."""
    text = (DOCS.parent / path).read_text()
    text = re.sub(r"\]\(docs/", "](/", text).replace("](/index.md)", "](/site/index.md)")
    text = re.sub(r"\]\((README|CONTRIBUTING|CHANGELOG)\.md", lambda m: f"](/{_PAGES[m[1] + '.md']}.md", text)
    return re.sub(r"\[([^\]]+)\]\((?!/|#|https?:)[\w./-]+\)", r"\1", text)


def _read_source(app, docname: str, source: list[str]) -> None:
    for path, page in _PAGES.items():
        if docname == page != root_doc:
            source[0] = _page_of(path)
            break
    else:
        source[0] = _LINK.sub(_link, source[0])
    source[0] = _FILE_AS_TEXT.sub(r"[](\1)", source[0])  # the page's title is the text of the link


def _read_include(app, path, docname: str, content: list[str]) -> None:
    """Of README.md on the landing page: links to tests are their paths."""
    content[0] = re.sub(r"\[test\]\((tests/[\w./-]+)\)", r"`\1`", content[0])


def _groups() -> dict[str, list[str]]:
    """The pages of docs/index.md by its headings, in its order."""
    groups: dict[str, list[str]] = {}
    text = (DOCS / "index.md").read_text()
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        linked = re.findall(r"^\| \[[^\]]+\]\((?:\.\./)?([\w/-]+\.md)\)", body, re.MULTILINE)
        groups[heading] = [_PAGES.get(name, name.removesuffix(".md")) for name in linked if name != "README.md"]
    return groups


def _add_navigation(app, docname: str, source: list[str]) -> None:
    """Tables of contents of the landing page: the groups of docs/index.md, the reference before the last."""
    if docname != root_doc:
        return
    groups = _groups()
    last = groups.popitem()
    for heading, pages in [*groups.items(), ("Reference", _REFERENCE), last]:
        lines = "\n".join(f"/{page}" for page in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{lines}\n```\n"


def _as_text(app, env, node, contnode):
    """A name in single backquotes that this site does not describe is code."""
    return nodes.literal(contnode.astext(), contnode.astext()) if node.get("reftype") == "obj" else None


def _without_self(app, what, name, thing, options, signature, returns):
    """Signatures of compiled methods as those of Python's are shown."""
    return (re.sub(r"^\(self(, )?", "(", signature), returns) if signature else None


class FunctionsOfFile(SphinxDirective):
    """Functions of a file that cannot be imported without a framework: its path, and their names in lines."""

    required_arguments = 1
    has_content = True

    def run(self) -> list:
        text = (DOCS.parent / self.arguments[0]).read_text()
        return self.parse_text_to_nodes("".join(self._function(name, text) for name in self.content))

    def _function(self, name: str, text: str) -> str:
        definition = rf'^def {name}\((.*?)\)(?: -> [^\n]+)?:\n    """(.*?)"""'
        arguments, docstring = re.search(definition, text, re.DOTALL | re.MULTILINE).groups()
        signature = ast.parse(f"def f({arguments}): ...").body[-1].args  # after overloads
        for argument in ast.walk(signature):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        body = textwrap.indent(str(SphinxDocString(inspect.cleandoc(docstring))), "   ")
        return f".. py:function:: {name}({ast.unparse(signature)})\n\n{body}\n\n"


def setup(app):
    """Called by Sphinx."""
    app.add_directive("functions-of", FunctionsOfFile)
    app.connect("source-read", _read_source)
    app.connect("include-read", _read_include)
    app.connect("source-read", _add_navigation)
    app.connect("missing-reference", _as_text)
    app.connect("autodoc-process-signature", _without_self)
