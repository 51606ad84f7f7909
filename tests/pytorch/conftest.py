"""Every test here needs torch, and is marked so.

This directory is not named torch: its parent is on the path of tests, and without torch installed `import torch`
would find it.
"""

import os
from importlib.util import find_spec

import pytest

# Ranks are many and processors few; read by torch as it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("support.torch_checks")

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    """Mark them."""
    for item in items:
        if item.path.parent.name == "pytorch":
            item.add_marker(pytest.mark.torch)
