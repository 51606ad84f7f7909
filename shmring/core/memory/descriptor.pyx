"""A file descriptor that is closed once, by its owner or with it.

A signal handler may raise between any two instructions of Python code, also between a system call and the assignment
of its result. In compiled code it cannot.
"""

import os
from threading import get_ident, main_thread

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EEXIST, EINTR, EINVAL, ENOENT, errno
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR, open as open_file
from posix.mman cimport shm_open, shm_unlink
from posix.unistd cimport STDERR_FILENO, close

from shmring.core.base.unraisable import raise_later


cdef extern from "core/c/descriptors.h" nogil:
    int c_above_standard "above_standard" (int descriptor)


def above_standard(int descriptor):
    """The open file of a descriptor under a number above those of the standard streams (core/c/descriptors.h).

    Raises `OSError` if there is no descriptor left; the one given is closed then.
    """
    cdef int moved = c_above_standard(descriptor)
    if moved < 0:
        raise OSError(errno, os.strerror(errno))
    return moved


def hold_standard():
    """Give the standard streams that are closed to /dev/null: before calls of the standard library that pass
    descriptors on or start processes, whose own descriptors would get their numbers."""
    cdef int number
    while True:
        number = open_file("/dev/null", O_RDWR)      # children inherit it
        if number > STDERR_FILENO:
            close(number)
        if number < 0 or number > STDERR_FILENO:
            return


def passed_on(descriptor):
    """What multiprocessing pickles for a descriptor."""
    from multiprocessing.reduction import DupFd

    hold_standard()
    return DupFd(descriptor)


cdef class Descriptor:
    """Owner of the descriptor that ``opening(*args)`` returns, itself or as ``.fd``; moved above the standard streams.

    The first `close` closes it, or else the deallocation. No exception of a signal handler can come before it is owned,
    if ``opening`` is compiled, too. A number that is closed twice may be another file's by then.
    """

    cdef int number
    cdef bint is_open              # false as the memory is allocated, so also if the arguments are refused

    def __cinit__(self, opening not None, *args):
        opened = opening(*args)
        self.number = above_standard(opened if isinstance(opened, int) else opened.fd)
        self.is_open = True

    @property
    def fd(self):
        """The descriptor; -1 once it is closed."""
        return self.number if self.is_open else -1

    def close(self):
        """Close; later calls do nothing."""
        if self.is_open:
            self.is_open = False
            os.close(self.number)

    def __dealloc__(self):
        if self.is_open:      # in C: the modules of Python may be gone
            close(self.number)


interrupted = []    # what `close_or_keep` has kept


def close_or_keep(owner):
    """Call ``owner.close()``, as its ``__del__``; keep the owner, for a call at exit, if that fails.

    Python drops what a finalizer raises. What a signal handler has raised in it, Ctrl-C too, the main thread raises
    after the finalizer instead, and the call is repeated.
    """
    cdef object raised = None
    for _attempt in range(2):
        try:
            owner.close()
            break
        except BaseException as error:
            if isinstance(error, OSError) or get_ident() != main_thread().ident:      # of no signal handler
                interrupted.append(owner)
                raise
            raised = error
    else:
        interrupted.append(owner)
    if raised is not None:
        raise_later(raised)


# ---- posix_ipc without the GIL -------------------------------------------------------------------------------------
# The calls of posix_ipc that `shmring.core.memory.names` makes, by the same names, for interpreters without the GIL:
# posix_ipc (1.3.2) does not declare that it can do without the GIL, so its import would enable that for the process.

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
