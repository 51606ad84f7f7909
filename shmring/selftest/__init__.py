"""Checks that shmring works on this machine, in this container: ``python -m shmring.selftest``."""

from .checks import CHECKS, Check, Outcome, run_checks

__all__ = ["CHECKS", "Check", "Outcome", "run_checks"]
