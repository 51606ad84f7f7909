"""The collective calls of a communicator on arrays, and its life.

Each method has one shape: check the arguments and take pointers, then `Calls.perform`: enter the engine, one call down,
leave; or leave that to later. Nothing is sent before all arguments have passed, so a bad one leaves the communicator as
it was.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memset

from shmring.arrays.array_view cimport (array_t, check_overlap, empty_like_array, give_back, shape_of, source_array,
                             target_array)
from shmring.collective.schedule cimport request_t, prepare_request, run_request
from shmring.collective.varying cimport (all_gather_rows, all_to_all_rows, gather_rows, reduce_scatter_rows, scatter_rows)
from shmring.engine.engine cimport Engine
from shmring.collective.user_ops cimport number_of_callable, prepare_fold
from shmring.collective.prepared cimport Prepared, do, prepare
from shmring.engine.compiled_plan cimport Program
from shmring.arrays.reduce cimport find_kernel, reduce_kernel
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST,
                                KIND_EXSCAN, KIND_GATHER, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCAN, KIND_SCATTER,
                                NO_OP, NO_ROOT)

from shmring.dtypes import DTYPES, OPS, op_code


cdef object SUM = "sum"      # interned, as the default of every method is


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int64_t nanoseconds(timeout, int64_t default) except -2:
    """A public timeout as nanoseconds; -1 for ever. Ellipsis stands for the communicator's own."""
    cdef double seconds
    if timeout is ...:
        return default
    if timeout is None:
        return -1
    seconds = timeout
    if not seconds >= 0:
        raise ValueError(f"timeout={timeout!r}: must be seconds from 0 up, or None to wait for ever")
    return <int64_t> (seconds * 1e9) if seconds < 9e9 else INT64_MAX


cdef enum:
    REDUCTIONS = (1 << KIND_ALL_REDUCE | 1 << KIND_REDUCE | 1 << KIND_REDUCE_SCATTER | 1 << KIND_SCAN
                  | 1 << KIND_EXSCAN)


cdef int number_of(op, int dtype) except -1:
    """The kernels' number of ``op``; NO_OP for a callable, which no kernel does."""
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


cdef inline int check_same(array_t *x, array_t *out, size_t times, size_t parts) except -1:
    """``out`` must have ``times / parts`` as many elements as ``x``, and its dtype."""
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {DTYPES[out.dtype].name}, x has {DTYPES[x.dtype].name}; they must be equal")
    if out.count * parts != x.count * times:
        raise ValueError(f"out has {out.count} elements; for x with {x.count} it must have {x.count * times // parts}")
    return 0


# ---- the calls -------------------------------------------------------------------------------------------------------

