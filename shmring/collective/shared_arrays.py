"""Arrays in shared memory: of each rank one that all ranks map, or one that is everybody's.

Making them is a collective. Each rank creates its segment under a name, all tell each other how that went, all attach,
all tell each other how *that* went, and the names go. So either every rank has the arrays or every rank has the same
error, and the communicator stays usable; and from then on the kernel alone decides when the memory goes: with the last
mapping. What collectives make of such arrays is decided in `shmring.collective.zero_copy`.
"""

from __future__ import annotations

import math
import operator
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from shmring.collective.zero_copy import Sharing
from shmring.errors import BrokenError, OutOfSharedMemoryError, PeerLostError, SegmentError, ShmringError
from shmring.memory import names
from shmring.memory.segment import ARRAY, HEADER_NBYTES, Segment, attach, create, segment_name
from shmring.memory.sweep import DEATH_GRACE_S
from shmring.placement.numa_policy import in_slices, place_by
from shmring.placement.topology import shmem_huge_pages
from shmring.plan.pipeline import even

FINE, NO_ROOM, REFUSED = range(3)


class Account(NamedTuple):
    """How one station of an allocation went on one rank: what the ranks tell each other."""

    status: int
    nonce: bytes  # of the segment it made, zeros if none
    needed: int
    available: int
    what: str  # the array it asked for, or why it failed

    def pack(self) -> np.ndarray:
        """As bytes of the same number on all ranks."""
        return np.frombuffer(_ACCOUNT.pack(*self[:-1], self.what.encode()[:_TEXT_NBYTES]), np.uint8)

    @classmethod
    def unpack(cls, data: np.ndarray) -> Account:
        """The inverse of `pack`."""
        status, nonce, needed, available, text = _ACCOUNT.unpack(data.tobytes())
        return cls(status, nonce, needed, available, text.rstrip(b"\0").decode(errors="replace"))


_TEXT_NBYTES = 200
_ACCOUNT = struct.Struct(f"=q16sqq{_TEXT_NBYTES}s")


