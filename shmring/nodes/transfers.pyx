"""The messages of a wire, for compiled code: as structures in place of objects. By the wire's methods in Python."""

import numpy as np

from libc.stdint cimport int64_t

from shmring.arrays cimport numpy_api as cnp

from shmring.nodes.history cimport History

from shmring.nodes.wire import GRACE_S

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_SimpleNewFromData(int nd, cnp.npy_intp *dims, int typenum, void *data)
    enum:
        NPY_UINT8


cdef object bytes_at(const void *data, size_t nbytes, object owner):
    """An array of uint8 at this address that keeps ``owner``."""
    cdef cnp.npy_intp n = nbytes
    if n == 0:
        return np.empty(0, np.uint8)
    array = PyArray_SimpleNewFromData(1, &n, NPY_UINT8, <void *> data)
    cnp.set_array_base(array, owner)
    return array


cdef class Transfers:
    """The messages of one wire.

    Parameters
    ----------
    wire : Wire
    """

    def __init__(self, wire):
        self.wire, self.works, self.history = wire, {}, History()

    cdef int send(self, const void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        return self._keep(self.wire.send(bytes_at(data, nbytes, owner), peer, channel, number), work)

    cdef int recv(self, void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        return self._keep(self.wire.recv(bytes_at(data, nbytes, owner), peer, channel, number), work)

    cdef int _keep(self, object made, work_t *work) except -1:
        work.is_pending = work.is_python = True
        self.works[<size_t> work] = made
        return 0

    cdef int wait(self, work_t *work, int peer, int64_t deadline_ns) except -1:
        if work.is_pending:
            self.wire.wait(self.works.pop(<size_t> work), peer, left_s(deadline_ns, GRACE_S))
            work.is_pending = False
        return 0

    cdef Collective collective(self, const form_t *form):
        return None

    cdef list find_most(self, list numbers, int64_t deadline_ns):
        raise NotImplementedError


cdef class Collective:
    """A collective of the wire, for calls of one form."""

    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1:
        """Make it, with what `perform` of a plan has as X and OUT; NULL where the rank has none."""
        raise NotImplementedError
