"""The build with injection points, for the tests that need it."""

import pytest
from fault_build import fault_build
from support.harness import nursery_with


@pytest.fixture(scope="module")
def injection_points():
    """Have ranks run the build with injection points."""
    try:
        path = fault_build()
    except (RuntimeError, OSError) as error:
        pytest.skip(str(error))
    with nursery_with(path):
        yield
