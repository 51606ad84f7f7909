"""Prepared calls: one collective whose arguments are checked and whose pointers are taken, to be made later or often.

What `Communicator.plan` returns, and what asynchronous work consists of. It keeps its arrays alive.
"""

from shmring.arrays.array_view cimport give_back, is_copy
from shmring.collective.schedule cimport prepare_request, run_request

from shmring.engine.signature import explain
from shmring.collective.async_work import submit


class PREPARE:
    """In the place of ``async_op``: return the call, `Prepared`, and make it neither now nor soon."""


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


cdef object do(Prepared call, async_op):
    """Make the call now, submit it, or hand it out, as ``async_op`` says."""
    if async_op is PREPARE:
        if call.has_copies():
            raise ValueError("a plan reads and writes arrays where they are: pass some that are C-contiguous, aligned "
                             "and in native byte order")
        return call
    return call.start() if async_op else call.run()


cdef class Prepared:
    """A collective with its arguments checked, its pointers taken and its schedule made: a persistent plan.

    Call it to make the collective, as often as you like; `start` makes it asynchronously. All ranks must make the same
    collectives in the same order, but need not all make them through plans. Made by `Communicator.plan`.
    """

    def __call__(self):
        """Make the call with what the arrays hold now, and return its result."""
        return self.run()

    def start(self):
        """Submit the call, to be made in the background after all that was submitted before.

        Returns
        -------
        Work
            Its result is what the call returns.

        Raises
        ------
        ClosedError, BrokenError
            The communicator can make no more calls; nothing was submitted.
        """
        if self.engine.is_closed or self.engine.is_inherited or self.engine.trouble is not None:
            self.engine.refuse()
        return submit(self.engine, self)

    def describe(self):
        """The schedule of this rank, in readable lines.

        Returns
        -------
        str
        """
        t = &self.request.eager
        if self.program is not None:
            if self.program.last is None:
                return str(self.program.plan)
            return f"{self.engine.team.nthreads()} threads, each in its share; the first:\n{self.program.plan}"
        lines = [f"{self.name}, one round of eager messages: rank {self.engine.c.circle.rank} of {self.engine.c.circle.size}"]
        if t.words != NULL:
            lines.append(f"  eager {t.nbytes} bytes")
        if t.last > t.first:
            verb = "fold" if t.kernel != NULL else "place"
            lines.append(f"  listen  to ranks {t.first}..{t.last - 1}, {verb} {t.part_nbytes} bytes of each, "
                         f"from byte {t.offset}")
        return "\n".join(lines)

    @property
    def name(self):
        """The call in words, e.g. ``all_reduce(sum, float32 x 1024)``."""
        return explain(self.word())

    @property
    def label(self):
        """What `name` is made from when somebody asks: the 64 bits that ranks compare."""
        return self.word()

    def __repr__(self):
        way = "eager"
        if self.program is not None:
            way = f"{self.program.plan.algorithm}, {self.program.code.rounds} rounds"
        return f"<shmring.{type(self).__name__} {self.name} on {self.engine.name!r}: {way}>"

    def __reduce__(self):
        raise TypeError("a plan belongs to its process and cannot be pickled; make it there")

    # ---- for abilities that do more than one request: they override run ----

    cdef object run(self):
        self.engine.enter()
        try:
            run_request(self.engine, self.program, &self.request, self.timeout_ns)
        finally:
            self.engine.leave()
        give_back(self.kept)
        return self.result

    cdef bint has_copies(self) except -1:
        return is_copy(self.held) or is_copy(self.kept)

    cdef uint64_t word(self) noexcept:
        return self.request.eager.signature if self.program is None else self.request.execution.signature
