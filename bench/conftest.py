"""Ranks of benchmarks that use the tests' harness are forked from a process in which nothing has run."""

from support import harness


def pytest_sessionstart(session):
    """Make that process before collection: `bench_arrays.py` has JAX compile then, and a fork of it cannot."""
    harness.nursery()


def pytest_unconfigure(config):
    """End it with the run."""
    harness.close_nursery()
