"""A command in a child process, which ends with the thread that has started it; no Python code precedes it there."""

import os
import sys

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport errno
from libc.stdlib cimport calloc, free
from posix.signal cimport sigaddset, sigemptyset, sigset_t


cdef extern from "launch/command.h" nogil:
    ctypedef struct shmring_command:
        char **paths
        char **argv
        char **envp
        int streams[3]
        const char *processors
        size_t nprocessors
        sigset_t blocked
        int parent
        int result
    int shmring_start(const shmring_command *c)


cdef class Command:
    """A command that has been started.

    Parameters
    ----------
    command : sequence of str
    environ : mapping
        All of its environment.
    streams : tuple of int
        What becomes its descriptors 0, 1 and 2; -1: what this process has there.
    processors : sequence of int, optional
        To which it is bound.
    blocked : set of int
        The signals that it has blocked.

    Attributes
    ----------
    pid : int
    returncode : int
        Its exit status, or -N if signal N killed it; None while it runs, as far as `poll` knows.
    """

    cdef readonly int pid
    cdef readonly object returncode

    def __init__(self, command, environ, streams=(-1, -1, -1), processors=None, blocked=()):
        cdef shmring_command c
        program, *arguments = command
        name = os.fsencode(program)
        folders = [b""] if os.path.dirname(name) else [os.fsencode(one) for one in os.get_exec_path(environ)]
        paths = [os.path.join(folder, name) for folder in folders]
        words = [name, *map(os.fsencode, arguments)]
        variables = [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in environ.items()]
        if any([b"\0" in text for text in paths + words + variables]):
            raise ValueError("embedded null byte")
        bits = b"" if processors is None else bits_of(processors)
        c.processors, c.nprocessors = PyBytes_AS_STRING(bits) if bits else NULL, len(bits)
        c.streams[0], c.streams[1], c.streams[2] = streams
        sigemptyset(&c.blocked)
        for number in blocked:
            sigaddset(&c.blocked, int(number))
        c.parent = os.getpid()
        c.paths = c.argv = c.envp = NULL
        errors, c.result = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                c.paths, c.argv, c.envp = array_of(paths), array_of(words), array_of(variables)
                with nogil:
                    self.pid = shmring_start(&c)
                if self.pid < 0:
                    raise OSError(errno, os.strerror(errno), program)
            finally:
                free(c.paths)
                free(c.argv)
                free(c.envp)
                os.close(c.result)
            failure = int.from_bytes(os.read(errors, sizeof(int)), sys.byteorder)
        finally:
            os.close(errors)
        if failure:
            os.waitpid(self.pid, 0)
            self.pid = 0
            raise OSError(failure, os.strerror(failure), program)

    def poll(self):
        """The return code; None while it runs."""
        if self.returncode is None and self.pid > 0:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:      # another thread of the program has waited for it: as `subprocess`
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number):
        """Send it a signal, unless it has ended, or could not be started."""
        if self.poll() is None and self.pid > 0:
            os.kill(self.pid, number)


def bits_of(processors):
    """A ``cpu_set_t``."""
    bits = sum([1 << number for number in set(processors)])
    words = [bits >> 64 * i & (1 << 64) - 1 for i in range(bits.bit_length() // 64 + 1)]
    return b"".join([word.to_bytes(8, sys.byteorder) for word in words])


cdef char **array_of(list texts) except NULL:
    """An array of pointers to these bytes, which the caller keeps; NULL after the last."""
    cdef char **array = <char **> calloc(len(texts) + 1, sizeof(char *))
    if array == NULL:
        raise MemoryError
    for i, text in enumerate(texts):
        array[i] = PyBytes_AS_STRING(text)
    return array
