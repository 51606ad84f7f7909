"""Reductions of tensors by the core's kernels, in one call or in parts, with the same bits as a collective."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc

from shmring._c.layout cimport SHMRING_ORDINARY
from shmring.arrays.array_view cimport array_t, source_array, target_array
from shmring.arrays.reduce cimport carrier_t, find_carrier, find_kernel, fold_t, reduce_into

import torch

from shmring.dtypes import DTYPE_CODES, OPS, is_defined, op_code, widening


def dtype_name(dtype):
    """The core's name of a dtype."""
    return str(dtype).removeprefix("torch.")


def checked(str op, x):
    """The core's name of an operation; raises if it is not defined for this dtype."""
    name, dtype = OPS[op_code(op)], dtype_name(x.dtype)
    if dtype not in DTYPE_CODES or not is_defined(name, dtype):
        raise TypeError(f"op {name!r} is not defined on {dtype}")
    return name


def partial_dtype(dtype, str op):
    """The dtype of a partial result."""
    return torch.float32 if widening(op_code(op), DTYPE_CODES[dtype_name(dtype)]) > 1 else dtype


def fold(sources, str op, out, prefix=None, int total=0):
    """Reduce tensors in the order given.

    Parameters
    ----------
    sources : sequence of torch.Tensor
        At least one. All tensors are dense, of one dimension and of equal length.
    op : str
        A name returned by `checked`.
    out : torch.Tensor
        May be ``prefix``, or one of the sources.
    prefix : torch.Tensor, optional
        The partial result of the operands before these; None: there are none.
    total : int, optional
        Number of operands of all parts, if these are the last; 0: ``out`` is a partial result.
    """
    cdef array_t operand, result, before
    cdef fold_t f
    cdef const carrier_t *carrier
    cdef const void **src
    cdef int n = 0, code = op_code(op)
    cdef list held = [target_array(out, &result), source_array(sources[0], &operand)]
    f.kernel, f.closes, f.total = find_kernel(code, operand.dtype), NULL, total
    f.itemsize = f.first_itemsize = operand.itemsize
    f.dst_itemsize = result.itemsize
    carrier = find_carrier(code, operand.dtype)
    if prefix is not None:
        held.append(source_array(prefix, &before))
        f.first_itemsize = before.itemsize
    if carrier != NULL and total == 0:
        f.kernel = carrier.opens if prefix is None else carrier.carries
    elif carrier != NULL and prefix is not None:
        f.kernel, f.closes = NULL, carrier.closes
    src = <const void **> PyMem_Malloc((len(sources) + 1) * sizeof(void *))
    if src == NULL:
        raise MemoryError
    try:
        if prefix is not None:
            src[0] = before.data
            n = 1
        for x in sources:
            held.append(source_array(x, &operand))
            src[n] = operand.data
            n += 1
            if operand.count != result.count or operand.itemsize != f.itemsize:
                raise ValueError(f"a source has {operand.count} elements, out has {result.count}")
        with nogil:
            reduce_into(&f, result.data, NULL, src, n, result.count, SHMRING_ORDINARY, SHMRING_ORDINARY)
    finally:
        PyMem_Free(src)
