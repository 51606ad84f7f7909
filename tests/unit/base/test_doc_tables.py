"""The tables of errors, settings and variables in the documents are those that the code gives, and the README's picture
is that of its table."""

import re
from pathlib import Path

import pytest

import shmring
from shmring.config import SETTINGS, VARIABLES

doc_tables = pytest.importorskip("doc_tables", reason="tools/ is not part of what is installed")


@pytest.mark.parametrize("name", doc_tables.TABLES)
def test_a_page_has_the_table_that_the_code_gives(name):
    page, table = doc_tables.TABLES[name]
    assert doc_tables.with_table(name, page.read_text()) == page.read_text(), "run tools/doc_tables.py"
    assert table().count("\n") > 8


def test_the_picture_of_the_readme_has_the_figures_of_its_table():
    readme = (doc_tables.DOCS.parent / "README.md").read_text()
    assert doc_tables.picture(readme) == doc_tables.PICTURE.read_text(), "run tools/doc_tables.py"
    assert doc_tables.picture(readme).count(" times as fast") == readme.count("\n| [") > 8


def test_every_setting_and_every_variable_that_the_code_reads_has_a_row():
    rows = doc_tables.settings_table() + doc_tables.internals_table()
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(SETTINGS)
    sources = [path for path in Path(shmring.__file__).parent.rglob("*.py*") if path.suffix in (".py", ".pyx")]
    read = {name for path in sources for name in re.findall(r'(?<!\w )"(SHMRING_[A-Z_]+)"', path.read_text())}
    assert read == set(VARIABLES)