class SharedArrayCalls:
    """The calls of `shmring.Communicator` that make arrays in shared memory and look at those of others."""

    rank: int
    size: int
    engine: Any
    all_gather: Callable
    abort: Callable
    barrier: Callable

    def empty(self, shape, dtype=float) -> np.ndarray:
        """Make an array in shared memory on every rank, each its own, that collectives need not stage.

        Parameters
        ----------
        shape : int or tuple of int
            Equal on all ranks.
        dtype : dtype, default float
            Anything that `numpy.dtype` takes, but for Python objects. Equal on all ranks.

        Returns
        -------
        ndarray
            This rank's array, C-contiguous, on a page of its own. What it holds is not defined.

        Raises
        ------
        TypeError, ValueError
            A bad argument: nothing was sent. Or the ranks asked for different arrays: then all of them get the error.
        OutOfSharedMemoryError, SegmentError
            One rank could not make or map the memory; all ranks raise this, and the message says which. Nothing is
            left of the attempt.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`; the communicator is broken.

        Notes
        -----
        Collective; some hundred microseconds and more for large arrays, whose pages are faulted in at once. Takes
        ``size`` times the array of shared memory in all, until no rank has a view of its own array left, nor one of a
        peer's. It is an ordinary ndarray, also to torch (``torch.from_numpy``). After the communicator is closed it
        stays as it is. ``docs/shared-arrays.md`` tells which collectives gain what.
        """
        return _array(self._allocate(*_described(shape, dtype), None), self.rank, shape, dtype)

    def zeros(self, shape, dtype=float) -> np.ndarray:
        """Make an array in shared memory on every rank as `empty` does, filled with zeros.

        Parameters
        ----------
        shape, dtype
            As in `empty`.

        Returns
        -------
        ndarray
            This rank's array.

        Raises
        ------
        TypeError, ValueError, OutOfSharedMemoryError, SegmentError
            As in `empty`.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `empty`.

        Notes
        -----
        Collective. Fresh memory is zero, so it costs nothing more than `empty`.
        """
        return self.empty(shape, dtype)

    def array(self, x) -> np.ndarray:
        """Make an array in shared memory on every rank as `empty` does, and copy ``x`` into it.

        Parameters
        ----------
        x : array_like
            Equal shape and element type on all ranks.

        Returns
        -------
        ndarray
            This rank's array.

        Raises
        ------
        TypeError, ValueError, OutOfSharedMemoryError, SegmentError
            As in `empty`.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `empty`.

        Notes
        -----
        Collective.
        """
        content = np.asarray(x)
        made = self.empty(content.shape, content.dtype)
        made[...] = content
        return made

    def shared_result(self, shape, dtype=float, *, root=0) -> np.ndarray:
        """Make one array in shared memory that is every rank's: the ``out`` of reductions whose result all only read.

        Parameters
        ----------
        shape, dtype
            As in `empty`.
        root : int
            The rank that makes the memory. Each rank's slice of it lies on that rank's NUMA node.

        Returns
        -------
        ndarray
            The same memory on all ranks.

        Raises
        ------
        TypeError, ValueError, OutOfSharedMemoryError, SegmentError
            As in `empty`.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `empty`.

        Notes
        -----
        Collective. ``comm.all_reduce(x, result)`` then touches (size + 1) * x.nbytes bytes if ``x`` is a shared array
        everywhere, and ``comm.all_gather(x, result)`` 2 * size * x.nbytes whatever ``x`` is. A result may be read until
        this rank's next collective that writes it: none begins to before all ranks are in it. Only collectives which
        give the same result to all ranks may write it, and `reduce` and `gather`; `all_reduce` refuses to work in
        place on it.
        """
        root = operator.index(root)
        if not 0 <= root < self.size:
            raise ValueError(f"root={root}: must be a rank, from 0 to {self.size - 1}")
        return _array(self._allocate(*_described(shape, dtype), root), self.rank, shape, dtype)

    def shared_view(self, array, rank) -> np.ndarray:
        """Look at a peer's array, or the part of it that corresponds to a part of one's own.

        Parameters
        ----------
        array : ndarray
            One that `empty`, `zeros`, `array` or `shared_result` of this communicator returned, or any view of it.
        rank : int
            Whose.

        Returns
        -------
        ndarray
            Of the same shape, dtype and strides as ``array``, over the memory of that rank. Writable if ``array`` is.

        Raises
        ------
        TypeError, ValueError
            Not such an array, or not a rank.

        Notes
        -----
        Not collective, sends nothing, does not block. Nothing orders what ranks do to such a view: put a
        `barrier`, or any collective that both are in, between one rank's writing and another's reading.
        """
        rank = operator.index(rank)
        if not 0 <= rank < self.size:
            raise ValueError(f"rank={rank}: must be a rank, from 0 to {self.size - 1}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{type(array).__name__} is not an ndarray; pass np.asarray(x) where that makes no copy")
        found = self.engine.sharing and self.engine.sharing.directory.locate(array.ctypes.data)
        if not found:
            raise ValueError("this array does not lie in a shared array of this communicator; see Communicator.empty")
        allocation, _, offset = found
        view: np.ndarray = np.ndarray(array.shape, array.dtype, allocation.area(rank), offset, array.strides)
        view.flags.writeable = array.flags.writeable
        return view

    # ---- how it is made ----

    def _allocate(self, nbytes: int, what: str, root: int | None):
        """Make one allocation of ``nbytes`` a segment: one of each rank, or of ``root`` alone. Collective."""
        engine = self.engine
        sharing = engine.sharing or Sharing(self.size)
        # Known to the ranks of this very communicator only: whatever others allocate at the same time has other names.
        session = f"{engine.name}/array{sharing.nallocations + 1}.{engine.nonce}"
        makers = range(self.size) if root is None else [root]
        segments: dict[int, Segment] = {}
        what += "" if root is None else f", one result, root={root}"
        try:
            own, failure = self._make(session, nbytes, root is not None) if self.rank in makers else (None, None)
            if own is not None:
                segments[self.rank] = own
            accounts = self._account(failure, what, b"" if own is None else own.header.nonce)
            _check_accounts(accounts, failure)
            failure = _attach_others(segments, session, {r: accounts[r].nonce for r in makers}, nbytes)
            _check_accounts(self._account(failure, what), failure)
            for segment in segments.values():  # all have attached, so nobody looks for a name any more
                with suppress(SegmentError):  # one that stays goes with its creator; the arrays are there on all ranks
                    segment.unlink()
            allocation = sharing.enlist([segments[r] for r in makers], max(nbytes, 1))
        except BaseException as caught:
            error = self._with_its_cause(caught)
            for segment in segments.values():
                segment.close()
            if isinstance(error, BrokenError):
                _clear_names(session, makers, error)
            elif not isinstance(error, Exception):  # Ctrl-C between two talks: the others wait for us
                self.abort(f"{type(error).__name__} while making a shared array")
            if error is not caught:
                raise error from None
            raise
        engine.sharing = sharing
        return allocation

    def _with_its_cause(self, error: BaseException) -> BaseException:
        """The error of a death where that is what a refusal comes from: a name whose owner has just died is stale.

        Of a refusal all ranks have heard, and what made it refuse they see, too: so all come here and go on alike.
        """
        if isinstance(error, SegmentError) and set(self.engine.gone_ranks()) - set(self.engine.left_ranks()):
            try:
                self.barrier()
            except BrokenError as broken:
                return broken
        return error

    def _make(self, session: str, nbytes: int, is_result: bool) -> tuple[Segment | None, ShmringError | None]:
        name = segment_name(session, f"r{self.rank}")
        place = place_by(self.engine.config.placement)
        if is_result:
            bounds = [HEADER_NBYTES + bound for bound in even(nbytes, self.size)]
            place = in_slices(place, bounds, self.engine.thresholds.homes)
        try:
            own = create(
                name,
                HEADER_NBYTES + max(nbytes, 1),
                kind=ARRAY,
                rank=self.rank,
                size=self.size,
                place=place,
                huge=self.engine.config.wants_huge_pages(shmem_huge_pages()),
            )
        except ShmringError as error:
            return None, error
        own.announce()
        return own, None

    def _account(self, failure: ShmringError | None, what: str, nonce: bytes = b"") -> list[Account]:
        """Tell all ranks how this one fares, and hear of theirs."""
        own = Account(FINE, nonce, 0, 0, what)
        if isinstance(failure, OutOfSharedMemoryError):
            own = Account(NO_ROOM, nonce, failure.needed, failure.available, str(failure))
        elif failure is not None:
            own = Account(REFUSED, nonce, 0, 0, str(failure))
        return [Account.unpack(data) for data in self.all_gather(own.pack())]


