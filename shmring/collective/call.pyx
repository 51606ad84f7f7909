"""Calls made ready: a collective with checked arguments and pointers, to be made later or often.

`Communicator.plan` returns one, and asynchronous work runs one. It keeps its arrays alive.
"""

from shmring.arrays.array_view cimport copy_back, is_copy
from shmring.engine.call cimport Executor, call_t

from shmring.collective.async_work import submit
from shmring.engine.kinds import KINDS
from shmring.engine.signature import explain

COLLECTIVES = tuple(kind.name for kind in KINDS[1:14])


class PREPARE:
    """A value of ``async_op``: return the `Call` call without making or submitting it."""


cdef object prepare(Call call, Executor executor, call_t *c, held, kept, result):
    """Fill in ``call``, and return it."""
    call.executor = executor
    call.prepared = executor.prepare(c)
    call.held = held
    call.kept = kept
    call.result = result
    return call


cdef object dispatch(Call call, async_op):
    """Make the call now, submit it, or return it, depending on ``async_op``."""
    if async_op is PREPARE:
        if call.has_copies():
            raise ValueError("a plan reads and writes arrays in place: pass arrays that are C-contiguous, aligned "
                             "and in native byte order")
        return call
    return call.start() if async_op else call.run()


cdef inline object engine_of(Call call):
    """The engine of a plan; raises for one that `Communicator.plan` has not made."""
    if call.executor is None:
        raise TypeError("a plan is made by Communicator.plan")
    return call.executor.engine


cdef class Call:
    """A persistent plan: a collective with its arguments checked, its pointers taken and its schedule made.

    Call it to make the collective, as often as needed; `start` makes it asynchronously. All ranks must make the same
    collectives in the same order, but not all need to use plans. Made by `Communicator.plan`.
    """

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
        return f"<shmring.{type(self).__name__} {self.name} on {engine_of(self).name!r}: {self.prepared.outline()}>"

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
