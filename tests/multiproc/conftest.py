"""What tests of calls from C share."""

import pytest
from support.capi import build


@pytest.fixture(scope="session")
def c_library(tmp_path_factory):
    """The path of the compiled calls of the C table (`support.capi`)."""
    return build(tmp_path_factory.mktemp("capi"))
