"""Tensors of torch, and arrays, inside objects: their elements are buffers of the pickle, which may travel out of band.

torch pickles a tensor's storage by a file format of its own, with several copies. Here a dense tensor in main memory
becomes its bytes, dtype, shape and strides. All other tensors (sparse, quantized, nested, of other devices, with
attributes or hooks) are pickled as without this module. torch is not imported to send: a program that has no torch has
no tensors. NumPy pickles an array likewise; it arrives read-only if it is, but for `reduce_array`.
"""

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

import copyreg
import sys
from functools import partial
from pickle import PickleBuffer

from numpy import ndarray

from shmring.core.arrays.lease cimport make_span

from shmring.core.objects.open_files import refusing

cdef extern from "Python.h":
    object PyPickleBuffer_FromObject(object exporter)

cdef enum:
    REQUIRES_GRAD = 1
    CONJUGATED = 2             # its bytes are the conjugates of its values
    NEGATED = 4

# A tensor of so many bytes that lies in shared memory already is lent by torch's own reducer, where there is one: two
# copies would take longer.
cdef Py_ssize_t LENT_NBYTES = 1 << 20


# ---- sending ---------------------------------------------------------------------------------------------------------

def dispatch_table(bint as_multiprocessing, refusal):
    """The reducers of a pickler, by class: those of `copyreg`, of multiprocessing's ``ForkingPickler``, and of tensors.

    Parameters
    ----------
    as_multiprocessing : bool
        Whether objects arrive as with multiprocessing: arrays are writable, and torch's own reducers, which lend the
        memory of a tensor by a descriptor, are used for tensors that this module cannot send. Else these are copied.
    refusal : str or None
        Why no open file can be passed (core/objects/open_files.py).

    Returns
    -------
    dict
    """
    global latest
    cdef Tables tables = latest
    if tables is None:
        load_multiprocessing()
        tables = latest = tables_for(None)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)      # None also while another thread imports torch
    if tensor is not tables.tensor or not (is_copy(tables.copyreg, copyreg.dispatch_table)
                                           and is_copy(tables.forking, ForkingPickler._extra_reducers)):
        tables = latest = tables_for(tensor)
    key = as_multiprocessing, refusal
    table = tables.made.get(key)
    if table is None:
        table = tables.made[key] = table_of(tables, as_multiprocessing, refusal)
    return table


@cython.final
cdef class Tables:
    """Tables made for the reducers that are registered now."""
    cdef dict copyreg, forking         # copies of what is registered
    cdef object tensor
    cdef dict made


cdef Tables tables_for(object tensor):
    cdef Tables tables = Tables.__new__(Tables)
    tables.copyreg, tables.forking = dict(copyreg.dispatch_table), dict(ForkingPickler._extra_reducers)
    tables.tensor, tables.made = tensor, {}
    return tables


cdef Tables latest = None
cdef object ForkingPickler = None
cdef object DupFd = None


cdef int load_multiprocessing() except -1:
    """Import what has the reducers: at the first object, as collectives of arrays do without."""
    global ForkingPickler, DupFd
    from multiprocessing import reduction, resource_sharer

    ForkingPickler, DupFd = reduction.ForkingPickler, resource_sharer.DupFd
    return 0


cdef bint is_copy(dict copy, dict original) noexcept:
    """Whether both have the same objects in the same order: a look at each, as this is done for every pickle."""
    cdef Py_ssize_t at = 0, at_copy = 0
    cdef PyObject *key
    cdef PyObject *value
    cdef PyObject *copied_key
    cdef PyObject *copied_value
    with cython.critical_section(original):
        if len(copy) != len(original):
            return False
        while PyDict_Next(original, &at, &key, &value):
            if not PyDict_Next(copy, &at_copy, &copied_key, &copied_value):
                return False
            if key != copied_key or value != copied_value:
                return False
    return True


def registered(bint with_torchs, refusal):
    """The reducers that are registered, by class; ``refusal`` as for `dispatch_table`."""
    cdef dict table = dict(copyreg.dispatch_table)
    load_multiprocessing()
    for kind, reduce in dict(ForkingPickler._extra_reducers).items():
        if with_torchs or not is_torchs(reduce):
            table[kind] = reduce
    if refusal is not None:
        table[DupFd] = refusing(refusal)
    return table


