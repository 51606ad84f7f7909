"""Memory borrowed from callers, and memory leased to them.

Slots of a ring are leased, to be written or read in place. Slots are reused, so a view must be unusable once its slot
is released. Python cannot revoke an array; but an object that exports its memory by the buffer protocol counts its
exports. So a `Lease` ends like a ``bytearray`` is resized, or an ``mmap`` closed: not while arrays or views of it are
alive (``BufferError``), and afterwards it exports nothing (``ValueError``).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject_RichCompare
from cpython.ref cimport Py_INCREF, PyTypeObject
from cpython.weakref cimport PyWeakref_NewRef

import numpy as np

from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.array_view cimport NDIM_MAX
from shmring.core.memory.mapping cimport Mapping
from shmring.core.sync.turn cimport FREE_THREADED

cnp.import_array()

OBJECT, UINT8 = np.dtype(object), np.dtype(np.uint8)

cdef extern from "numpy/arrayobject.h":
    PyTypeObject PyArray_Type
    object PyArray_NewFromDescr(PyTypeObject *cls, cnp.dtype descr, int nd, cnp.npy_intp *dims, cnp.npy_intp *strides,
                                void *data, int flags, void *obj)     # steals the reference to `descr`


# ---- borrowed --------------------------------------------------------------------------------------------------------

cdef inline bint is_plain(object array) noexcept:
    """Contiguous numbers, among them the extension types (bfloat16) that cannot be exported as a buffer."""
    cdef int number = cnp.PyArray_TYPE(array)
    return cnp.PyArray_IS_C_CONTIGUOUS(array) and (cnp.PyTypeNum_ISNUMBER(number) or cnp.PyTypeNum_ISBOOL(number)
                                                   or cnp.PyTypeNum_ISUSERDEF(number))


cdef int borrow(object data, borrowed_t *b, bint writable) except -1:
    """Pointer and size of a caller's memory, valid while the GIL is held and no Python code runs.

    Exact types save the 60 ns and more of an export. Exported memory stays valid until `end_borrow`. Without the GIL
    another thread may resize a bytearray at any time, so that is exported, too.
    """
    b.is_exported = False
    if PyBytes_CheckExact(data) and not writable:
        b.address, b.nbytes = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    elif PyByteArray_CheckExact(data) and not FREE_THREADED:
        b.address, b.nbytes = PyByteArray_AS_STRING(data), PyByteArray_GET_SIZE(data)
    elif cnp.PyArray_CheckExact(data) and is_plain(data) and (not writable or cnp.PyArray_ISWRITEABLE(data)):
        b.address, b.nbytes = <char *>cnp.PyArray_DATA(data), cnp.PyArray_NBYTES(data)
    else:
        if cnp.PyArray_Check(data) and data.dtype.hasobject:
            raise TypeError("arrays of Python objects cannot go through a ring: their bytes are addresses")
        PyObject_GetBuffer(data, &b.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        b.address, b.nbytes, b.is_exported = <char *>b.view.buf, b.view.len, True
    return 0


cdef void end_borrow(borrowed_t *b) noexcept:
    if b.is_exported:
        PyBuffer_Release(&b.view)


# ---- leased ----------------------------------------------------------------------------------------------------------

@cython.final
cdef class Span:
    """Exports leased memory, keeps its owner alive, and counts the exports."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.nbytes, self.is_readonly, flags)
        count_export(self, 1)

    def __releasebuffer__(self, Py_buffer *view):
        count_export(self, -1)


@cython.critical_section
cdef int count_export(Span span, int change) except -1:
    """How many there are after the change. Stores through exports that are gone are visible to the caller."""
    span.exports += change
    return span.exports


cdef Span make_span(object owner, char *address, Py_ssize_t nbytes, bint is_readonly):
    cdef Span span = Span.__new__(Span)
    span.owner, span.address, span.nbytes, span.is_readonly = owner, address, nbytes, is_readonly
    return span


@cython.final
@cython.internal
cdef class SpanReference:
    """The base of an array over a span: counted as one export, until the last array derived from it is gone."""

    cdef Span span

    def __dealloc__(self):
        if self.span is not None:
            count_export(self.span, -1)


