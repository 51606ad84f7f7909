"""The communicator of a group of ranks: every public call, and the room that makes it.

A method checks nothing but its own types: the room does that. Collectives on arrays are in
`shmring.collectives.calls.calls`, messages in `shmring.collectives.p2p`, and so on, as each method shows.
"""

cimport cython

from shmring.core.base.timeouts cimport int_of, resolve_timeout, timeout_to_ns
from shmring.collectives.calls.calls cimport all_to_all, barrier, broadcast, combine, reduce, with_blocks
from shmring.collectives.calls.coalesced cimport all_reduce_many
from shmring.collectives.calls.plan cimport plan
from shmring.collectives.calls.local cimport LocalExecutor
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport (
    KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_EXSCAN, KIND_GATHER, KIND_REDUCE_SCATTER, KIND_SCAN, KIND_SCATTER,
)
from shmring.collectives.engine.signature cimport NO_ROOT
from shmring.collectives.p2p.point_to_point cimport PointToPoint
from shmring.collectives.p2p.requests cimport ANY, MOST_TAG, RECV, SEND, done_request
from shmring.collectives.shared.zero_copy cimport sharing_of

from shmring.collectives.calls import explain as _explain
from shmring.collectives.calls import groups as _groups
from shmring.collectives.calls import objects as _objects
from shmring.collectives.calls import tracing as _tracing
from shmring.collectives.calls.mpi_names import HINTS
from shmring.collectives.engine.recording import TRACED_CALLS
from shmring.collectives.shared import share as _share
from shmring.collectives.shared import shared_arrays as _shared_arrays
from shmring.core.sync.turn import Turn

cdef extern from *:
    """
    static int shmring_set_type_attribute(PyObject *type, PyObject *name, PyObject *value) {
        int failed = PyDict_SetItem(((PyTypeObject *)type)->tp_dict, name, value);
        PyType_Modified((PyTypeObject *)type);
        return failed;
    }
    """
    int set_type_attribute "shmring_set_type_attribute"(object type, object name, object value) except -1


cdef inline int rank_of(Communicator comm, object number, str name) except? -2:
    """The argument ``name``, a rank or ``ANY_SOURCE``: the room that makes the call checks its range."""
    return int_of(number, name, comm.size - 1)


cdef inline int tag_of(object number, str name) except? -2:
    return int_of(number, name, MOST_TAG)


