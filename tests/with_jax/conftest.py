"""Every test here needs jax, and is marked so.

This directory is not named jax: its parent is on the path of tests, and without jax installed `import jax` would find
it.
"""

import os
from importlib.util import find_spec

import pytest

# Ranks are many and processors few; read by jax as it is loaded.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    """Mark them."""
    for item in items:
        if item.path.parent.name == "with_jax":
            item.add_marker(pytest.mark.jax)
