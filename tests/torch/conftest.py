"""Every test here needs torch, and is marked so."""

import os

import pytest

# Ranks are many and processors few; read by torch as it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore_glob = ["test_*.py"] if __import__("importlib").util.find_spec("torch") is None else []


def pytest_collection_modifyitems(items):
    """Mark them."""
    for item in items:
        if "/tests/torch/" in str(item.path):
            item.add_marker(pytest.mark.torch)