cdef object array_over(Span span, object dtype, tuple shape):
    """An array over a span, of any dtype, those without the buffer protocol (bfloat16) included."""
    cdef SpanReference reference = SpanReference.__new__(SpanReference)
    cdef cnp.npy_intp dims[NDIM_MAX]
    cdef int d, ndim = len(shape)
    cdef int flags = cnp.NPY_ARRAY_C_CONTIGUOUS | (0 if span.is_readonly else cnp.NPY_ARRAY_WRITEABLE)
    if ndim > NDIM_MAX:
        raise ValueError(f"an array of {ndim} dimensions: at most {NDIM_MAX} are supported")
    for d in range(ndim):
        dims[d] = shape[d]
    Py_INCREF(dtype)
    cdef cnp.ndarray array = PyArray_NewFromDescr(&PyArray_Type, <cnp.dtype>dtype, ndim, dims, NULL, span.address,
                                                  flags, NULL)
    cnp.PyArray_UpdateFlags(array, cnp.NPY_ARRAY_ALIGNED)
    reference.span = span
    count_export(span, 1)
    cnp.set_array_base(array, reference)
    return array


cdef object operand(object x):
    """What an operator takes of a lease or of anything else."""
    if not isinstance(x, Lease):
        return x
    if not (<Lease>x).live().is_readonly:
        raise TypeError("a lease to be written has no operators: use lease.array")
    return x.array


