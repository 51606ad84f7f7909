"""Reductions by callables: ``op`` may be a NumPy ufunc or any function ``f(a, b)`` that returns an array.

No kernel knows it, so the operands themselves are moved to where they are needed, and folded there in rank order:
gathered for a reduce, gathered everywhere for an all-reduce or scan, exchanged for a reduce-scatter. By the time that
``f`` runs the ranks are through with each other. So an exception that it raises on one rank is that rank's own; the
others get their results, and all remain in step.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from shmring.arrays.array_view cimport copy_back, source_array, target_array
from shmring.arrays.outputs cimport empty_like_array, shape_of
from shmring.collective.schedule cimport run_request
from shmring.collective.persistent cimport prepare
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_EXSCAN, KIND_GATHER, KIND_REDUCE,
                                KIND_REDUCE_SCATTER, KIND_SCAN, NO_OP, NO_ROOT, pack_signature)

from shmring.dtypes import DTYPES, OP_CODES

# The ufuncs that a kernel does bit for bit, and the families of dtypes on which it does. Not those on 16-bit floats,
# where ufuncs round after every step; nor minimum and maximum of floats (the sign of zero is anyone's choice), nor
# products of complex numbers (NumPy may fuse). A NaN is a NaN, whatever its other bits.
_KERNELS = {
    np.add: ("sum", "iubFc"),
    np.multiply: ("prod", "iubF"),
    np.minimum: ("min", "iub"),
    np.maximum: ("max", "iub"),
    np.bitwise_and: ("band", "iub"),
    np.bitwise_or: ("bor", "iub"),
    np.bitwise_xor: ("bxor", "iub"),
    np.logical_and: ("land", "b"),
    np.logical_or: ("lor", "b"),
}


cdef int number_of_callable(object op, int dtype) except -1:
    """The kernel that does exactly what ``op`` does on this dtype, NO_OP if there is none."""
    found = _KERNELS.get(op) if isinstance(op, np.ufunc) else None
    if found is None:
        return NO_OP
    kind = DTYPES[dtype]
    family = "F" if kind.family == "f" and kind.itemsize >= 4 else kind.family
    return OP_CODES[found[0]] if family in found[1] else NO_OP


cdef class Fold(Prepared):
    """A reduction whose operands are moved by the request, and folded by a function."""

    cdef object fold             # f(a, b)
    cdef object operands         # on their way from all ranks; None where nothing is folded
    cdef array_t out
    cdef int first               # folds the operands of ranks first .. last - 1
    cdef int last

    cdef object run(self):
        self.engine.enter()
        try:
            run_request(self.engine, self.program, &self.request, self.timeout_ns)
        finally:
            self.engine.leave()
        if self.last > self.first:
            self.fold_operands()
            copy_back(self.kept)
        return self.result

    cdef int fold_operands(self) except -1:
        cdef array_t a
        cdef int j
        total = self.operands[self.first, ...]
        held = source_array(total, &a)
        for j in range(self.first + 1, self.last):
            total = self.fold(total, self.operands[j, ...])
            held = source_array(total, &a)
            if a.dtype != self.out.dtype or a.count != self.out.count:
                raise TypeError(f"op {self.fold!r} made {a.count} x {DTYPES[a.dtype].name} of {self.out.count} x "
                                f"{DTYPES[self.out.dtype].name}; it must return an array like its operands")
        if a.nbytes:
            memcpy(self.out.data, a.data, a.nbytes)
        return 0


cdef Prepared prepare_user_op(Engine engine, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held,
                           kept, result):
    cdef Fold call = Fold.__new__(Fold)
    cdef array_t operands = x[0]
    cdef int rank = engine.c.group.rank, size = engine.c.group.size, movement = KIND_ALL_GATHER
    cdef uint64_t signature
    call.fold = op
    call.out = out[0]
    call.last = size
    if kind == KIND_REDUCE:
        movement = KIND_GATHER
        call.last = size if rank == root else 0
    elif kind == KIND_REDUCE_SCATTER:
        movement = KIND_ALL_TO_ALL
    elif kind == KIND_SCAN:
        call.last = rank + 1
    elif kind == KIND_EXSCAN:
        call.last = rank
    if isinstance(op, np.ufunc):
        check_ufunc(op, DTYPES[x.dtype].name)
    if result is not None:
        call.operands = empty_like_array(result, (size, *shape_of(result)))
        if isinstance(op, np.ufunc):
            call.operands = np.asarray(call.operands)
        target_array(call.operands, &operands)
    prepare(call, engine, movement, x, &operands, root, NO_OP, NULL, timeout_ns, held, kept, result)
    # It moves like another collective, but must not be taken for that one.
    signature = pack_signature(kind, NO_OP, x.dtype, root if kind == KIND_REDUCE else NO_ROOT, x.count)
    call.sign(signature)
    return call


def check_ufunc(op, name):
    """Raise unless a ufunc can fold arrays of the dtype ``name``: found out on empty ones, before anything is sent."""
    if op.nin != 2 or op.nout != 1 or op.signature is not None:
        raise ValueError(f"op {op!r}: a reduction needs a ufunc of two elements, with one output")
    try:
        nothing = np.empty(0, name)
    except TypeError:
        raise TypeError(f"op {op!r} on {name}: NumPy knows this dtype only after an import of ml_dtypes") from None
    made = op(nothing, nothing).dtype
    if made != nothing.dtype:
        raise TypeError(f"op {op!r} makes {made} of {name}; the result of a reduction has the dtype of its operands")