# Not cleared by the garbage collector: a finalizer may call a method of what is garbage, too.
@cython.no_gc_clear
cdef class Communicator:
    """A group of ranks on one machine. Made by `init`; not by calling this class.

    One thread at a time is in a call; a second one waits. All ranks must make the same collective calls in the same
    order. Use it as a context manager: left with an exception it aborts, so that peers raise `AbortedError` at once;
    else it closes.

    Attributes
    ----------
    rank : int
        The number of this process, from 0 to ``size - 1``.
    size : int
        The number of ranks.
    name : str
        Its name in messages and logs.
    parent_ranks : tuple of int, or None
        The number of each rank in the communicator from which this one was made; None if it was made by `init`.
    """

    def __cinit__(self, engine not None, parent_ranks=None, *args, **kwargs):
        self._engine = engine
        self.parent_ranks = parent_ranks
        if isinstance(engine, Engine):
            engine.sharing = engine.sharing or sharing_of(engine)
            self.executor, self.messages = LocalExecutor(engine), PointToPoint(engine)
        elif hasattr(engine, "executor"):       # of several machines
            self.executor, self.messages = engine.executor, engine.messages
        else:
            raise TypeError(f"engine={engine!r}: shmring.init and shmring.from_mpi make communicators")
        self.rank = self.executor.rank
        self.size = self.executor.size
        self.timeout_ns = timeout_to_ns(engine.config.timeout)
        self._object_turn = Turn(engine.name)

    # ---- life --------------------------------------------------------------------------------------------------------

    @property
    def name(self):
        """The name of this communicator in messages."""
        return self._engine.name

    @property
    def config(self):
        """The settings that it was made with, a `shmring.config.Config`."""
        return self._engine.config

    @property
    def nodes(self):
        """The ranks of each node of a communicator over several machines; None: all ranks are on this machine."""
        return None

    @property
    def closed(self):
        """Whether `close` was called here."""
        return self._engine.is_closed

    @property
    def is_broken(self):
        """Whether a peer was lost or late, or a rank aborted; then every call raises."""
        return self._engine.is_broken

    def __repr__(self):
        state = " closed" if self._engine.is_closed else " broken" if self._engine.is_broken else ""
        return f"<shmring.{type(self).__name__} {self.name!r} rank {self.rank} of {self.size}{state}>"

    def __reduce__(self):
        raise TypeError("a communicator belongs to its process and can be neither copied nor pickled; "
                        "call shmring.init() in the other process")

    def __dir__(self):
        return [name for name in object.__dir__(self) if name not in HINTS]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        engine = self._engine
        if kind is not None and not (engine.is_closed or engine.is_inherited or engine.is_broken):
            engine.abort(f"{kind.__name__}: {value}")
        self.close()

    def abort(self, reason=""):
        """End this communicator for all ranks, at once.

        Peers that wait, and peers that call later, get `AbortedError` with the reason. Any thread may call; does not
        block.

        Parameters
        ----------
        reason : str
            At most about 200 bytes of it are kept.
        """
        self._engine.abort(str(reason))

    def close(self):
        """Leave the communicator and free its memory. Idempotent.

        Not collective: it does not wait for the others. Peers that still need this rank get `PeerLostError`; what
        this rank has published before stays readable for them. A call is not required: the end of the process has the
        same effect.

        Pending asynchronous work is waited for, as long as the communicator's timeout; after that it is aborted. What
        this rank has shared (`share`) becomes private, with the errors of
        `shmring.collectives.shared.share.Shared.close`.
        """
        if self._engine.progress is not None:
            self._engine.progress.close(self._engine.config.timeout)
        try:
            self._engine.close()
        finally:
            if self._engine.progress is not None:
                self._engine.progress.retire()
            if self._engine.sharing is not None:
                _share.close_all(self._engine)

    # ---- collectives on arrays ---------------------------------------------------------------------------------------

    def all_reduce(self, x, out=None, op="sum", *, timeout=..., async_op=False):
        """Combine ``x`` element by element over all ranks; every rank gets the same bits.

        Parameters
        ----------
        x : array of any shape, or number
            Anything on the CPU with the buffer protocol or DLPack: NumPy, ml_dtypes, torch. Element type and number of
            elements equal on all ranks. An array that is not contiguous costs a copy. A number of Python or NumPy is
            taken as a new array without dimensions (``float(comm.all_reduce(1.5))``).
        out : array, optional
            Same element type and count. Without it the result goes into ``x``. It may be ``x``; any other overlap is
            refused.
        op : {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "absmax"}, ufunc or callable
            Capitals are accepted. ``avg`` (also ``mean``) is the sum divided by ``size``, on floats and complex only;
            ``absmax`` the largest magnitude, of floats.
            Python's ``sum``, ``min``, ``max`` and functions of `operator` mean the same. A callable ``f(a, b)``
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
        message; floats of 16 and 8 bits in float32, rounded once. Up to ``stats()["eager_nbytes"]`` bytes: one round of
        eager messages. Above: slices, each reduced by its owner from all sources at once;
        (5 * size - 2) * x.nbytes bytes touched in all.
        """
        return combine(self.executor, KIND_ALL_REDUCE, x, out, op, resolve_timeout(timeout, self.timeout_ns), async_op)

    def reduce(self, x, out=None, op="sum", root=0, *, timeout=..., async_op=False):
        """Combine ``x`` element by element over all ranks into the root's ``out``.

        Parameters
        ----------
        x : array of any shape, or number
            As in `all_reduce`.
        out : array, optional
            On the root: where the result goes, ``x`` by default. Ignored on the others.
        op : str or callable
            As in `all_reduce`.
        root : int
            The rank that gets the result.
        timeout, async_op
            As in `all_reduce`.

        Returns
        -------
        array or None
            ``out`` (or ``x``) on the root. None on the others; their ``x`` is left as it was.

        Notes
        -----
        Collective; raises as `all_reduce`. Reduced in rank order, same bits as `all_reduce`. (3 * size - 1) * x.nbytes
        bytes touched.
        """
        return reduce(self.executor, x, out, rank_of(self, root, "root"), op,
                      resolve_timeout(timeout, self.timeout_ns), async_op)

    def reduce_scatter(self, x, out=None, op="sum", *, counts=None, timeout=..., async_op=False):
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
            ``(sum(counts), *S)``, and ``out`` ``(counts[rank], *S)``; in place it is those rows of ``x``.
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
        return with_blocks(self.executor, KIND_REDUCE_SCATTER, x, out, NO_ROOT, counts, op,
                           resolve_timeout(timeout, self.timeout_ns), async_op)

    def scan(self, x, out=None, op="sum", *, timeout=..., async_op=False):
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
        return combine(self.executor, KIND_SCAN, x, out, op, resolve_timeout(timeout, self.timeout_ns), async_op)

    def exscan(self, x, out=None, op="sum", *, timeout=..., async_op=False):
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
        return combine(self.executor, KIND_EXSCAN, x, out, op, resolve_timeout(timeout, self.timeout_ns), async_op)

    def broadcast(self, x, root=0, *, timeout=..., async_op=False):
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
        return broadcast(self.executor, x, rank_of(self, root, "root"),
                         resolve_timeout(timeout, self.timeout_ns), async_op)

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
        return with_blocks(self.executor, KIND_ALL_GATHER, x, out, NO_ROOT, counts, None,
                           resolve_timeout(timeout, self.timeout_ns), async_op)

    def gather(self, x, out=None, root=0, *, counts=None, timeout=..., async_op=False):
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
        return with_blocks(self.executor, KIND_GATHER, x, out, rank_of(self, root, "root"), counts, None,
                           resolve_timeout(timeout, self.timeout_ns), async_op)

    def scatter(self, x, out=None, root=0, *, counts=None, timeout=..., async_op=False):
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
        return with_blocks(self.executor, KIND_SCATTER, x, out, rank_of(self, root, "root"), counts, None,
                           resolve_timeout(timeout, self.timeout_ns), async_op)

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
            its own. Either all ranks give counts or none does. Costs one more small collective, which exchanges the
            counts.
        out_counts : sequence of int, optional
            With ``counts``: rows from each rank, ``out`` having shape ``(sum(out_counts), *S)``. They
            must agree with the ``counts`` of the senders. None: by the ``counts`` of the senders.
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
        return all_to_all(self.executor, x, out, counts, out_counts, resolve_timeout(timeout, self.timeout_ns),
                          async_op)

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
        return barrier(self.executor, resolve_timeout(timeout, self.timeout_ns), async_op)

    def all_reduce_many(self, arrays, op="sum", *, timeout=..., async_op=False):
        """All-reduce several arrays in place, as one operation: the same bits as one call for each, in less time.

        Parameters
        ----------
        arrays : list or tuple of arrays
            As in `all_reduce`; element types may differ. Number, types, sizes and order are equal on all
            ranks. No two may overlap.
        op, timeout, async_op
            As in `all_reduce`. The timeout applies to each part.

        Returns
        -------
        list of arrays
            The same arrays.

        Notes
        -----
        Collective; raises as `all_reduce`. If a part fails, arrays of the parts before it may have their results
        already. Arrays up to 16 KiB are packed, those of one element type together and up to 1 MiB at a time; each such
        bundle is copied twice more and makes one all-reduce. Larger arrays make one each; so does every array if ``op``
        is a callable.
        """
        return all_reduce_many(self.executor, arrays, op, resolve_timeout(timeout, self.timeout_ns), async_op)

    def plan(self, collective, *args, **kwargs):
        """Prepare a collective that is made often: each ``plan()`` makes it on the present contents of its arrays.

        Parameters
        ----------
        collective : str
            The name of the method that makes it, e.g. ``"all_reduce"``; any collective on arrays.
        *args, **kwargs
            The arguments of that method, except ``async_op``. The arrays must be contiguous; they are kept alive. If
            the method makes a new array without ``out``, it is made now, and returned by every call. `all_to_all` with
            ``counts`` makes it at the first call, and again only if the other ranks send another number of rows.

        Returns
        -------
        Plan
            Call it to make the collective; ``plan.start()`` makes it asynchronously, ``plan.describe()`` explains it.

        Raises
        ------
        TypeError, ValueError
            A bad argument, as for the method itself; or an array that is not contiguous, aligned and in native byte
            order: it would need a copy, which would be out of date later.

        Notes
        -----
        Not collective, and nothing is sent. Peers may make the same call with a plan or without. Saves the work between
        Python and the engine (``docs/async.md`` has the ratio). The arrays must stay where they are: do not resize one
        in place (NumPy refuses that).
        """
        return plan(self, collective, args, kwargs)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def send(self, x, dst, tag=0, *, timeout=...):
        """Send an array to one rank.

        Parameters
        ----------
        x : array, any shape
            Any array on the CPU with the buffer protocol or DLPack, structures too. It may be changed after the call.
        dst : int or None
            The receiving rank; may be this rank. None: nothing is sent, as with MPI's PROC_NULL.
        tag : int
            From 0 to 2**31 - 1; the receiver can select by it.
        timeout : float, optional
            Seconds to wait for room, None for no limit. The communicator's timeout by default.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent.
        OutOfSharedMemoryError
            /dev/shm has no room for the pair queue, whose memory is reserved at the first message to this rank and at
            the first of more than 40 bytes. Nothing was sent.
        MessageTimeoutError
            No room within ``timeout``. Nothing was sent; the communicator stays usable.
        CollectiveTimeoutError
            ``dst`` received the beginning, then nothing for ``timeout``; the communicator is broken.
        PeerLostError, AbortedError
            The communicator is broken.

        Notes
        -----
        Returns once all of ``x`` is in the pair queue to ``dst``, whether or not `recv` has been called: it holds at
        least 256 KiB (``config.internals.pair_queue_nbytes``) and 256 messages. A longer message streams through, so
        the call waits for the receiver. Any thread may call. Messages to one rank arrive in the order they were sent.
        """
        if dst is None:
            return
        self.messages.send(x, rank_of(self, dst, "dst"), tag_of(tag, "tag"), resolve_timeout(timeout, self.timeout_ns))

    def recv(self, x=None, src=ANY, tag=ANY, *, timeout=...):
        """Receive an array from one rank, or from any.

        Parameters
        ----------
        x : array, any shape
            The message is stored from its beginning on. It may be larger than the message and must have its dtype;
            uint8 and opaque structures may be mixed.
        src : int or None
            The sending rank; `ANY_SOURCE` (-1), the default: the first message to arrive, and no rank starves. None:
            nothing is received.
        tag : int
            `ANY_TAG` (-1), the default: any tag.
        timeout : float, optional
            Seconds to wait, None for no limit. The communicator's timeout by default.

        Returns
        -------
        Message or None
            None if ``src`` is None; else ``source``, ``tag``, ``nbytes``, ``count`` and ``dtype`` of the message.

        Raises
        ------
        ValueError
            A bad argument.
        MessageTooLongError
            The message is longer than ``x``. It can still be received.
        TypeError
            ``x`` is no array, or the message has another dtype; then it can still be received.
        MessageTimeoutError
            No message arrived. The communicator stays usable. If a message was partly received, ``x`` is undefined, and
            the message can still be received.
        PeerLostError, AbortedError
            The communicator is broken. Messages that a rank sent completely before it was lost are received first.

        Notes
        -----
        Any thread may call. Messages from one rank are matched in the order they were sent; an earlier one with another
        tag is copied to private memory.
        """
        if src is None:
            return None
        return self.messages.recv(x, rank_of(self, src, "src"), tag_of(tag, "tag"),
                                  resolve_timeout(timeout, self.timeout_ns))

    def sendrecv(self, x, dst, out, src=ANY, *, tag=0, out_tag=ANY, timeout=...):
        """Send one array and receive another at the same time; it cannot deadlock, whatever their sizes.

        Parameters
        ----------
        x : array
            Sent to ``dst``.
        dst : int or None
            None: nothing is sent.
        out : array
            Receives the message from ``src``; it must not overlap ``x``.
        src : int or None
            As in `recv`.
        tag : int
            Tag of the message sent.
        out_tag : int
            Tag of the message received, `ANY_TAG` by default.
        timeout : float, optional
            As in `recv`.

        Returns
        -------
        Message or None
            The message received; None if ``src`` is None.

        Notes
        -----
        Raises as `send` and `recv`. If ``out`` does not fit the message, ``x`` was sent. On a ring of ranks,
        ``comm.sendrecv(x, (rank + 1) % size, out, (rank - 1) % size)`` shifts by one.
        """
        if dst is None:
            return self.recv(out, src, out_tag, timeout=timeout)
        if src is None:
            return self.send(x, dst, tag, timeout=timeout)
        return self.messages.sendrecv(x, rank_of(self, dst, "dst"), tag_of(tag, "tag"), out, rank_of(self, src, "src"),
                                      tag_of(out_tag, "out_tag"), resolve_timeout(timeout, self.timeout_ns))

    def isend(self, x, dst, tag=0):
        """Begin to send an array to one rank.

        Parameters
        ----------
        x : array
            Must not be changed until the request is done.
        dst, tag : int
            As in `send`.

        Returns
        -------
        Request
            Done once all of ``x`` is in the pair queue; often at once.

        Notes
        -----
        Does not block; raises as `send`. Progresses only during other point-to-point calls of this communicator in this
        process, including `Request.wait` and `Request.done`.
        """
        if dst is None:
            return done_request(self.messages, SEND)
        return self.messages.isend(x, rank_of(self, dst, "dst"), tag_of(tag, "tag"))

    def irecv(self, x, src=ANY, tag=ANY):
        """Begin to receive an array.

        Parameters
        ----------
        x : array
            Must not be used until the request is done.
        src, tag : int
            As in `recv`.

        Returns
        -------
        Request
            Its `Request.wait` returns the `Message`, and raises as `recv`.

        Raises
        ------
        TypeError, ValueError
            A bad argument.

        Notes
        -----
        Does not block. Requests that match the same messages get them in the order of the calls. Progresses as
        in `isend`.
        """
        if src is None:
            return done_request(self.messages, RECV)
        return self.messages.irecv(x, rank_of(self, src, "src"), tag_of(tag, "tag"))

    def probe(self, src=ANY, tag=ANY, *, timeout=...):
        """Wait for a message and describe it, without receiving it. Raises as `recv`.

        Parameters
        ----------
        src, tag : int
            As in `recv`.
        timeout : float, optional
            Seconds to wait, None for no limit. The communicator's timeout by default.

        Returns
        -------
        Message or None
            The message that `recv` with its source and tag would receive next; None if none arrived in time.
        """
        return self.messages.probe(rank_of(self, src, "src"), tag_of(tag, "tag"),
                                   resolve_timeout(timeout, self.timeout_ns))

    def iprobe(self, src=ANY, tag=ANY):
        """Describe a message that has arrived, without waiting or receiving it.

        Raises as `recv`, except that a closed rank is not an error.

        Parameters
        ----------
        src, tag : int
            As in `recv`.

        Returns
        -------
        Message or None
            None if no such message has arrived.
        """
        return self.messages.probe(rank_of(self, src, "src"), tag_of(tag, "tag"), 0)

    def send_object(self, obj, dst, tag=0, *, timeout=...):
        """Send a Python object to one rank.

        Parameters
        ----------
        obj : object
            Any object that can be pickled. Large arrays inside it are not copied into the pickle stream.
        dst : int
            The rank that receives it, with `recv_object`.
        tag : int
            From 0 to 2**31 - 1; the receiver can select by it.
        timeout : float, optional
            Seconds to wait for room in the pair queue; None for no limit. The communicator's timeout by default.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``, or a bad rank, tag or timeout. Nothing was sent.
        ObjectError
            The object cannot be pickled. Nothing was sent.
        PeerLostError, MessageTimeoutError, CollectiveTimeoutError, AbortedError
            As in `send`. If a part of the object was sent, the communicator is broken.

        Notes
        -----
        Blocks while the pair queue to ``dst`` is full. One message for the pickle stream, one for each large buffer; no
        other message of this rank comes between them. Any thread may call.
        """
        if dst is None:
            return
        self.messages.send_object(obj, rank_of(self, dst, "dst"), tag_of(tag, "tag"),
                                  resolve_timeout(timeout, self.timeout_ns))

    def recv_object(self, src=ANY, tag=ANY, *, timeout=...):
        """Receive a Python object.

        Parameters
        ----------
        src, tag : int
            Source and tag; any by default.
        timeout : float, optional
            Seconds to wait; None for no limit. The communicator's timeout by default.

        Returns
        -------
        object
            Its arrays are writable and own their memory.

        Raises
        ------
        ValueError
            The communicator was made with ``allow_pickle=False``, or a bad argument. Nothing was received.
        MessageError
            The next message is an array; it can still be received with `recv`.
        MessageTimeoutError
            No complete object arrived in time. It can still be received; nothing is lost.
        ObjectError
            The object cannot be unpickled here; it has been received.
        PeerLostError, AbortedError
            As in `recv`.

        Notes
        -----
        Blocks until the object has arrived. Unpickling runs code chosen by the sender. One thread at a time may receive
        objects from one source with one tag.
        """
        if src is None:
            return None
        return self.messages.recv_object(rank_of(self, src, "src"), tag_of(tag, "tag"),
                                         resolve_timeout(timeout, self.timeout_ns))

    # ---- collectives on objects --------------------------------------------------------------------------------------

    def broadcast_object(self, obj=None, root=0, *, timeout=...):
        """Give every rank a copy of the root's object.

        Parameters
        ----------
        obj : object
            On the root: anything that can be pickled. Ignored on the others.
        root : int
        timeout : float, optional
            Seconds to wait for live peers in each collective that this call consists of; None: no limit. The
            communicator's timeout by default.

        Returns
        -------
        object
            ``obj`` itself on the root, a copy on the others.

        Raises
        ------
        TypeError, ValueError
            A bad argument, or the setting ``allow_pickle=False``. Nothing was sent; the communicator stays usable.
        ObjectError
            The root cannot pickle it (all ranks get this error), or this rank cannot unpickle it (only this rank does).
            The communicator stays usable and in step.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            The communicator is broken.

        Notes
        -----
        Collective. A pickle of up to about 200 bytes takes one round of eager messages. Large arrays inside the object
        are not copied into the pickle: each moves from its own memory into new memory of the receiver by a `broadcast`,
        and is writable there if it was on the root. Do not change the object meanwhile. **Unpickling runs code that the
        sender chose.**
        """
        return _objects.broadcast_object(self, obj, root, timeout)

    def gather_object(self, obj, root=0, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on the root.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list or None
            On the root one object per rank: copies, but for its own, which is ``obj`` itself. None on the others.

        Notes
        -----
        Collective; raises as `broadcast_object`. Headers go to all ranks; the rest goes to the root by `gather` with
        counts, large arrays in pieces.
        """
        return _objects.gather_object(self, obj, root, timeout)

    def all_gather_object(self, obj, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on every rank.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object per rank: copies, but for this rank's own, which is ``obj`` itself.

        Notes
        -----
        Collective; raises as `broadcast_object`. Bytes that do not fit in the headers go by `all_gather` with counts;
        but if the large arrays of a rank have more than 256 KiB together, all large arrays go by one `broadcast` each,
        from their own memory into new memory of the receivers.
        """
        return _objects.all_gather_object(self, obj, timeout)

    def reduce_object(self, obj, op="sum", root=0, *, timeout=...):
        """Combine the objects of all ranks, in rank order, on the root.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        op : str or callable
            The name of an operation of `all_reduce`, which stands for Python's operator (``sum`` is ``a + b``, ``min``
            is ``min(a, b)``, ``land`` is ``bool(a) and bool(b)``); or a function ``f(a, b)`` of two objects.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        object
            On the root ``f(f(x0, x1), x2)`` and so on; None on the others.

        Raises
        ------
        Exception
            An error of ``f``, on the root alone; the communicator stays usable. Else as `broadcast_object`.

        Notes
        -----
        Collective. It is `gather_object`, and then ``f`` on the root.
        """
        return _objects.reduce_object(self, obj, op, root, timeout)

    def all_reduce_object(self, obj, op="sum", *, timeout=...):
        """Combine the objects of all ranks, in rank order, on every rank.

        Parameters
        ----------
        obj, op, timeout
            As in `reduce_object`.

        Returns
        -------
        object
            ``f(f(x0, x1), x2)`` and so on, which each rank has computed for itself.

        Notes
        -----
        Collective; raises as `reduce_object`. It is `all_gather_object`, and then ``f`` on every rank.
        """
        return _objects.all_reduce_object(self, obj, op, timeout)

    def scatter_object(self, objs=None, root=0, *, timeout=...):
        """Give rank i a copy of the root's ``objs[i]``.

        Parameters
        ----------
        objs : sequence of ``size`` objects
            On the root. Ignored on the others.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        object
            ``objs[root]`` itself on the root, a copy of ``objs[rank]`` on the others.

        Notes
        -----
        Collective; raises as `broadcast_object`. If the root cannot pickle one of the objects, all ranks get
        `ObjectError`. All headers go to all ranks by a `broadcast`; the rest goes by `scatter` with counts, large
        arrays in pieces.
        """
        return _objects.scatter_object(self, objs, root, timeout)

    def all_to_all_object(self, objs, *, timeout=...):
        """Rank i's ``objs[j]`` becomes element i of rank j's result: a transposition over ranks.

        Parameters
        ----------
        objs : sequence of ``size`` objects
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object from each rank: copies, but for ``objs[rank]``, which is this rank's own.

        Notes
        -----
        Collective; raises as `broadcast_object`. If a rank cannot pickle one of its objects, all ranks get
        `ObjectError`. Bytes that do not fit in the headers go by `all_to_all` with counts, large arrays in pieces.
        """
        return _objects.all_to_all_object(self, objs, timeout)

    # ---- arrays in shared memory -------------------------------------------------------------------------------------

    def empty(self, shape, dtype=float):
        """Make an array of each rank in shared memory, which collectives access without staging.

        Parameters
        ----------
        shape : int or tuple of int
            Equal on all ranks.
        dtype : dtype, default float
            Anything that `numpy.dtype` accepts, except Python objects. Equal on all ranks.

        Returns
        -------
        ndarray
            This rank's array, C-contiguous, from the start of a page, and filled with zeros, as new memory is.

        Raises
        ------
        TypeError, ValueError
            A bad argument: nothing was sent. Or the ranks requested different arrays: all of them get the error.
        OutOfSharedMemoryError, SegmentError
            One rank could not create or map the memory; all ranks raise this, and the message names the rank. Nothing
            is left of the attempt.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`; the communicator is broken.

        Notes
        -----
        Collective; takes a few hundred microseconds, and longer for large arrays, whose pages are faulted in at once.
        Uses ``size`` times the array of shared memory, until no rank has a view of any rank's array left. The array is
        an ordinary ndarray, also for torch (``torch.from_numpy``), and stays valid after the communicator is closed.
        ``docs/shared-arrays.md`` lists what each collective gains.
        """
        return _shared_arrays.empty(self, shape, dtype)

    def array(self, x):
        """Make an array of each rank in shared memory, as `empty`, and copy ``x`` into it.

        Parameters
        ----------
        x : array_like
            Equal shape and element type on all ranks.

        Returns
        -------
        ndarray
            This rank's array.

        Notes
        -----
        Collective; raises as `empty`.
        """
        return _shared_arrays.array(self, x)

    def share(self, *arrays):
        """Make the memory of existing arrays shared where it lies: same objects, same addresses, same content.

        Collectives on these arrays, on views of them, and on other objects over the same memory then need no staging.

        Parameters
        ----------
        *arrays : array_like
            Writable, C-contiguous, in native byte order: ndarrays, tensors, or any object with the buffer protocol. The
            number of arrays, their dtypes and their sizes are equal on all ranks.

        Returns
        -------
        Shared
            Keeps the arrays alive. `Shared.close`, or leaving the ``with`` block, makes the memory private again, and
            so does `close` of this communicator.

        Raises
        ------
        ValueError, TypeError
            On one rank memory is not movable: shared already, mapped from a file, read-only, huge pages of hugetlbfs,
            or not kept by its object; on that rank with the reason, on the others a `ValueError` that names it.
            Nothing has changed, and the communicator stays usable.
        OutOfSharedMemoryError, SegmentError
            On one rank there is no room, or the kernel refuses; raised on all ranks, and nothing has changed.
        MismatchError
            The ranks passed arrays of different number, size or dtype; the communicator is broken.
        PeerLostError, CollectiveTimeoutError, AbortedError
            As in `all_reduce`; the communicator is broken, and this rank's arrays are private.

        Notes
        -----
        Collective. Takes a few hundred microseconds, and the time to fault in and copy the arrays; several in one call
        cost little more than one. Waits for calls of other threads that may store into the arrays, as
        `Shared.close`; no thread may write them in another way meanwhile; reading is allowed. Arrays below
        32 KiB stay private, and so do the ends of others, up to a page each: `Shared.nbytes` has the bytes that are
        shared. While shared, arrays must not be resized. ``docs/shared-arrays.md`` describes what else changes.
        """
        return _share.share(self, arrays)

    def shared_result(self, shape, dtype=float, root=0):
        """Make one array in shared memory for all ranks: the ``out`` of reductions whose result they only read.

        Parameters
        ----------
        shape, dtype
            As in `empty`.
        root : int
            The rank that creates the memory. Each rank's slice of it is on the NUMA node of that rank.

        Returns
        -------
        ndarray
            The same memory on all ranks.

        Notes
        -----
        Collective; raises as `empty`. ``comm.all_reduce(x, result)`` then touches (size + 1) * x.nbytes bytes if ``x``
        is a shared array on all ranks, and ``comm.all_gather(x, result)`` 2 * size * x.nbytes for any ``x``. A result
        may be read until this rank's next collective that writes it: no rank writes before all ranks are in that call.
        Only collectives with the same result on all ranks may write it, and `reduce` and `gather`; `all_reduce` in
        place is refused.
        """
        return _shared_arrays.shared_result(self, shape, dtype, root)

    def shared_view(self, array, rank):
        """A view of a peer's array, or of the part of it that corresponds to a part of this rank's array.

        Parameters
        ----------
        array : ndarray
            One that `empty`, `array` or `shared_result` of this communicator returned, or any view of it.
        rank : int
            The peer.

        Returns
        -------
        ndarray
            An array with the shape, dtype and strides of ``array``, over that rank's memory. Writable if ``array`` is.

        Raises
        ------
        TypeError, ValueError
            Not such an array, or not a rank.

        Notes
        -----
        Not collective, sends nothing, does not block. Accesses through such a view are not synchronised: put a
        `barrier`, or any collective of both ranks, between the stores of one rank and the loads of another.
        """
        return _shared_arrays.shared_view(self, array, rank)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def split(self, color, key=None, *, rendezvous_timeout=300.0, **settings):
        """Make one communicator of each set of ranks that give the same colour.

        Parameters
        ----------
        color : int or None
            Any integer of 64 bits. None: this rank takes part in the split but belongs to no group.
        key : int, optional
            Ranks are numbered in the order of (key, rank in this communicator); by default all keys are equal.
        rendezvous_timeout : float, optional
            Seconds to wait for the group's other ranks to make their segments, 0 or more; None: no limit.
        **settings
            Fields of `shmring.config.Config`, by default those of this communicator. A group takes ``nslots *
            slot_nbytes`` of shared memory per rank, 2 MiB by default; use less for many groups at a time.

        Returns
        -------
        Communicator or None
            None where ``color`` is None.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent; this communicator stays usable.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`, from the collective that exchanges colours: this communicator is broken.
        PeerLostError, RendezvousTimeoutError, RendezvousError, OutOfSharedMemoryError, SegmentError
            The group was not made, and nothing of it is left. This communicator is as usable as it was. ``rank`` and
            ``missing`` are ranks of this communicator.

        Notes
        -----
        Collective. One `all_gather` of 24 bytes, then a few milliseconds for memory and rendezvous. From then on the
        group is independent of this communicator: either may be closed first.
        """
        return _groups.split(self, color, key, rendezvous_timeout, settings)

    def subgroup(self, ranks, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of some ranks. Only they call.

        Parameters
        ----------
        ranks : iterable of int
            Ranks of this communicator, each once, including this one. All members give the same ranks in the same
            order; the position becomes the rank in the group. Groups may overlap.
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator

        Raises
        ------
        TypeError, ValueError
            A bad argument. This communicator stays usable.
        BrokenError
            This communicator was broken before.
        PeerLostError, RendezvousTimeoutError, RendezvousError, OutOfSharedMemoryError, SegmentError
            As in `split`: the group was not made and this communicator is as usable as it was.

        Notes
        -----
        Sends nothing in this communicator, so other threads may use it meanwhile. One thread at a time for the same
        ranks. Blocks until the other members have called. For a group of all ranks in their order, see `dup`.
        """
        return _groups.subgroup(self, ranks, rendezvous_timeout, settings)

    def dup(self, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of the same ranks with memory of its own: for a library, or one for each thread.

        Parameters
        ----------
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator

        Notes
        -----
        Collective: all ranks call, one thread of each at a time. Raises as `subgroup`.
        """
        return _groups.dup(self, rendezvous_timeout, settings)

    def shrink(self, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of the surviving ranks, in their old order, to continue after a `BrokenError`.

        Parameters
        ----------
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator
            Its ``parent_ranks`` are the old numbers of its ranks.

        Raises
        ------
        TypeError, ValueError
            A bad argument.
        ClosedError
            This communicator was closed here.
        RendezvousTimeoutError
            Ranks that are alive and have not closed this communicator did not call; they are in ``missing``.
        RendezvousError, OutOfSharedMemoryError, SegmentError
            A live rank gave up, or there is no memory. May be called again.

        Notes
        -----
        Called by all ranks that are alive and have not closed this communicator, broken or not. Ranks that die
        meanwhile are left out, too. Survivors are determined from the liveness words in this communicator's segments,
        which are the same for all ranks, and in which a dead rank stays dead. So the ranks need no vote: they meet
        under the name of the set that they see, start again when it gets smaller, and are done when a barrier has shown
        that all of them have met. This communicator stays as it is; close it.
        """
        return _groups.shrink(self, rendezvous_timeout, settings)

    # ---- observation -------------------------------------------------------------------------------------------------

    def stats(self):
        """The choices and measurements of this rank's engine.

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
            calls without staging, as the memory that other ranks access lies in shared arrays, all ranks are threads of
            one process, or the kernel copies. ``programs``: one entry for each kind and size of large call that is
            cached, with its algorithm, bytes, rounds, threads, calls, the ``variant`` in use (stores into the outbox
            and to the output, schedule, threads, path), and in ``tried_us`` the microseconds of a call with each value
            of what is learned, when last timed by the root or else rank 0; 0 before and on other ranks.
            ``pair_queues``: for each rank to which a message of more than 40 bytes was sent, the bytes of the byte
            ring, the laps made, how it is stored to and which part is filled first, and the microseconds of a lap with
            each value of these.

        Notes
        -----
        Not collective; costs nothing to the calls. ``docs/metrics.md`` has all names with their units. They are
        stable: a minor version may add some, and none changes its meaning.
        """
        return self._engine.stats() | {"pair_queues": self.messages.stats()}

    def explain(self, collective, nbytes, op="sum", root=0, dtype="float32"):
        """Explain which algorithms a collective takes and tries, and the bytes and synchronisations of each.

        Parameters
        ----------
        collective : str
            The name of the method, e.g. ``"all_reduce"``; any collective on arrays that has schedules.
        nbytes : int
            Bytes of the array ``x`` that the method takes.
        op : str
            The name of the operation.
        root : int, default 0
            For methods with a root.
        dtype : str
            Operation and dtype matter if the ranks are in several locality domains: between domains, partial sums of
            16-bit floats are float32.

        Returns
        -------
        str
            A line for each algorithm on private arrays: whether it is taken or tried, its dependent synchronisations,
            its rounds, and the bytes that this rank loads and stores.

        Raises
        ------
        TypeError, ValueError
            Unknown collective, root, operation or dtype, or ``nbytes`` is negative or not a multiple of the
            number of blocks.

        Notes
        -----
        Not collective, and nothing is sent. ``comm.stats()["programs"]`` shows what a call of this size does now.
        """
        return _explain.explain(self, collective, nbytes, root, op, dtype)

    def trace(self, directory, *, calls=TRACED_CALLS):
        """Record each further call of this rank in a file, for ``shmring trace``.

        Parameters
        ----------
        directory : path
            The folder of the file, which has a name of its own; all ranks may use the same one. Created if necessary.
        calls : int
            The most calls in the file, at 192 bytes each; the oldest are overwritten. Its size never changes.

        Returns
        -------
        Timeline
            To stop it, or to use in a ``with`` block. It stops a timeline that was under way here.

        Raises
        ------
        ValueError
            ``calls`` is out of range.
        ClosedError
            The communicator is closed.
        OSError
            The file cannot be made.

        Notes
        -----
        Not collective: ranks may start and stop at any time, and a call is in the summary of ``shmring trace`` if all
        ranks have recorded it. Does not block. The environment variable ``SHMRING_TRACE`` records the calls of every
        communicator. Recording reads the clock twice in each call; without it each call tests one pointer.

        Examples
        --------
        >>> with comm.trace("timelines"):  # doctest: +SKIP
        ...     comm.all_reduce(x)
        """
        return _tracing.trace(self, directory, calls)


for name, hint in HINTS.items():
    set_type_attribute(Communicator, name, hint)