cdef class Calls:
    """What `shmring.Communicator` is made of, collectives on arrays: see there."""

    def __cinit__(self, Engine engine, *args, **kwargs):
        self.engine = engine
        self.rank = engine.c.circle.rank
        self.size = engine.c.circle.size
        self.timeout_ns = nanoseconds(engine.config.timeout, -1)

    @property
    def name(self):
        """What messages call this communicator."""
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
        """Whether a peer was lost or late, or somebody aborted; then every call raises."""
        return self.engine.is_broken

    def __repr__(self):
        state = " closed" if self.engine.is_closed else " broken" if self.engine.is_broken else ""
        return f"<shmring.{type(self).__name__} {self.name!r} rank {self.rank} of {self.size}{state}>"

    def __reduce__(self):
        raise TypeError("a communicator belongs to its process and cannot be pickled; "
                        "call shmring.init() in the other one")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None and not self.engine.is_closed and not self.engine.is_broken:
            self.engine.abort(f"{kind.__name__}: {value}")
        self.close()

    # ---- reductions ----

    def all_reduce(self, x, out=None, *, op="sum", timeout=..., async_op=False):
        """Combine ``x`` element by element over all ranks; every rank gets the same bits.

        Parameters
        ----------
        x : array, any shape
            Anything on the CPU with the buffer protocol or DLPack: NumPy, ml_dtypes, torch. Element type and number of
            elements equal on all ranks. Not contiguous is fine and costs a copy.
        out : array, optional
            Same element type and count. Without it the result goes into ``x``. It may be ``x``; any other overlap is
            refused.
        op : {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor"}, ufunc or callable
            ``avg`` (also ``mean``) is the sum divided by ``size``, on floats and complex only. A callable ``f(a, b)``
            returns an array of the same dtype; see "Callables" in ``docs/async.md`` for what it costs.
        timeout : float, optional
            Seconds to wait for peers that live; None for ever. The communicator's own by default.
        async_op : bool
            Return a `Work` at once, and make the call in the background: after all that was submitted before, and
            before all that is called later. Arguments are checked now.

        Returns
        -------
        array
            ``out``, or ``x``. With ``async_op`` a `Work`, here and in all other calls.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent; the communicator stays usable.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            The result is undefined and the communicator is broken.

        Notes
        -----
        Collective: all ranks call. Blocks until the result is there; the GIL is released if that takes longer than
        about a microsecond. Elements are folded in rank order, ((x0 + x1) + x2) + ..., whatever the size of the
        message; float16 and bfloat16 in float32, rounded once. Up to ``stats()["eager_nbytes"]`` bytes: one round of
        eager messages. Above: slices, each reduced by its owner from all sources at once;
        (5 * size - 2) * x.nbytes bytes touched in all.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        result = x if out is None else out
        held = None
        if out is None:
            kept = target_array(x, &a)
            b = a
        else:
            held = source_array(x, &a)
            kept = target_array(out, &b)
            check_same(&a, &b, 1, 1)
            check_overlap(&a, &b, 0)
        return self.perform(KIND_ALL_REDUCE, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)

    def reduce(self, x, out=None, *, int root=0, op="sum", timeout=..., async_op=False):
        """Combine ``x`` element by element over all ranks into the root's ``out``.

        Parameters
        ----------
        x : array, any shape
            Element type and count equal on all ranks.
        out : array, optional
            On the root: where the result goes, ``x`` by default. Ignored on the others.
        root : int
            The rank that gets the result.
        op, timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array or None
            ``out`` (or ``x``) on the root, None on the others, whose ``x`` is left as it was.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. Folded in rank order, same bits as `all_reduce`. (3 * size - 1) * x.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        result = kept = None
        held = source_array(x, &a)
        b = a
        if is_root:
            result = x if out is None else out
            kept = target_array(result, &b)
            if out is None:
                a = b
            else:
                check_same(&a, &b, 1, 1)
                check_overlap(&a, &b, 0)
        return self.perform(KIND_REDUCE, &a, &b, root, op, timeout_ns, held, kept, result, async_op)

    def reduce_scatter(self, x, out=None, *, op="sum", counts=None, timeout=..., async_op=False):
        """Combine ``x`` over all ranks; rank i gets ``x[i]`` of the result.

        Parameters
        ----------
        x : array of shape (size, *S)
            Equal shape and element type on all ranks.
        out : array of shape S, optional
            A new array by default. It may be ``x[rank]``; any other overlap is refused.
        op : str, ufunc or callable
            As in `all_reduce`.
        counts : sequence of int, optional
            Rows (of the first axis) for each rank, equal on all ranks, zeros allowed. Then ``x`` has shape
            ``(sum(counts), *S)``, and ``out`` ``(counts[rank], *S)``; in place it is those rows of ``x``. Not with a
            callable ``op``.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``out``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. Folded in rank order, same bits as `all_reduce`. (3 * size - 1) * x.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        if counts is not None:
            return reduce_scatter_rows(self.engine, x, out, counts, op, timeout_ns, async_op)
        held = source_array(x, &a)
        result = self.one_share(x) if out is None else out
        kept = target_array(result, &b)
        check_same(&a, &b, 1, self.size)
        check_overlap(&b, &a, self.rank * b.nbytes)
        return self.perform(KIND_REDUCE_SCATTER, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)

    def scan(self, x, out=None, *, op="sum", timeout=..., async_op=False):
        """Combine ``x`` over ranks 0 to this one (inclusive prefix).

        Parameters
        ----------
        x, out, op, timeout, async_op
            As in `all_reduce`; without ``out`` the result goes into ``x``.

        Returns
        -------
        array
            ``out``, or ``x``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. Folded in rank order.
        """
        return self.prefix(KIND_SCAN, x, out, op, timeout, async_op)

    def exscan(self, x, out=None, *, op="sum", timeout=..., async_op=False):
        """Combine ``x`` over the ranks before this one (exclusive prefix).

        Parameters
        ----------
        x, out, op, timeout, async_op
            As in `all_reduce`; without ``out`` the result goes into ``x``. On rank 0 it is left as it was.

        Returns
        -------
        array
            ``out``, or ``x``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. Folded in rank order.
        """
        return self.prefix(KIND_EXSCAN, x, out, op, timeout, async_op)

    cdef object prefix(self, int kind, x, out, op, timeout, async_op):
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        result = x if out is None else out
        held = None
        kept = target_array(result, &b)
        if out is None:
            a = b
        else:
            held = source_array(x, &a)
            check_same(&a, &b, 1, 1)
            check_overlap(&a, &b, 0)
        return self.perform(kind, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)

    # ---- movement ----

    def broadcast(self, x, *, int root=0, timeout=..., async_op=False):
        """Copy the root's ``x`` into the ``x`` of all others.

        Parameters
        ----------
        x : array, any shape
            Element type and count equal on all ranks; read on the root, written on the others.
        root : int
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``x``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`. The root does not wait for the others: if they disagree or die it may hear of it only in
            a later call.

        Notes
        -----
        Collective. 2 * size * x.nbytes bytes touched.
        """
        cdef array_t a
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        kept = source_array(x, &a) if is_root else target_array(x, &a)
        return self.perform(KIND_BROADCAST, &a, &a, root, None, timeout_ns, None, kept, x, async_op)

    def all_gather(self, x, out=None, *, counts=None, timeout=..., async_op=False):
        """Collect the ``x`` of all ranks, in rank order, on every rank.

        Parameters
        ----------
        x : array of shape S
            Equal shape and element type on all ranks.
        out : array of shape (size, *S), optional
            A new array by default. ``x`` may be ``out[rank]``; any other overlap is refused.
        counts : sequence of int, optional
            Rows (of the first axis) from each rank, equal on all ranks, zeros allowed. Then ``x`` has shape
            ``(counts[rank], *S)`` and ``out`` ``(sum(counts), *S)``.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``out``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. size * (2 * size + 1) * x.nbytes bytes touched, size * x.nbytes fewer in place.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        if counts is not None:
            return all_gather_rows(self.engine, x, out, counts, timeout_ns, async_op)
        held = source_array(x, &a)
        result = empty_like_array(x, (self.size, *shape_of(x))) if out is None else out
        kept = target_array(result, &b)
        check_same(&a, &b, self.size, 1)
        check_overlap(&a, &b, self.rank * a.nbytes)
        return self.perform(KIND_ALL_GATHER, &a, &b, NO_ROOT, None, timeout_ns, held, kept, result, async_op)

    def gather(self, x, out=None, *, int root=0, counts=None, timeout=..., async_op=False):
        """Collect the ``x`` of all ranks, in rank order, on the root.

        Parameters
        ----------
        x : array of shape S
            Equal shape and element type on all ranks.
        out : array of shape (size, *S), optional
            On the root; a new array by default. Ignored on the others.
        root : int
        counts : sequence of int, optional
            As in `all_gather`.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array or None
            ``out`` on the root, None on the others.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. About 4 * (size - 1) * x.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        if counts is not None:
            return gather_rows(self.engine, x, out, counts, root, timeout_ns, async_op)
        result = kept = None
        held = source_array(x, &a)
        b = a
        if is_root:
            result = empty_like_array(x, (self.size, *shape_of(x))) if out is None else out
            kept = target_array(result, &b)
            check_same(&a, &b, self.size, 1)
            check_overlap(&a, &b, self.rank * a.nbytes)
        return self.perform(KIND_GATHER, &a, &b, root, None, timeout_ns, held, kept, result, async_op)

    def scatter(self, x, out=None, *, int root=0, counts=None, timeout=..., async_op=False):
        """Give rank i the root's ``x[i]``.

        Parameters
        ----------
        x : array of shape (size, *S) on the root
            Ignored on the others, which may pass None.
        out : array of shape S
            Equal element type and count on all ranks. On the root a new array by default, and it may be ``x[root]``;
            the others must give one, since they cannot know S.
        root : int
        counts : sequence of int, optional
            Rows (of the first axis) for each rank, equal on all ranks, zeros allowed. Then ``x`` has shape
            ``(sum(counts), *S)`` and ``out`` ``(counts[rank], *S)``.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``out``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`; the root does not wait for the others, as in `broadcast`.

        Notes
        -----
        Collective. About 4 * (size - 1) * out.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        if counts is not None:
            return scatter_rows(self.engine, x, out, counts, root, timeout_ns, async_op)
        held = None
        if is_root:
            held = source_array(x, &a)
            result = self.one_share(x) if out is None else out
        elif out is None:
            raise ValueError(f"rank {self.rank} is not the root of this scatter: pass out=, an array of the shape of "
                             "one share")
        else:
            result = out
        kept = target_array(result, &b)
        if is_root:
            check_same(&a, &b, 1, self.size)
            check_overlap(&b, &a, self.rank * b.nbytes)
        else:
            a = b
            a.count = b.count * self.size
            a.nbytes = b.nbytes * self.size
        return self.perform(KIND_SCATTER, &a, &b, root, None, timeout_ns, held, kept, result, async_op)

    def all_to_all(self, x, out=None, *, counts=None, out_counts=None, timeout=..., async_op=False):
        """Rank i's ``x[j]`` becomes rank j's ``out[i]``: a transposition over ranks.

        Parameters
        ----------
        x : array of shape (size, *S)
            Equal shape and element type on all ranks.
        out : array of shape (size, *S), optional
            A new array by default. It may be ``x``; any other overlap is refused.
        counts : sequence of int, optional
            Rows (of the first axis of ``x``, shape ``(sum(counts), *S)``) to each rank, zeros allowed; each rank has
            its own. All ranks give counts, or none. One small collective more, in which ranks tell each other.
        out_counts : sequence of int, optional
            With ``counts``: rows from each rank, ``out`` having shape ``(sum(out_counts), *S)``. What a rank expects
            and what the others send must agree. None: whatever they send.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``out``.

        Raises
        ------
        TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. About (4 * size - 2) * x.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        if counts is not None:
            return all_to_all_rows(self.engine, x, out, counts, out_counts, timeout_ns, async_op)
        if out_counts is not None:
            raise ValueError("out_counts goes with counts, the rows to each rank")
        held = source_array(x, &a)
        self.one_share_shape(x)
        result = empty_like_array(x, shape_of(x)) if out is None else out
        kept = target_array(result, &b)
        check_same(&a, &b, 1, 1)
        check_overlap(&a, &b, 0)
        return self.perform(KIND_ALL_TO_ALL, &a, &b, NO_ROOT, None, timeout_ns, held, kept, result, async_op)

    def barrier(self, *, timeout=..., async_op=False):
        """Return once every rank has called.

        Parameters
        ----------
        timeout, async_op
            As in `all_reduce`.

        Raises
        ------
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`.

        Notes
        -----
        Collective. One round of empty eager messages.
        """
        cdef int64_t timeout_ns = nanoseconds(timeout, self.timeout_ns)
        cdef array_t nothing
        memset(&nothing, 0, sizeof(nothing))
        return self.perform(KIND_BARRIER, &nothing, &nothing, NO_ROOT, None, timeout_ns, None, None, None, async_op)

    # ---- how all of them end ----

    cdef object perform(self, int kind, array_t *x, array_t *out, int root, op, int64_t timeout_ns, held, kept, result,
                        async_op):
        """Make the call, all of whose arrays have passed; or prepare it, to be made later, as ``async_op`` says."""
        cdef Engine engine = self.engine
        cdef request_t request
        cdef Program program
        cdef int code = NO_OP
        cdef reduce_kernel kernel = NULL
        if REDUCTIONS >> kind & 1:
            code = number_of(op, x.dtype)
            if code == NO_OP:
                return do(prepare_fold(engine, kind, x, out, root, op, timeout_ns, held, kept, result), async_op)
            kernel = kernel_for(code, x)
        if async_op is not False:
            return do(prepare(Prepared.__new__(Prepared), engine, kind, x, out, root, code, kernel, timeout_ns, held,
                              kept, result), async_op)
        engine.enter()
        try:
            program = prepare_request(engine, kind, x, out, root, code, kernel, &request)
            run_request(engine, program, &request, timeout_ns)
        finally:
            engine.leave()
        give_back(kept)
        return result

    # ---- life ----

    def stats(self):
        """What this rank's engine has chosen, and what it learned.

        Returns
        -------
        dict
            ``rounds`` so far; the settings in force (sizes in bytes, times in microseconds) and in ``why`` where each
            that is no constant comes from: ``argument``, an environment variable, what it is derived from; a barrier as
            measured when the ranks met, and the processors they have together; by rank how much of its outbox this
            process maps by huge pages; ``threads`` of each rank that make large calls, and ``split_calls``, how many
            they have made together; ``zero_copy_calls``, how many needed no staging, as what others reach lay in shared
            arrays; and ``programs``, one for each kind and size of large call that is remembered: its
            algorithm, bytes, rounds, threads, calls, how it stores into the outbox, and the microseconds that all ranks
            together spent in copies and reductions in the last trials of both ways of storing (through the cache, past
            it) of which all have told; 0 before.

        Notes
        -----
        Not collective; costs nothing to the calls.
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
        this rank had said before stays readable for them. Not calling it is fine, too: the end of the process does
        it.

        Pending asynchronous work is waited for, as long as the communicator's timeout; what is not done by then is
        aborted.
        """
        if self.engine.progress is None:
            self.engine.close()
            return
        self.engine.progress.close(self.engine.config.timeout)
        self.engine.close()
        self.engine.progress.retire()

    # ---- shapes ----

    cdef bint check_root(self, int root) except -1:
        if not 0 <= root < self.size:
            raise ValueError(f"root={root}: must be a rank, from 0 to {self.size - 1}")
        return root == self.rank

    cdef tuple one_share_shape(self, x):
        cdef tuple shape = shape_of(x)
        if not shape or shape[0] != self.size:
            raise ValueError(f"x has shape {shape}; its first dimension must be the number of ranks, {self.size}")
        return shape[1:]

    cdef object one_share(self, x):
        return empty_like_array(x, self.one_share_shape(x))
