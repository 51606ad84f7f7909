"""Segments without a name: a file in shared memory that only descriptors refer to.

There is no moment at which such a segment has a name. So wherever a process dies, nothing is left of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from shmring.core.memory import header as headers
from shmring.core.memory.descriptor import Descriptor
from shmring.core.memory.names import inode_of
from shmring.core.memory.reserve import map_file, reserve
from shmring.core.memory.segment import Segment, stamp
from shmring.core.memory.syscalls import SHM_DIRECTORY, call, refusal_to_create, refusals

_MEMFD = "shmring"  # what /proc calls a memory file


def create_unnamed(label: str, nbytes: int, *, kind: int, params: Sequence[int] = ()) -> Segment:
    """Create a segment that other processes `adopt` by its `Segment.descriptor`. Errors call it ``label``; the other
    arguments, and what it raises, are those of `segment.create`.
    """
    with refusals(f"create {label}"):
        spare = _open(label)
        try:
            reserve(label, spare.fd, 0, nbytes)
            mapping = map_file(label, spare.fd, nbytes)
            call("madvise", mapping.prefault, 0, nbytes)
            stamp(mapping, kind, 0, 1, params)
            return Segment(label, headers.read(mapping), mapping, inode_of(os.fstat(spare.fd)), spare=spare)
        except BaseException:
            spare.close()
            raise


def _open(label: str) -> Descriptor:
    """A new file; in the kernel's own memory file system where that of shared memory cannot do without names."""
    try:
        return call("open", Descriptor, os.open, SHM_DIRECTORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise refusal_to_create(label, error) from None
    return call("memfd_create", Descriptor, os.memfd_create, _MEMFD)


def is_unnamed(target: str) -> bool:
    """Whether a link in ``/proc/*/fd`` may be that of such a file."""
    return target.startswith((f"{SHM_DIRECTORY}/#", f"/memfd:{_MEMFD} "))
