"""Collective calls on arrays that reduce: all_reduce, reduce, reduce_scatter, scan, exscan."""

from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t, source_array, target_array
from shmring.arrays.outputs cimport check_overlap
from shmring.collective.base cimport CollectiveBase, check_out, resolve_timeout
from shmring.collective.varying cimport reduce_scatter_rows
from shmring.engine.signature cimport (KIND_ALL_REDUCE, KIND_EXSCAN, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCAN,
                                       NO_ROOT)


cdef inline object combine(CollectiveBase self, int kind, x, out, op, timeout, async_op):
    """A reduction whose input and output are of one size on every rank."""
    cdef array_t a, b
    cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
    result = x if out is None else out
    held = None
    if out is None:
        kept = target_array(x, &a)
        b = a
    else:
        held = source_array(x, &a)
        kept = target_array(out, &b)
        check_out(&a, &b, 1, 1)
        check_overlap(&a, &b, 0)
    return self.perform(kind, &a, &b, NO_ROOT, op, timeout_ns, held, kept, result, async_op)


cdef class Reductions(CollectiveBase):
    """The reductions of `shmring.Communicator`."""

    def all_reduce(self, x, out=None, *, op="sum", timeout=..., async_op=False):
        """Combine ``x`` element by element over all ranks; every rank gets the same bits.

        Parameters
        ----------
        x : array, any shape
            Anything on the CPU with the buffer protocol or DLPack: NumPy, ml_dtypes, torch. Element type and number of
            elements equal on all ranks. An array that is not contiguous costs a copy.
        out : array, optional
            Same element type and count. Without it the result goes into ``x``. It may be ``x``; any other overlap is
            refused.
        op : {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor"}, ufunc or callable
            ``avg`` (also ``mean``) is the sum divided by ``size``, on floats and complex only. A callable ``f(a, b)``
            returns an array of the same dtype; see "User functions" in ``docs/async.md`` for the cost.
        timeout : float, optional
            Seconds to wait for live peers; None: no limit. The communicator's timeout by default.
        async_op : bool
            Return a `Work` at once and make the call in the background: after everything that was submitted before, and
            before everything that is called later. Arguments are checked now.

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
        about a microsecond. Elements are reduced in rank order, ((x0 + x1) + x2) + ..., whatever the size of the
        message; float16 and bfloat16 in float32, rounded once. Up to ``stats()["eager_nbytes"]`` bytes: one round of
        eager messages. Above: slices, each reduced by its owner from all sources at once;
        (5 * size - 2) * x.nbytes bytes touched in all.
        """
        return combine(self, KIND_ALL_REDUCE, x, out, op, timeout, async_op)

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

        Notes
        -----
        Collective; raises as `all_reduce`. Reduced in rank order, same bits as `all_reduce`. (3 * size - 1) * x.nbytes
        bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
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
                check_out(&a, &b, 1, 1)
                check_overlap(&a, &b, 0)
        return self.perform(KIND_REDUCE, &a, &b, root, op, timeout_ns, held, kept, result, async_op)

    def reduce_scatter(self, x, out=None, *, op="sum", counts=None, timeout=..., async_op=False):
        """Combine ``x`` over all ranks; rank i gets ``x[i]`` of the result.

        Parameters
        ----------
        x : array of shape ``(size, *S)``
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

        Notes
        -----
        Collective; raises as `all_reduce`. Reduced in rank order, same bits as `all_reduce`. (3 * size - 1) * x.nbytes
        bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        if counts is not None:
            return reduce_scatter_rows(self.engine, x, out, counts, op, timeout_ns, async_op)
        held = source_array(x, &a)
        result = self.new_block(x) if out is None else out
        kept = target_array(result, &b)
        check_out(&a, &b, 1, self.size)
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

        Notes
        -----
        Collective; raises as `all_reduce`. Reduced in rank order.
        """
        return combine(self, KIND_SCAN, x, out, op, timeout, async_op)

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

        Notes
        -----
        Collective; raises as `all_reduce`. Reduced in rank order.
        """
        return combine(self, KIND_EXSCAN, x, out, op, timeout, async_op)
