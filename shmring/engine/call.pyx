"""Checked collectives and their executors.

A collective is one record, `call_t`, whether it comes from Python or C, is made now, in the background or repeatedly.
`check_call` checks it, without the interpreter; an `Executor` makes it.
"""

from shmring.arrays.outputs cimport OVERLAP
from shmring.engine.kinds cimport KIND

from shmring.dtypes import DTYPES, OPS


# ---- checks ----------------------------------------------------------------------------------------------------------

cdef int refuse_call(int mistake, call_t *c, int rank, int size) except -1:
    """Raise what is wrong with a call."""
    if mistake == BAD_ROOT:
        raise ValueError(f"root={c.root}: must be a rank, from 0 to {size - 1}")
    if mistake == BAD_OP:
        raise TypeError(f"op {OPS[c.op]!r} is not defined on {DTYPES[c.x.dtype].name}")
    if mistake == BAD_DTYPE:
        raise TypeError(f"out has dtype {DTYPES[c.out.dtype].name}, x has {DTYPES[c.x.dtype].name}; they must be equal")
    if mistake == BAD_COUNT:
        count = c.x.count * (size if KIND[c.kind].blocks_out else 1) // (size if KIND[c.kind].blocks_in else 1)
        raise ValueError(f"out has {c.out.count} elements; for x with {c.x.count} it must have {count}")
    raise ValueError(OVERLAP)


# ---- executors -------------------------------------------------------------------------------------------------------

cdef class Prepared:
    """A checked call that an executor has made ready. It does not keep the arrays alive."""

    cdef int run(self) except -1:
        """Make the call."""
        raise NotImplementedError

    cdef uint64_t signature(self) noexcept:
        """What ranks compare, and what names the call."""
        return 0

    cdef void sign(self, uint64_t signature) noexcept:
        """Replace the signature."""

    def describe(self):
        """What this rank does, in readable lines."""
        return ""

    def outline(self):
        """The same, in a few words."""
        return ""


cdef class Executor:
    """Executes checked calls. Both methods are entered by any thread, and admit one at a time."""

    cdef int run(self, call_t *call) except -1:
        """Make a call, now. The caller keeps the arrays alive."""
        raise NotImplementedError

    cdef Prepared prepare(self, call_t *call):
        """Make a call ready, without sending anything."""
        raise NotImplementedError
