"""Limits of the kernel on one process: for the time of a block, or, of a filter, for its life."""

import contextlib
import ctypes
import resource
import struct


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


def refuse_system_call(number, error):
    """Have the kernel refuse a call to this process from now on, as a container's filter does; whether it can."""
    load, equal, give = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, 0x50000 | error), (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None).prctl
    numbers = [ctypes.c_ulong(number) for number in (1, 0, 0, 0)]
    return prctl(38, *numbers) == 0 and prctl(22, ctypes.c_ulong(2), program, *numbers[1:3]) == 0
