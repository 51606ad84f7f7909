"""What the collective calls of a communicator share: its life, and how a checked call reaches the engine.

Each method of the subclasses has one shape: check the arguments and take pointers, then `CollectiveBase.perform`: enter
the engine, make the call, leave; or prepare it for later. Nothing is sent before all arguments have passed, so a bad
argument leaves the communicator as it was.
"""

import operator

cimport cython
from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t, copy_back
from shmring.arrays.outputs cimport empty_like_array, shape_of
from shmring.kernel.reduce cimport find_kernel, reduce_kernel
from shmring.collective.persistent cimport Prepared, dispatch, prepare
from shmring.collective.schedule cimport prepare_request, request_t, run_request
from shmring.collective.user_ops cimport number_of_callable, prepare_user_op
from shmring.shared.zero_copy cimport sharing_of
from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine
from shmring.engine.signature cimport (KIND_ALL_REDUCE, KIND_EXSCAN, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCAN,
                                       NO_OP)

from shmring.dtypes import DTYPES, OPS, op_code
from shmring.sync.turn import Turn


cdef object SUM = "sum"      # interned, as the default of every method is

cdef enum:
    REDUCTIONS = (1 << KIND_ALL_REDUCE | 1 << KIND_REDUCE | 1 << KIND_REDUCE_SCATTER | 1 << KIND_SCAN
                  | 1 << KIND_EXSCAN)


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int number_of(op, int dtype) except -1:
    """The kernels' number of ``op``; NO_OP for a callable that no kernel implements."""
    if op is SUM:
        return 0
    if callable(op):
        return number_of_callable(op, dtype)
    return op_code(op)


cdef reduce_kernel kernel_for(int op, array_t *x) except NULL:
    cdef reduce_kernel kernel = find_kernel(op, x.dtype)
    if kernel == NULL:
        raise TypeError(f"op {OPS[op]!r} is not defined on {DTYPES[x.dtype].name}")
    return kernel


cdef int refuse_out(array_t *x, array_t *out, size_t times, size_t parts) except -1:
    """Raise the error of an ``out`` that `check_out` does not accept."""
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {DTYPES[out.dtype].name}, x has {DTYPES[x.dtype].name}; they must be equal")
    raise ValueError(f"out has {out.count} elements; for x with {x.count} it must have {x.count * times // parts}")


# ---- the communicator ------------------------------------------------------------------------------------------------

