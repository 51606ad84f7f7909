"""Reductions by user functions: ``op`` may be a NumPy ufunc or any function ``f(a, b)`` that returns an array.

No kernel implements it. So the operands themselves are moved to the ranks that need them and reduced there in rank
order: by a gather for reduce, an all-gather for all-reduce and scan, an all-to-all for reduce-scatter. ``f`` runs after
all communication of the call. So an exception that it raises concerns this rank only; the others get their results, and
all ranks remain in step.
"""

import operator
from hashlib import blake2b

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.arrays.outputs cimport empty_like_array, shape_of
from shmring.base.hashing cimport mix
from shmring.base.heap cimport Heap
from shmring.collective.call cimport Call, prepare
from shmring.engine.call cimport Executor, call_t
from shmring.engine.kinds cimport (KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_EXSCAN, KIND_GATHER, KIND_REDUCE,
                                   KIND_REDUCE_SCATTER, KIND_SCAN)
from shmring.engine.signature cimport NO_OP, pack_digest

from shmring.dtypes import DTYPES, OP_CODES

# The ufuncs whose bits a kernel reproduces, and the dtype families on which it does. Not 16-bit floats, where ufuncs
# round after every step; nor minimum and maximum of floats (the sign of a zero result is unspecified), nor products of
# complex numbers (NumPy may fuse). NaNs count as equal, whatever their payload.
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


# Functions of Python that are names of operations: on arrays they would fail, or be no operation on elements.
_NAMED = {sum: "sum", min: "min", max: "max", operator.add: "sum", operator.mul: "prod", operator.and_: "band",
          operator.or_: "bor", operator.xor: "bxor"}


cdef int number_of_callable(object op, int dtype) except -1:
    """The kernel with exactly the results of ``op`` on this dtype; NO_OP if there is none."""
    try:
        named = _NAMED.get(op)
    except TypeError:      # not hashable
        named = None
    if named is not None:
        return OP_CODES[named]
    found = _KERNELS.get(op) if isinstance(op, np.ufunc) else None
    if found is None:
        return NO_OP
    kind = DTYPES[dtype]
    family = "F" if kind.family == "f" and kind.itemsize >= 4 else kind.family
    return OP_CODES[found[0]] if family in found[1] else NO_OP


cdef class UserReduction(Call):
    """A reduction whose operands are moved by the request, and reduced by a function."""

    cdef object function         # f(a, b)
    cdef object operands         # of all ranks; None where nothing is reduced
    cdef array_t out
    cdef int first               # reduces the operands of ranks first .. last - 1
    cdef int last

    cdef object conclude(self):
        if self.last > self.first:
            self.reduce_operands()
            copy_back(self.kept)
        return self.result

    cdef int reduce_operands(self) except -1:
        cdef array_t a
        cdef int j
        total = self.operands[self.first, ...]
        held = source_array(total, &a)
        for j in range(self.first + 1, self.last):
            total = self.function(total, self.operands[j, ...])
            held = source_array(total, &a)
            if a.dtype != self.out.dtype or a.count != self.out.count:
                raise TypeError(f"op {self.function!r} returned {a.count} x {DTYPES[a.dtype].name} for operands of "
                                f"{self.out.count} x {DTYPES[self.out.dtype].name}; it must return an array like them")
        if a.nbytes:
            memmove(self.out.data, a.data, a.nbytes)     # the function may return a view of the user's array
        return 0


cdef Call prepare_user_op(Executor executor, call_t *c, op, held, kept, result):
    cdef UserReduction call = UserReduction.__new__(UserReduction)
    cdef call_t movement = c[0]
    cdef Heap memory = Heap()
    cdef int kind = c.kind, rank = executor.rank
    call.function = op
    call.out = c.out
    call.last = executor.size
    movement.kind, movement.op, movement.out = KIND_ALL_GATHER, NO_OP, c.x
    if kind == KIND_REDUCE:
        movement.kind = KIND_GATHER
        call.last = executor.size if rank == c.root else 0
    elif kind == KIND_REDUCE_SCATTER:
        movement.kind = KIND_ALL_TO_ALL
        if c.counts != NULL:
            movement.counts = repeat_counts(c.counts, executor.size, memory)
    elif kind == KIND_SCAN:
        call.last = rank + 1
    elif kind == KIND_EXSCAN:
        call.last = rank
    if isinstance(op, np.ufunc):
        check_ufunc(op, DTYPES[c.x.dtype].name)
    if result is not None:
        call.operands = empty_like_array(result, (executor.size, *shape_of(result)))
        if isinstance(op, np.ufunc):
            call.operands = np.asarray(call.operands)
        target_array(call.operands, &movement.out)
    # A peer that calls the collective by which this one moves its operands must get a mismatch.
    movement.signature = pack_digest(kind, NO_OP, c.x.dtype, c.root, mix(c.signature, digest_of(op)))
    return prepare(call, executor, &movement, held, kept, result)


cdef const int64_t *repeat_counts(const int64_t *counts, int size, Heap memory) except NULL:
    """The counts of an all-to-all in which each rank sends the same to all."""
    cdef int64_t *matrix = <int64_t *> memory.allocate(size * <size_t> size, sizeof(int64_t))
    cdef int j
    for j in range(size):
        memcpy(matrix + j * <size_t> size, counts, size * sizeof(int64_t))
    return matrix


def digest_of(op):
    """64 bits by which ranks find that they pass different functions: made of what all processes compute alike.

    Not the module, as one rank's main program is another's import. Functions that differ only in what they have closed
    over, and other callables of one type and name, have the same digest.
    """
    name = getattr(op, "__qualname__", None) or getattr(op, "__name__", None) or type(op).__qualname__
    text = f"{name} {code_text(getattr(op, '__code__', None))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def code_text(value):
    """Code, or one of its constants, as text that is the same in all processes."""
    if hasattr(value, "co_code"):
        return f"{value.co_code.hex()} {value.co_names} {[code_text(constant) for constant in value.co_consts]}"
    return repr(value) if isinstance(value, (int, float, complex, str, bytes, type(None))) else type(value).__name__


def check_ufunc(op, name):
    """Raise unless a ufunc can reduce arrays of the dtype ``name``: tried on empty ones, before anything is sent."""
    if op.nin != 2 or op.nout != 1 or op.signature is not None:
        raise ValueError(f"op {op!r}: a reduction needs a ufunc with two inputs and one output")
    try:
        nothing = np.empty(0, name)
    except TypeError:
        raise TypeError(f"op {op!r} on {name}: NumPy has this dtype only after an import of ml_dtypes") from None
    made = op(nothing, nothing).dtype
    if made != nothing.dtype:
        raise TypeError(f"op {op!r} returns {made} for {name}; a reduction must return the dtype of its operands")
