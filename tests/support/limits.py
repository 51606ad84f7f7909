"""Limits of the kernel on one process, for the time of a block."""

import contextlib
import resource


@contextlib.contextmanager
def limited(what, limit):
    """Set a soft limit (``resource.RLIMIT_...``) while the block runs."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def address_space_nbytes():
    """How many bytes of address space this process has mapped, which RLIMIT_AS counts."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
