"""What tests cannot ask of QEMU's user mode (tests/labs/arm64.sh), nor of a sanitizer."""

import ctypes
import mmap
import os
import struct

import pytest

from shmring.collectives.engine.outbox import prepare_outbox
from shmring.core.memory.mapping import Mapping
from shmring.launch.processes import _PR_GET_CHILD_SUBREAPER, _prctl

SANITIZED = "address" in os.environ.get("SHMRING_SANITIZED", "")


def _takes_any_advice() -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(12345)
        except OSError:
            return False
    return True


def _adopts_orphans() -> bool:
    return _prctl is not None and _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()), 0, 0, 0) == 0


def _method_of_liveness() -> int:
    fd = os.memfd_create("page")
    try:
        os.ftruncate(fd, 2 * mmap.PAGESIZE)
        mapping = Mapping(fd, 2 * mmap.PAGESIZE)
    finally:
        os.close(fd)
    prepare_outbox(mapping)
    return 2 if struct.unpack_from("I", mapping, WORD_AT)[0] >> 31 else 1


WORD_AT = 384
"""Of the liveness in the header of an outbox (shmring/core/c/layout.h)."""

METHOD = _method_of_liveness()
"""1 if the kernel marks deaths; 2 if a process that waits or probes has to look into the process table."""

# A kernel refuses advice that does not exist; QEMU's user mode accepts everything that it does not know.
EMULATED = _takes_any_advice()

needs_marks = pytest.mark.skipif(
    METHOD != 1,
    reason="no robust lists: only waiting ranks of one PID namespace notice deaths, and locks of the dead stay locked",
)
needs_advice = pytest.mark.skipif(EMULATED, reason="QEMU's user mode accepts any advice and follows none")
needs_adoption = pytest.mark.skipif(
    not _adopts_orphans(), reason="no process adopts orphans here: the launcher does not see what ranks leave running"
)
needs_address_limit = pytest.mark.skipif(
    EMULATED or SANITIZED,
    reason="QEMU's user mode does not pass RLIMIT_AS on" if EMULATED else "the address sanitizer maps terabytes",
)
