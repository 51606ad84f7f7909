"""Ranks of benchmarks that use the tests' harness are forked from a process in which nothing has run."""

from support import harness


def pytest_sessionstart(session):
    """Make that process now: a fork of one in which JAX has compiled, as `bench_arrays.py` has it do, compiles no more."""
    harness.nursery()


def pytest_unconfigure(config):
    """End it with the run."""
    harness.close_nursery()