def _described(shape, dtype) -> tuple[int, str]:
    """Bytes of an array, and what peers compare and messages call it."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds references to Python objects, which no other process can follow")
    shape = _shape(shape)
    return math.prod(shape) * dtype.itemsize, f"{dtype.str if dtype.isbuiltin else dtype.name} {shape}"


def _shape(shape) -> tuple[int, ...]:
    extents = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    if any(n < 0 for n in extents):
        raise ValueError(f"shape {extents} has a negative extent")
    return extents


def _array(allocation, rank: int, shape, dtype) -> np.ndarray:
    return np.ndarray(_shape(shape), dtype, allocation.area(rank))


def _attach_others(segments: dict[int, Segment], session: str, nonces: dict[int, bytes], nbytes: int):
    """Attach what the others made; the error if that fails. The own page tables are filled now, not in a collective."""
    try:
        for r, nonce in nonces.items():
            if r in segments:
                continue
            segment = attach(segment_name(session, f"r{r}"), kind=ARRAY, rank=r)
            segments[r] = segment
            if segment.header.nonce != nonce or segment.nbytes != HEADER_NBYTES + max(nbytes, 1):
                raise SegmentError(f"{segment.name} is not the segment that rank {r} made a moment ago")
            segment.mapping.prefault(write=False)
    except ShmringError as error:
        return error
    return None


def _check_accounts(accounts: list[Account], failure: ShmringError | None) -> None:
    """Raise on every rank if one of them failed, or if they do not want the same."""
    failed = [(r, a) for r, a in enumerate(accounts) if a.status != FINE]
    if failure is not None:
        raise failure
    for r, account in failed:
        text = f"no rank has the shared array, because rank {r} failed: {account.what}"
        if account.status == NO_ROOM:
            raise OutOfSharedMemoryError(text, account.needed, account.available)
        raise SegmentError(text)
    if len({account.what for account in accounts}) > 1:
        wanted = "; ".join(f"rank {r}: {account.what}" for r, account in enumerate(accounts))
        raise ValueError(f"the ranks ask for different shared arrays: {wanted}")


def _clear_names(session: str, makers, error: BrokenError) -> None:
    """Take away the names that dead ranks have left; those of living ones are their affair."""
    for r in makers:
        name = segment_name(session, f"r{r}")
        deadline = time.monotonic() + (DEATH_GRACE_S if isinstance(error, PeerLostError) and r == error.rank else 0)
        with suppress(ShmringError, OSError):
            while _stands(name) and not names.remove_stale(name) and time.monotonic() < deadline:
                time.sleep(0.001)


def _stands(name: str) -> bool:
    with names.opened(name) as fd:
        return fd is not None
