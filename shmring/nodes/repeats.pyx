"""A cache of checked calls: a call with the types and sizes of an earlier one skips the checks.

The arrays may be others: element types and numbers of elements are compared, and how the memory overlaps is looked at.
"""

from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport overlaps
from shmring.nodes.program cimport Program
from shmring.nodes.transfers cimport bytes_at
from shmring.sync.turn cimport Turn

from shmring.base.timeouts import timeout_ns

cnp.import_array()

cdef enum:
    NSLOTS = 256


cdef class Repeatable:
    """A call that has succeeded.

    Parameters
    ----------
    kind : str
    option : str or int
        The operation or the root.
    program : Program
    x, out : Flat
        ``out`` may be None.
    offset : int
        Bytes from the start of OUT to X, if they may overlap so.
    """
    cdef str kind
    cdef object option
    cdef Program program
    cdef array_t x, out         # their addresses are not set
    cdef bint has_out
    cdef Py_ssize_t offset

    def __cinit__(self, str kind not None, option, Program program not None, x not None, out, Py_ssize_t offset):
        self.kind, self.option, self.program, self.offset = kind, option, program, offset
        self.x.dtype, self.x.itemsize, self.x.count = x.code, x.itemsize, x.count
        self.has_out = out is not None
        if self.has_out:
            self.out.dtype, self.out.itemsize, self.out.count = out.code, out.itemsize, out.count

    cdef bint agrees(self, str kind, option, array_t *x, array_t *out) except -1:
        """Whether a call with these arguments is the same but for its memory; ``out`` may be NULL."""
        if self.program.is_retired or not _are_alike(&self.x, x) or self.has_out != (out != NULL):
            return False
        if self.kind != kind or self.option != option:
            return False
        if out == NULL:
            return True
        if <char *> x.data == <char *> out.data + self.offset:
            return _are_alike(&self.out, out)
        return _are_alike(&self.out, out) and not overlaps(x, out, 0)


cdef class Repeats:
    """Some of the latest calls of a communicator."""
    cdef list calls

    def __init__(self):
        self.calls = [None] * NSLOTS

    def add(self, Repeatable call not None):
        """Make a call repeatable."""
        self.calls[_slot(call.kind, call.option, &call.x)] = call

    def make(self, comm, str kind not None, option, x, out, timeout, async_op):
        """Make a call of a communicator if it repeats an earlier one; returns whether it does.

        ``out`` is None on ranks without a result.
        """
        if async_op is not False or comm.has_backlog or (type(option) is not str and type(option) is not int):
            return False
        if timeout is not ...:
            timeout_ns(timeout)
        cdef Turn turn = comm._turn
        turn.take()
        try:
            return self.try_once(comm, kind, option, x, out, timeout)
        finally:
            turn.give()

    cdef bint try_once(self, comm, str kind, option, x, out, timeout) except -1:
        cdef array_t a, b
        cdef bint has_out = out is not None
        try:
            if has_out:
                out_owner = target_array(out, &b, True)
            if out is x:
                a, x_owner = b, out_owner
            else:
                x_owner = source_array(x, &a, True)
        except Exception:       # also raised by the call that does not repeat one, after its other checks
            return False
        cdef Repeatable call = self.calls[_slot(kind, option, &a)]
        if call is None or not call.agrees(kind, option, &a, &b if has_out else NULL):
            return False
        comm._execute(call.program, _array(x_owner, &a), _array(out_owner, &b) if has_out else None, timeout)
        if has_out:
            copy_back(out_owner)
        return True


cdef size_t _slot(str kind, option, const array_t *x) except? 0:
    return (<size_t> hash(kind) * 31 + <size_t> hash(option) * 17 + x.count * 5 + <size_t> x.dtype) % NSLOTS


cdef inline bint _are_alike(const array_t *a, const array_t *b) noexcept:
    return a.count == b.count and a.dtype == b.dtype and a.itemsize == b.itemsize


cdef object _array(object owner, const array_t *a):
    return owner if cnp.PyArray_CheckExact(owner) else bytes_at(a.data, a.nbytes, owner)
