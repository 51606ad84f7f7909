"""Collective calls on arrays that move data: broadcast, gather, scatter, all_gather, all_to_all; and barrier."""

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.arrays.array_view cimport array_t, source_array, target_array
from shmring.arrays.outputs cimport check_overlap, empty_like_array, shape_of
from shmring.collective.base cimport check_out, resolve_timeout
from shmring.collective.reductions cimport Reductions
from shmring.collective.varying cimport all_gather_rows, all_to_all_rows, gather_rows, scatter_rows
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST, KIND_GATHER,
                                       KIND_SCATTER, NO_ROOT)


cdef inline object collect(DataMovement self, int kind, x, out, int root, bint receives, int64_t timeout_ns, async_op):
    """Collect a block of every rank, on the ranks that receive."""
    cdef array_t a, b
    result = kept = None
    held = source_array(x, &a)
    b = a
    if receives:
        result = empty_like_array(x, (self.size, *shape_of(x))) if out is None else out
        kept = target_array(result, &b)
        check_out(&a, &b, self.size, 1)
        check_overlap(&a, &b, self.rank * a.nbytes)
    return self.perform(kind, &a, &b, root, None, timeout_ns, held, kept, result, async_op)


cdef class DataMovement(Reductions):
    """The data movement of `shmring.Communicator`. Derives from the reductions: an extension type has one base."""

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
            As in `all_reduce`. The root does not wait for the others: if they disagree or die, a later call of the root
            may be the first to raise.

        Notes
        -----
        Collective. 2 * size * x.nbytes bytes touched.
        """
        cdef array_t a
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        kept = source_array(x, &a) if is_root else target_array(x, &a)
        return self.perform(KIND_BROADCAST, &a, &a, root, None, timeout_ns, None, kept, x, async_op)

    def all_gather(self, x, out=None, *, counts=None, timeout=..., async_op=False):
        """Collect the ``x`` of all ranks, in rank order, on every rank.

        Parameters
        ----------
        x : array of shape S
            Equal shape and element type on all ranks.
        out : array of shape ``(size, *S)``, optional
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

        Notes
        -----
        Collective; raises as `all_reduce`. size * (2 * size + 1) * x.nbytes bytes touched, size * x.nbytes fewer in
        place.
        """
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        if counts is not None:
            return all_gather_rows(self.engine, x, out, counts, timeout_ns, async_op)
        return collect(self, KIND_ALL_GATHER, x, out, NO_ROOT, True, timeout_ns, async_op)

    def gather(self, x, out=None, *, int root=0, counts=None, timeout=..., async_op=False):
        """Collect the ``x`` of all ranks, in rank order, on the root.

        Parameters
        ----------
        x : array of shape S
            Equal shape and element type on all ranks.
        out : array of shape ``(size, *S)``, optional
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

        Notes
        -----
        Collective; raises as `all_reduce`. About 4 * (size - 1) * x.nbytes bytes touched.
        """
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        if counts is not None:
            return gather_rows(self.engine, x, out, counts, root, timeout_ns, async_op)
        return collect(self, KIND_GATHER, x, out, root, is_root, timeout_ns, async_op)

    def scatter(self, x, out=None, *, int root=0, counts=None, timeout=..., async_op=False):
        """Give rank i the root's ``x[i]``.

        Parameters
        ----------
        x : array of shape ``(size, *S)`` on the root
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

        Notes
        -----
        Collective; raises as `all_reduce`. The root does not wait for the others, as in `broadcast`.
        About 4 * (size - 1) * out.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        cdef bint is_root = self.check_root(root)
        if counts is not None:
            return scatter_rows(self.engine, x, out, counts, root, timeout_ns, async_op)
        held = None
        if is_root:
            held = source_array(x, &a)
            result = self.new_block(x) if out is None else out
        elif out is None:
            raise ValueError(f"rank {self.rank} is not the root of this scatter: pass out=, an array of the shape of "
                             "one block")
        else:
            result = out
        kept = target_array(result, &b)
        if is_root:
            check_out(&a, &b, 1, self.size)
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
        x : array of shape ``(size, *S)``
            Equal shape and element type on all ranks.
        out : array of shape ``(size, *S)``, optional
            A new array by default. It may be ``x``; any other overlap is refused.
        counts : sequence of int, optional
            Rows (of the first axis of ``x``, shape ``(sum(counts), *S)``) to each rank, zeros allowed; each rank has
            its own. All ranks give counts, or none. Costs one more small collective, which exchanges the counts.
        out_counts : sequence of int, optional
            With ``counts``: rows from each rank, ``out`` having shape ``(sum(out_counts), *S)``. They
            must agree with the ``counts`` of the senders. None: whatever they send.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array
            ``out``.

        Notes
        -----
        Collective; raises as `all_reduce`. About (4 * size - 2) * x.nbytes bytes touched.
        """
        cdef array_t a, b
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        if counts is not None:
            return all_to_all_rows(self.engine, x, out, counts, out_counts, timeout_ns, async_op)
        if out_counts is not None:
            raise ValueError("out_counts requires counts, the rows to each rank")
        held = source_array(x, &a)
        self.block_shape(x)
        result = empty_like_array(x, shape_of(x)) if out is None else out
        kept = target_array(result, &b)
        check_out(&a, &b, 1, 1)
        check_overlap(&a, &b, 0)
        return self.perform(KIND_ALL_TO_ALL, &a, &b, NO_ROOT, None, timeout_ns, held, kept, result, async_op)

    def barrier(self, *, timeout=..., async_op=False):
        """Return once every rank has called.

        Parameters
        ----------
        timeout, async_op
            As in `all_reduce`.

        Notes
        -----
        Collective; raises as `all_reduce`. One round of empty eager messages.
        """
        cdef int64_t timeout_ns = resolve_timeout(timeout, self.timeout_ns)
        cdef array_t nothing
        memset(&nothing, 0, sizeof(nothing))
        return self.perform(KIND_BARRIER, &nothing, &nothing, NO_ROOT, None, timeout_ns, None, None, None, async_op)
