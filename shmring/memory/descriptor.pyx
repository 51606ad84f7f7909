"""A file descriptor that is closed once, by its owner or with it.

A signal handler may raise between any two instructions of Python code, also between a system call and the assignment
of its result. In compiled code it cannot.
"""

import os


cdef class Descriptor:
    """Owner of the descriptor that ``opening(*args)`` returns, itself or as ``.fd``.

    The first `close` closes it, or else the deallocation. No exception of a signal handler can come before it is owned,
    if ``opening`` is compiled, too. A number that is closed twice may be another file's by then.
    """

    cdef readonly int fd

    def __cinit__(self, opening not None, *args):
        self.fd = -1
        opened = opening(*args)
        self.fd = opened if isinstance(opened, int) else opened.fd

    def close(self):
        """Close; later calls do nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __dealloc__(self):
        self.close()