cdef dict table_of(Tables tables, bint as_multiprocessing, refusal):
    cdef dict table = registered(as_multiprocessing, refusal)
    if as_multiprocessing:
        table.setdefault(ndarray, reduce_array)
    if tables.tensor is not None:
        for kind in (tables.tensor, getattr(getattr(sys.modules["torch"], "nn", None), "Parameter", None)):
            found = table.get(kind)
            if found is None:
                table[kind] = reduce_plainly
            elif is_torchs(found):
                table[kind] = partial(reduce_tensor, found)
    return table


cdef bint is_torchs(object reduce):
    return (getattr(reduce, "__module__", None) or "").startswith("torch.")


def reduce_plainly(x):
    """How to pickle a tensor, without reducers of multiprocessing."""
    return reduce_tensor(None, x)


def reduce_tensor(otherwise, x):
    """How to pickle a tensor or a parameter; ``otherwise`` reduces those that are not plain (None: as torch does)."""
    torch = sys.modules["torch"]
    if type(x) is torch.Tensor:
        reduced = reduced_tensor(torch, x, otherwise is not None)
    elif x.__dict__ or x._backward_hooks:      # a parameter
        reduced = None
    else:
        reduced = rebuild_parameter, (x.detach(), x.requires_grad)
    if reduced is not None:
        return reduced
    return otherwise(x) if otherwise is not None else x.__reduce_ex__(5)


def reduce_array(x):
    """How to pickle an array that is to arrive writable, as from multiprocessing, also if it is read-only here."""
    cdef tuple reduced = x.__reduce_ex__(5)
    if x.flags.writeable or not isinstance(reduced[1][0], PickleBuffer):
        return reduced
    make, (_, *layout) = reduced
    cdef uintptr_t address = x.ctypes.data
    return make, (PyPickleBuffer_FromObject(make_span(x, <char *>address, x.nbytes, False)), *layout)


cdef tuple reduced_tensor(object torch, object x, bint may_lend):
    """The reduction of a dense tensor in main memory; None for any other, or if its memory must be lent."""
    cdef int flags = 0
    cdef bint requires_grad = x.requires_grad
    if (not x.is_cpu or x.layout is not torch.strided or x.is_quantized or x.is_nested or x.__dict__
            or x._backward_hooks or (requires_grad and not x.is_leaf)):
        return None
    if requires_grad:
        flags |= REQUIRES_GRAD
        x = x.detach()
    cdef tuple shape = tuple(x.shape), strides = None
    if not x.is_contiguous():
        strides = x.stride()
        if not is_dense(shape, strides):
            x, strides = x.contiguous(), None
    if x.is_conj():
        flags |= CONJUGATED
    if x.is_neg():
        flags |= NEGATED
    cdef Py_ssize_t nbytes = x.nbytes
    if nbytes == 0:
        return rebuild_tensor, (None, x.dtype, shape, None, flags)
    cdef uintptr_t address = x.data_ptr()
    if address == 0:           # a tensor of zeros without memory
        return None
    if may_lend and nbytes >= LENT_NBYTES and x.is_shared():
        return None
    buffer = PyPickleBuffer_FromObject(make_span(x, <char *>address, nbytes, False))
    return rebuild_tensor, (buffer, x.dtype, shape, strides, flags)


cdef bint is_dense(tuple shape, tuple strides):
    """Whether the elements fill a piece of memory once, in the order of some permutation of the dimensions."""
    cdef Py_ssize_t expected = 1
    for stride, extent in sorted(zip(strides, shape)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


# ---- receiving -------------------------------------------------------------------------------------------------------

def rebuild_tensor(buffer, dtype, tuple shape, strides, int flags):
    """The tensor with these elements; it keeps their memory."""
    cdef uintptr_t address
    import torch       # what was sent contains a dtype of torch, which has imported it

    if buffer is None:
        x = torch.empty(shape, dtype=dtype)
    else:
        if memoryview(buffer).readonly:        # an array over a lease: torch has no read-only tensors, and warns
            address = buffer.ctypes.data
            buffer = make_span(buffer, <char *>address, buffer.nbytes, False)
        x = torch.frombuffer(buffer, dtype=dtype)
        if strides:
            x = x.as_strided(shape, strides)
        elif len(shape) != 1:
            x = x.view(shape)
    if flags:
        if flags & CONJUGATED:
            x = x.conj()
        if flags & NEGATED:
            x = torch._neg_view(x)
        if flags & REQUIRES_GRAD:
            x.requires_grad_()
    return x


def rebuild_parameter(x, bint requires_grad):
    """The parameter that consists of this tensor."""
    from torch.nn import Parameter

    return Parameter(x, requires_grad)
