"""Calls made ready: a collective with checked arguments and pointers, to be made later or often.

`Communicator.plan` returns one, and asynchronous work runs one. It keeps its arrays alive.

A reduction by a function of the user is one that is more than a request: ``op`` may be a NumPy ufunc or any function
``f(a, b)`` that returns an array. No kernel implements it. So the operands themselves are moved to the ranks that need
them and reduced there in rank order: by a gather for reduce, an all-gather for all-reduce and scan, an all-to-all for
reduce-scatter. ``f`` runs after all communication of the call. So an exception that it raises concerns this rank only;
the others get their results, and all ranks remain in step.
"""

from hashlib import blake2b
from types import GenericAlias

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

from shmring.core.arrays.array_view cimport array_t, copy_back, is_copy, source_array, target_array
from shmring.core.arrays.outputs cimport empty_like_array, shape_of
from shmring.core.base.hashing cimport mix
from shmring.core.base.heap cimport Heap
from shmring.collectives.engine.call cimport Executor, call_t
from shmring.collectives.engine.kinds cimport (KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_EXSCAN, KIND_GATHER, KIND_REDUCE,
                                   KIND_REDUCE_SCATTER, KIND_SCAN)
from shmring.collectives.engine.signature cimport NO_OP, pack_digest

from shmring.collectives.calls.async_work import submit
from shmring.dtypes import DTYPES, OP_CODES, OP_ROWS
from shmring.collectives.engine.kinds import explain
from shmring.collectives.plan.kinds import COLLECTIVES


class PREPARE:
    """A value of ``async_op``: return the `Plan`, neither made nor submitted."""


cdef object prepare(Plan plan, Executor executor, call_t *c, held, kept, result):
    """Fill in ``plan``, and return it."""
    plan.executor = executor
    plan.held = held
    plan.kept = kept
    c.held = <void *> plan
    plan.prepared = executor.prepare(c)
    plan.result = result
    return plan


cdef object dispatch(Plan plan, async_op):
    """Run the plan now, submit it, or return it, depending on ``async_op``."""
    if async_op is PREPARE:
        if plan.has_copies():
            raise ValueError("a plan reads and writes arrays in place: pass arrays that are C-contiguous, aligned "
                             "and in native byte order")
        return plan
    return plan.start() if async_op else plan.run()


cdef inline object engine_of(Plan plan):
    """The engine of a plan; raises for one that `Communicator.plan` has not made."""
    if plan.executor is None:
        raise TypeError("a plan is made by Communicator.plan")
    return plan.executor.engine


cdef class Plan:
    """A plan: a collective with its arguments checked, its pointers taken and its schedule made.

    Call it to make the collective, as often as needed; `start` makes it asynchronously. All ranks must make the same
    collectives in the same order, but not all need to use plans. Made by `Communicator.plan`.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __call__(self):
        """Make the call on the present contents of the arrays, and return its result."""
        engine_of(self)
        return self.run()

    def start(self):
        """Submit the call: it is made in the background, after everything submitted before.

        Returns
        -------
        Work
            Its result is what the call returns.

        Raises
        ------
        ClosedError, BrokenError
            The communicator can make no more calls; nothing was submitted.
        """
        engine = engine_of(self)
        engine.check_usable()
        return submit(engine, self)

    def describe(self):
        """The schedule of this rank, in readable lines.

        Returns
        -------
        str
        """
        engine_of(self)
        return self.prepared.describe()

    @property
    def name(self):
        """The call in words, e.g. ``all_reduce(sum, float32 x 1024)``."""
        return explain(self.label)

    @property
    def label(self):
        """The signature, from which `name` is made on demand: the 64 bits that ranks compare."""
        engine_of(self)
        return self.prepared.signature

    def __repr__(self):
        return f"<shmring.Plan {self.name} on {engine_of(self).name!r}: {self.prepared.outline()}>"

    def __reduce__(self):
        raise TypeError("a plan belongs to its process and can be neither copied nor pickled; call comm.plan() again")

    cdef object run(self):
        self.executor.enter()
        try:
            self.make()
        finally:
            self.executor.leave()
        return self.conclude()

    # ---- overridden by calls that are more than one request ----

    cdef int make(self) except -1:
        """Make the call; this thread has entered the executor."""
        return self.prepared.run()

    cdef object conclude(self):
        """Give the output back, after it was made."""
        copy_back(self.kept)
        return self.result

    cdef bint has_copies(self) except -1:
        return is_copy(self.held) or is_copy(self.kept)


cdef object plan(comm, collective, tuple args, dict kwargs):
    """See `Communicator.plan`."""
    if collective not in COLLECTIVES:
        raise ValueError(f"no plan for {collective!r}; there are plans for {', '.join(COLLECTIVES)}")
    if "async_op" in kwargs:
        raise TypeError("a plan has no async_op: plan.start() makes the call asynchronously, plan() at once")
    return getattr(comm, collective)(*args, **kwargs, async_op=PREPARE)


# ---- reductions by functions -----------------------------------------------------------------------------------------

# The numbers of ufuncs, and of functions of Python that are names of operations: on arrays these would fail, or be no
# operation on elements.
_UFUNCS = {getattr(np, row.ufunc): code for code, row in enumerate(OP_ROWS) if row.ufunc}
_NAMED = {row.on_objects: code for code, row in enumerate(OP_ROWS) if row.on_objects} | {sum: OP_CODES["sum"]}


cdef int number_of_callable(object op, int dtype) except -1:
    """The kernel with exactly the results of ``op`` on this dtype; NO_OP if there is none."""
    try:
        code = _NAMED.get(op)
    except TypeError:      # not hashable
        code = None
    if code is not None:
        return code
    code = _UFUNCS.get(op) if isinstance(op, np.ufunc) else None
    if code is None or DTYPES[dtype].accumulates_in:
        return NO_OP
    return code if DTYPES[dtype].family in OP_ROWS[code].ufunc_families else NO_OP


cdef class UserReduction(Plan):
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
        held = source_array(total, &a, False)
        for j in range(self.first + 1, self.last):
            total = self.function(total, self.operands[j, ...])
            held = source_array(total, &a, False)
            if a.dtype != self.out.dtype or a.count != self.out.count:
                raise TypeError(f"op {self.function!r} returned {a.count} x {DTYPES[a.dtype].name} for operands of "
                                f"{self.out.count} x {DTYPES[self.out.dtype].name}; it must return an array like them")
        if a.nbytes:
            memmove(self.out.data, a.data, a.nbytes)     # the function may return a view of the user's array
        return 0


cdef Plan prepare_user_op(Executor executor, call_t *c, op, held, kept, result):
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
        target_array(call.operands, &movement.out, False)
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