# Not cleared by the garbage collector: a finalizer may call a method of what is garbage, too.
@cython.no_gc_clear
cdef class CollectiveBase:
    """Base of `shmring.Communicator`: rank, size and engine, and the end of every collective call on arrays."""

    def __cinit__(self, Engine engine not None, *args, **kwargs):
        self.engine = engine
        self.rank = engine.c.group.rank
        self.size = engine.c.group.size
        self.timeout_ns = timeout_to_ns(engine.config.timeout)
        self.object_turn = Turn(engine.name)
        engine.sharing = engine.sharing or sharing_of(engine)

    @property
    def name(self):
        """The name of this communicator in messages."""
        return self.engine.name

    @property
    def config(self):
        """The settings it was made with, a `shmring.config.Config`."""
        return self.engine.config

    @property
    def is_closed(self):
        """Whether `close` was called here."""
        return self.engine.is_closed

    @property
    def is_broken(self):
        """Whether a peer was lost or late, or a rank aborted; then every call raises."""
        return self.engine.is_broken

    def __repr__(self):
        state = " closed" if self.engine.is_closed else " broken" if self.engine.is_broken else ""
        return f"<shmring.{type(self).__name__} {self.name!r} rank {self.rank} of {self.size}{state}>"

    def __reduce__(self):
        raise TypeError("a communicator belongs to its process and can be neither copied nor pickled; "
                        "call shmring.init() in the other process")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        cdef Engine engine = self.engine
        if kind is not None and not (engine.is_closed or engine.is_inherited or engine.is_broken):
            engine.abort(f"{kind.__name__}: {value}")
        self.close()

    def stats(self):
        """What this rank's engine has chosen, and what it measured.

        Returns
        -------
        dict
            Totals so far of this rank: ``calls`` (collectives begun), ``bytes`` (of the arrays passed to them),
            ``waited_s`` (seconds in waits that are over and outlasted a first look), ``rounds``; the first three are
            None once it is closed. The settings in force (sizes in bytes, times in microseconds), and in ``why`` the
            source of each that is not a constant: ``argument``, an environment variable, or what it is derived from.
            The duration of a barrier as measured when the communicator was made, and the number of processors that the
            ranks have together. For each rank, how much of its outbox this process maps by huge pages. ``threads``: of
            each rank in large calls; ``split_calls``: calls that several threads made together. ``zero_copy_calls``:
            calls without staging, as the memory that other ranks access lies in shared arrays, or all ranks are threads
            of one process. ``programs``: one entry for each kind and size of large call that is cached, with its
            algorithm, bytes, rounds, threads, calls, how it stores into the outbox, and the microseconds that all ranks
            together spent in copies and reductions in the last complete trials of each way (ordinary, streaming,
            prefetched, string, exchange); 0 before. ``shared_calls``: one entry for each kind, size and root of large
            calls on shared arrays, with whether the last one was staged, as that was learned to be faster or is on
            trial, and the microseconds from call to call in the last trials of both ways (staged, not staged), measured
            by the root or else rank 0; 0 before and on other ranks.

        Notes
        -----
        Not collective; costs nothing to the calls. ``docs/watching.md`` has all names with their units. They are
        stable: a minor version may add some, and none changes its meaning.
        """
        return self.engine.stats()

    def abort(self, reason=""):
        """End this communicator for all ranks, at once.

        Peers that wait, and peers that call later, get `AbortedError` with the reason. Any thread may call; does not
        block.

        Parameters
        ----------
        reason : str
            At most about 200 bytes of it are kept.
        """
        self.engine.abort(str(reason))

    def close(self):
        """Leave the communicator and free its memory. Idempotent.

        Not collective: it does not wait for the others. Peers that still need this rank get `PeerLostError`; what
        this rank has published before stays readable for them. A call is not required: the end of the process has the
        same effect.

        Pending asynchronous work is waited for, as long as the communicator's timeout; after that it is aborted.
        """
        if self.engine.progress is None:
            self.engine.close()
            return
        self.engine.progress.close(self.engine.config.timeout)
        self.engine.close()
        self.engine.progress.retire()

    # ---- for the subclasses ----

    def _checked_rank(self, number, str name):
        """``number``, the argument ``name``, as a rank; raises if it is none."""
        rank = operator.index(number)
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: must be a rank, from 0 to {self.size - 1}")
        return rank

    cdef object perform(self, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held, kept, result,
                        async_op):
        """Make the call, whose arguments have passed all checks; with ``async_op``, prepare it for later."""
        cdef Engine engine = self.engine
        cdef request_t request
        cdef Program program
        cdef int code = NO_OP
        cdef reduce_kernel kernel = NULL
        if REDUCTIONS >> kind & 1:
            code = number_of(op, x.dtype)
            if code == NO_OP:
                return dispatch(prepare_user_op(engine, kind, x, out, root, op, timeout_ns, held, kept, result),
                                async_op)
            kernel = kernel_for(code, x)
        if async_op is not False:
            return dispatch(prepare(Prepared.__new__(Prepared), engine, kind, x, out, root, code, kernel, timeout_ns,
                                    held, kept, result), async_op)
        engine.enter()
        try:
            program = prepare_request(engine, kind, x, out, root, code, kernel, &request)
            run_request(engine, program, &request, timeout_ns)
        finally:
            engine.leave()
        copy_back(kept)
        return result

    cdef bint check_root(self, int root) except -1:
        """Whether this rank is the root; raises if no rank is."""
        if not 0 <= root < self.size:
            raise ValueError(f"root={root}: must be a rank, from 0 to {self.size - 1}")
        return root == self.rank

    cdef tuple block_shape(self, x):
        """The shape of ``x[i]``, for an ``x`` with one block per rank."""
        cdef tuple shape = shape_of(x)
        if not shape or shape[0] != self.size:
            raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {self.size}")
        return shape[1:]

    cdef object new_block(self, x):
        return empty_like_array(x, self.block_shape(x))