@cython.final
@cython.c_api_binop_methods(True)
cdef class Lease:
    """Memory of a channel, leased until it is committed, aborted or released.

    It behaves as an array of that memory: ``lease[...] = x``, ``lease["field"]``, ``lease + 1`` and ``lease == x`` of
    one that was peeked, ``memoryview(lease)``; `array` has the methods of arrays. A message that is a Python object is
    its `object` instead. Arrays and views taken from it must be gone before it ends: otherwise the call that would end
    it raises ``BufferError`` and changes nothing; delete them (``del a``) and call again. Once it is over, every use of
    the lease raises ``ValueError``. So no array ever refers to memory that has been reused.

    At the end of a ``with`` block a message that was peeked is released, and a reserved one is committed, or aborted if
    the block raises. If it raises while arrays of the lease are alive, the lease stays open.

    Attributes
    ----------
    dtype : numpy.dtype
        That of Python objects if the message is an object.
    shape : tuple of int
    version : int
        Of a value that `shmring.Latest` has leased; else 0.
    """

    cdef Span live(self):
        if self.span is None:
            raise ValueError("this lease is over: its memory was committed, aborted or released")
        return self.span

    cdef int hold_object(self, object load) except -1:
        """After `make_lease`: the bytes are those of an object, which ``load`` makes of an array of them."""
        self.load, self.dtype, self.shape = load, OBJECT, ()
        return 0

    @cython.critical_section
    cdef int end(self) except -1:
        cdef int exports = count_export(self.live(), 0)
        if exports:
            raise BufferError(f"{exports} arrays or views of this lease are alive: delete them and call again")
        self.span = self.load = None
        return 0

    @cython.critical_section
    cdef object view(self):
        """The leased memory as an array; that of an object as one of bytes."""
        cdef Span span = self.live()
        if self.load is None:
            return array_over(span, self.dtype, self.shape)
        return array_over(span, UINT8, (span.nbytes,))

    @property
    def array(self):
        """The leased memory, read-only if it was peeked. The lease cannot end while this array is alive."""
        view = self.view()
        if self.load is not None:
            raise TypeError("this lease holds an object, which is no array: use lease.object")
        return view

    @property
    @cython.critical_section
    def nbytes(self):
        """Size of the leased memory in bytes."""
        return self.live().nbytes

    @property
    def over(self):
        """Whether it was committed, aborted or released."""
        return self.span is None

    def __getitem__(self, key):
        return self.array[key]

    def __setitem__(self, key, value):
        self.array[key] = value

    def __enter__(self):
        self.live()
        return self

    def release(self):
        """End the lease, which is read-only, as the end of a ``with`` block does.

        Raises
        ------
        BufferError
            Arrays or views of the lease are alive. Nothing changed; delete them and call again.
        ValueError
            It is over, or writable: commit or abort that.
        """
        if not self.live().is_readonly:
            raise ValueError("this lease is writable: end it by commit() or abort() of the sender")
        if self.end_reference is None:
            self.end()
            return
        end = self.end_reference()
        if end is not None:
            end.release()

    def __exit__(self, kind, error, trace):
        end = self.end_reference() if self.end_reference is not None else None
        if self.span is None or (end is None and self.end_reference is not None):
            return
        try:
            if self.span.is_readonly:
                self.release()
            elif kind is None:
                end.commit()
            else:
                end.abort()
        except BufferError:
            if kind is None:
                raise

    def __getattr__(self, name):
        if hasattr(np.ndarray, name):
            raise AttributeError(f"a lease has no {name!r}: use lease.array.{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __richcmp__(self, other, int how):
        return PyObject_RichCompare(self.array, operand(other), how)

    __hash__ = None

    def __neg__(self):
        return -operand(self)

    def __add__(a, b):
        return operand(a) + operand(b)

    def __sub__(a, b):
        return operand(a) - operand(b)

    def __mul__(a, b):
        return operand(a) * operand(b)

    def __truediv__(a, b):
        return operand(a) / operand(b)

    def __floordiv__(a, b):
        return operand(a) // operand(b)

    def __mod__(a, b):
        return operand(a) % operand(b)

    def __pow__(a, b, modulo):
        return operand(a) ** operand(b)

    def __matmul__(a, b):
        return operand(a) @ operand(b)

    def __len__(self):
        self.live()
        if not self.shape:
            raise TypeError("this lease holds a single value, which has no length")
        return self.shape[0]

    def __array__(self, dtype=None, copy=None):
        if copy:
            return np.array(self.array, dtype)
        return np.asarray(self.array, dtype)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyObject_GetBuffer(self.array, view, flags)     # the view keeps that array alive

    def __repr__(self):
        if self.span is None:
            return "<shmring.Lease, over>"
        return f"<shmring.Lease of {self.dtype} {self.shape}{', read-only' if self.span.is_readonly else ''}>"

    @property
    def object(self):
        """The message as an object: `array`, if it is none; else it is unpickled, anew at each use.

        Its arrays and tensors of 4 KiB or more lie in the leased memory, and the lease cannot end while one of them is
        alive. The arrays are read-only; tensors cannot be, but must not be written either. Smaller ones, and everything
        else, are copies. Raises `ObjectError` if the object cannot be unpickled here; `Receiver.release` drops it then.
        """
        load = self.load
        return self.array if load is None else load(self.view())


cdef Lease make_lease(object end, object owner, char *address, object dtype, tuple shape, bint is_readonly):
    cdef Lease lease = Lease.__new__(Lease)
    cdef Py_ssize_t nbytes = dtype.itemsize, extent
    for extent in shape:
        nbytes *= extent
    lease.span = make_span(owner, address, nbytes, is_readonly)
    lease.dtype, lease.shape, lease.version = dtype, shape, 0
    if end is not None:
        lease.end_reference = PyWeakref_NewRef(end, None)
    return lease


# ---- for Python code that keeps memory for arrays ----

cdef int require_room(Mapping mapping, object dtype, tuple shape) except -1:
    cdef object nbytes = dtype.itemsize
    for extent in shape:
        nbytes *= extent
    if mapping.address == NULL or nbytes > mapping.nbytes:
        raise ValueError(f"a mapping of {mapping.nbytes} bytes has no room for {dtype} {shape}, or is closed")
    return 0


def array_of(owner, Mapping mapping not None, object dtype, tuple shape, bint is_readonly):
    """An array at the beginning of a mapping; it keeps ``owner``."""
    require_room(mapping, dtype, shape)
    return array_over(make_span(owner, mapping.address, mapping.nbytes, is_readonly), dtype, shape)


def lease_of(owner, Mapping mapping not None, object dtype, tuple shape):
    """A writable lease of the beginning of a mapping; it keeps ``owner``, and `end_lease` ends it."""
    require_room(mapping, dtype, shape)
    return make_lease(owner, owner, mapping.address, dtype, shape, False)


def end_lease(Lease lease not None):
    """End a lease; ``BufferError`` while arrays or views of it are alive."""
    lease.end()
