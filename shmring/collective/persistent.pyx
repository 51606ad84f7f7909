"""Prepared calls: a collective whose arguments are checked and whose pointers are taken, to be made later or often.

`Communicator.plan` returns one, and asynchronous work runs one. It keeps its arrays alive.
"""

from shmring.arrays.array_view cimport copy_back, is_copy
from shmring.collective.schedule cimport prepare_request, run_request
from shmring.engine.engine cimport is_troubled

from shmring.collective.async_work import submit
from shmring.engine.signature import explain

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "scan",
    "exscan",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "all_reduce_many",
    "broadcast_many",
)


class PREPARE:
    """A value of ``async_op``: return the `Prepared` call without making or submitting it."""


cdef object prepare(Prepared call, Engine engine, int kind, array_t *x, array_t *out, int root, int op,
                    reduce_kernel kernel, int64_t timeout_ns, held, kept, result):
    """Fill in ``call``, and return it."""
    call.engine = engine
    call.program = prepare_request(engine, kind, x, out, root, op, kernel, &call.request)
    call.timeout_ns = timeout_ns
    call.held = held
    call.kept = kept
    call.result = result
    return call


cdef object dispatch(Prepared call, async_op):
    """Make the call now, submit it, or return it, depending on ``async_op``."""
    if async_op is PREPARE:
        if call.has_copies():
            raise ValueError("a plan reads and writes arrays in place: pass arrays that are C-contiguous, aligned "
                             "and in native byte order")
        return call
    return call.start() if async_op else call.run()


cdef inline Engine engine_of(Prepared call):
    """The engine of a plan; raises for one that `Communicator.plan` has not made."""
    if call.engine is None:
        raise TypeError("a plan is made by Communicator.plan")
    return call.engine


cdef class Prepared:
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
        cdef Engine engine = engine_of(self)
        if engine.is_closed or engine.is_inherited or is_troubled(engine):
            engine.refuse()
        return submit(engine, self)

    def describe(self):
        """The schedule of this rank, in readable lines.

        Returns
        -------
        str
        """
        cdef Engine engine = engine_of(self)
        t = &self.request.eager
        if self.program is not None:
            if self.program.last is None:
                return str(self.program.plan)
            return f"{engine.team.nthreads()} threads, each with its share; the first:\n{self.program.plan}"
        group = &engine.c.group
        lines = [f"{self.name}, one round of eager messages: rank {group.rank} of {group.size}"]
        if t.payload != NULL:
            lines.append(f"  send  {t.nbytes} bytes")
        if t.last > t.first:
            verb = "reduce" if t.kernel != NULL else "copy"
            lines.append(f"  receive  from ranks {t.first}..{t.last - 1}, {verb} {t.part_nbytes} bytes of each, "
                         f"from byte {t.offset}")
        return "\n".join(lines)

    @property
    def name(self):
        """The call in words, e.g. ``all_reduce(sum, float32 x 1024)``."""
        return explain(self.signature())

    @property
    def label(self):
        """The signature, from which `name` is made on demand: the 64 bits that ranks compare."""
        return self.signature()

    def __repr__(self):
        how = "eager"
        if self.program is not None:
            how = f"{self.program.plan.algorithm}, {self.program.code.rounds} rounds"
        return f"<shmring.{type(self).__name__} {self.name} on {engine_of(self).name!r}: {how}>"

    def __reduce__(self):
        raise TypeError("a plan belongs to its process and can be neither copied nor pickled; call comm.plan() again")

    # ---- overridden by calls that consist of more than one request ----

    cdef object run(self):
        self.engine.enter()
        try:
            run_request(self.engine, self.program, &self.request, self.timeout_ns)
        finally:
            self.engine.leave()
        copy_back(self.kept)
        return self.result

    cdef bint has_copies(self) except -1:
        return is_copy(self.held) or is_copy(self.kept)

    # ---- the signature is in the half of the request that is used ----

    cdef uint64_t signature(self) noexcept:
        return self.request.eager.signature if self.program is None else self.request.execution.signature

    cdef void sign(self, uint64_t signature) noexcept:
        if self.program is None:
            self.request.eager.signature = signature
        else:
            self.request.execution.signature = signature


cdef object plan(comm, collective, tuple args, dict kwargs):
    """See `Communicator.plan`."""
    if collective not in COLLECTIVES:
        raise ValueError(f"no plan for {collective!r}; there are plans for {', '.join(COLLECTIVES)}")
    if "async_op" in kwargs:
        raise TypeError("a plan has no async_op: plan.start() makes the call asynchronously, plan() at once")
    return getattr(comm, collective)(*args, **kwargs, async_op=PREPARE)
