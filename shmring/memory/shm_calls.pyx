"""The calls of posix_ipc that `shmring.memory.names` makes, by the same names, for interpreters without the GIL.

posix_ipc (1.3.2) does not declare that it can do without the GIL, so its import would enable that for the whole
process.
"""

import os

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EEXIST, EINTR, EINVAL, ENOENT, errno
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR
from posix.mman cimport shm_open, shm_unlink

O_CREX = O_CREAT | O_EXCL


class ExistentialError(Exception):
    """The name exists, or does not."""


class PermissionsError(Exception):
    """The name may not be opened, or not be unlinked."""


cdef object refusal(str name, int number):
    text = f"{name}: {os.strerror(number)}"
    if number == EEXIST or number == ENOENT:
        return ExistentialError(text)
    if number == EACCES:
        return PermissionsError(text)
    return ValueError(text) if number == EINVAL else OSError(number, os.strerror(number), name)


def SharedMemory(str name not None, int flags=0, int mode=0o600, size=0):
    """Open a name for reading and writing; return the descriptor. ``size`` must be 0."""
    cdef bytes encoded = os.fsencode(name)
    cdef int fd
    while True:
        fd = shm_open(encoded, flags | O_RDWR, mode)
        if fd >= 0:
            return fd
        if errno != EINTR:
            raise refusal(name, errno)
        PyErr_CheckSignals()


def unlink_shared_memory(str name not None):
    """Unlink a name."""
    if shm_unlink(os.fsencode(name)) != 0:
        raise refusal(name, errno)
