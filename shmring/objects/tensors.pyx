"""Tensors of torch, and arrays, inside objects: their elements are buffers of the pickle, which may travel out of band.

torch pickles a tensor's storage by a file format of its own, with several copies. Here a dense tensor in main memory
becomes its bytes, dtype, shape and strides. All other tensors (sparse, quantized, nested, of other devices, with
attributes or hooks) are pickled as without this module. torch is not imported to send: a program that has no torch has
no tensors. NumPy pickles an array likewise; it arrives read-only if it is, but for `reduce_array`.
"""

from libc.stdint cimport uintptr_t

import copyreg
import sys
from functools import partial
from pickle import PickleBuffer

from shmring.arrays.lease cimport make_span

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

def dispatch_table(registered=None):
    """The reducers of a pickler, by class: those of `copyreg`, those given, and that of tensors.

    Parameters
    ----------
    registered : dict, optional
        Reducers by class, as multiprocessing's ``ForkingPickler`` has them. torch's own for tensors, which lend the
        memory by a descriptor for each tensor, are not used for tensors that this module can send.

    Returns
    -------
    dict or None
        None: what picklers use by themselves.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)      # None also while another thread imports torch
    if tensor is None and not registered:
        return None
    table = copyreg.dispatch_table | (registered or {})
    if tensor is not None:
        for kind in (tensor, getattr(getattr(sys.modules["torch"], "nn", None), "Parameter", None)):
            found = table.get(kind)
            if found is None:
                table[kind] = reduce_plainly
            elif (getattr(found, "__module__", None) or "").startswith("torch."):
                table[kind] = partial(reduce_tensor, found)
    return table


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
