"""The table of errors in the documents has every class of `shmring.errors`, as its docstring describes it."""

import pytest

error_table = pytest.importorskip("error_table", reason="tools/ is not part of what is installed")


def test_the_page_of_errors_has_the_table_that_the_classes_give():
    page = error_table.PAGE.read_text()
    assert error_table.with_table(page) == page, "run tools/error_table.py"
    assert error_table.table().count("\n") > 20
