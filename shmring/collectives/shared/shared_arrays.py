"""Arrays in shared memory: one of each rank that all ranks map, or one for all ranks.

Making them is a collective. Each rank creates its segment under a name, all ranks exchange the outcome, all attach the
others' segments, all exchange the outcome again, and the names are unlinked. So either every rank has the arrays, or
every rank raises the same error and the communicator stays usable. From then on the kernel frees the memory with its
last mapping. How collectives use such arrays is decided in `shmring.collectives.shared.zero_copy`.
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

from shmring.collectives.plan.pipeline import even
from shmring.collectives.shared.zero_copy import Sharing
from shmring.core.arrays.refusals import refuse_masked
from shmring.core.base.arguments import checked_rank
from shmring.core.base.interrupts import is_interrupt
from shmring.core.base.pace import Pace
from shmring.core.memory import names
from shmring.core.memory.segment import ARRAY, HEADER_NBYTES, Place, Segment, attach, create, segment_name
from shmring.core.memory.sweep import EXIT_GRACE_S
from shmring.core.placement.numa_policy import in_slices, place_by
from shmring.core.placement.topology import shmem_huge_pages
from shmring.errors import (
    BrokenError,
    ClosedError,
    OutOfSharedMemoryError,
    PeerLostError,
    SegmentError,
    ShmringError,
)

SUCCEEDED, NO_MEMORY, FAILED, REFUSED = range(4)
MOST_NBYTES = 1 << 62  # what a file offset can say, with room for headers and rounding


class StepOutcome(NamedTuple):
    """The outcome of one step of an allocation on one rank, which the ranks exchange."""

    status: int
    nonce: bytes  # of the segment that the rank created, zeros if none
    needed: int
    available: int
    what: str  # the array that the rank requested, or the error text

    def pack(self) -> np.ndarray:
        """As bytes of the same number on all ranks."""
        return np.frombuffer(_OUTCOME.pack(*self[:-1], self.what.encode()[:_TEXT_NBYTES]), np.uint8)

    @classmethod
    def unpack(cls, data: np.ndarray) -> StepOutcome:
        """The inverse of `pack`."""
        status, nonce, needed, available, text = _OUTCOME.unpack(data.tobytes())
        return cls(status, nonce, needed, available, text.rstrip(b"\0").decode(errors="replace"))


_TEXT_NBYTES = 200
_OUTCOME = struct.Struct(f"=q16sqq{_TEXT_NBYTES}s")


def empty(comm: Any, shape, dtype) -> np.ndarray:
    """See `Communicator.empty`."""
    return _array(_allocate(comm, *_described(shape, dtype), None), comm.rank, shape, dtype)


def array(comm: Any, x) -> np.ndarray:
    """See `Communicator.array`."""
    refuse_masked(x)
    content = np.asarray(x)
    made = empty(comm, content.shape, content.dtype)
    made[...] = content
    return made


def shared_result(comm: Any, shape, dtype, root: int) -> np.ndarray:
    """See `Communicator.shared_result`."""
    root = checked_rank(root, comm.size, "root")
    return _array(_allocate(comm, *_described(shape, dtype), root), comm.rank, shape, dtype)


def shared_view(comm: Any, array, rank: int) -> np.ndarray:
    """See `Communicator.shared_view`."""
    rank = checked_rank(rank, comm.size, "rank")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} is not an ndarray; pass np.asarray(x) where that makes no copy")
    refuse_masked(array)
    found = comm._engine.sharing and comm._engine.sharing.registry.locate(array.ctypes.data)
    if not found:
        raise ValueError("this array does not lie in a shared array of this communicator; see Communicator.empty")
    allocation, _, offset = found
    view: np.ndarray = np.ndarray(array.shape, array.dtype, allocation.area(rank), offset, array.strides)
    view.flags.writeable = array.flags.writeable
    return view


# ---- allocation ------------------------------------------------------------------------------------------------------


def _allocate(comm: Any, nbytes: int, what: str, root: int | None):
    """Make one allocation of ``nbytes`` a segment: one of each rank, or of ``root`` alone. Collective."""
    engine = comm._engine
    engine.check_usable()  # before a segment is made
    place = place_by(engine.config.placement)
    makers = range(comm.size)
    if root is not None:
        makers, what = range(root, root + 1), f"{what}, one result, root={root}"
        bounds = [HEADER_NBYTES + bound for bound in even(nbytes, comm.size)]
        place = in_slices(place, bounds, engine.thresholds.homes)
    sharing = engine.sharing or Sharing(comm.size)
    segments = make_segments(comm, sharing, max(nbytes, 1), what, makers, place)
    allocation = sharing.add_allocation(segments, max(nbytes, 1))
    engine.sharing = sharing
    return allocation


def make_segments(
    comm: Any,
    sharing: Sharing,
    nbytes: int,
    what: str,
    makers: range,
    place: Place | None,
    prepare: Callable[[Segment], None] | None = None,
) -> list[Segment]:
    """Make a segment with ``nbytes`` of data on each of the ranks ``makers``, and map all of them. Collective.

    ``what`` describes it, alike on all ranks. ``prepare`` is called with the own segment when all are mapped; if it
    raises one of our errors, no rank has any segment.
    """
    engine = comm._engine
    # Only the ranks of this communicator know it: what others allocate at the same time has other names.
    session = f"{engine.name}/array{sharing.nallocations + 1}.{engine.nonce}"
    segments: dict[int, Segment] = {}
    try:
        own, failure = _make(comm, session, nbytes, place) if comm.rank in makers else (None, None)
        if own is not None:
            segments[comm.rank] = own
        outcomes = exchange_outcome(comm, failure, what, b"" if own is None else own.header.nonce)
        check_outcomes(outcomes, failure)
        _check_requests(outcomes)
        failure = _attach_others(segments, session, {r: outcomes[r].nonce for r in makers}, nbytes)
        if failure is None and prepare is not None:
            failure = _outcome_of(prepare, own)
        check_outcomes(exchange_outcome(comm, failure, what), failure)
        for segment in segments.values():  # all ranks have attached, so the names are not needed any more
            with suppress(SegmentError):  # left over until its creator ends; the arrays exist on all ranks
                segment.unlink()
        return [segments[r] for r in makers]
    except BaseException as caught:
        abort_if_interrupted(comm, caught, "making a shared array")  # before the name goes
        error = _failure_behind(comm, caught)
        for segment in segments.values():
            segment.close()
        if isinstance(error, BrokenError):
            _clear_names(session, makers, error)
        if error is not caught:
            raise error from None
        raise


def abort_if_interrupted(comm: Any, error: BaseException, doing: str) -> None:
    """End the communicator for all ranks if they do not all raise ``error``: they would wait for this one."""
    if is_interrupt(error) or not isinstance(error, Exception):
        with suppress(ClosedError):
            comm.abort(f"{type(error).__name__} while {doing}")


def _failure_behind(comm: Any, error: BaseException) -> BaseException:
    """The error of a rank's failure, if that caused ``error``: the name of a rank that has just died is stale, and one
    that aborts takes its name away.

    All ranks have exchanged ``error`` and all see the failure, so either all of them call the barrier or none.
    """
    engine = comm._engine
    if isinstance(error, SegmentError) and (engine.is_broken or set(engine.gone_ranks()) - set(engine.left_ranks())):
        try:
            comm.barrier()
        except BrokenError as broken:
            return broken
    return error


def _make(comm: Any, session: str, nbytes: int, place: Place | None) -> tuple[Segment | None, ShmringError | None]:
    own: Segment | None = None
    try:
        own = create(
            segment_name(session, f"r{comm.rank}"),
            HEADER_NBYTES + nbytes,
            kind=ARRAY,
            rank=comm.rank,
            size=comm.size,
            place=place,
            huge=comm._engine.config.wants_huge_pages(shmem_huge_pages()),
        )
        own.announce()
    except ShmringError as error:
        return None, error
    except BaseException:
        if own is not None:
            own.close()
        raise
    return own, None


def exchange_outcome(comm: Any, failure: Exception | None, what: str, nonce: bytes = b"") -> list[StepOutcome]:
    """Exchange the outcome of a step on this rank with all ranks."""
    own = StepOutcome(SUCCEEDED, nonce, 0, 0, what)
    if isinstance(failure, OutOfSharedMemoryError):
        own = StepOutcome(NO_MEMORY, nonce, failure.needed, failure.available, str(failure))
    elif failure is not None:
        text = str(failure) or type(failure).__name__  # a MemoryError has no text
        own = StepOutcome(FAILED if isinstance(failure, ShmringError) else REFUSED, nonce, 0, 0, text)
    return [StepOutcome.unpack(data) for data in comm.all_gather(own.pack())]


def _described(shape, dtype) -> tuple[int, str]:
    """Bytes of an array, and its description, which peers compare and messages show."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds references to Python objects, which are valid in one process only")
    shape = _shape(shape)
    np.empty((0,) * len(shape), dtype)  # raises for more dimensions than NumPy has, on every rank alike
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize > MOST_NBYTES:
        raise ValueError(f"shape {shape} of {dtype}: a shared array has at most {MOST_NBYTES} bytes")
    return math.prod(shape) * dtype.itemsize, f"{dtype.str if dtype.isbuiltin else dtype.name} {shape}"


def _shape(shape) -> tuple[int, ...]:
    extents = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    if any(n < 0 for n in extents):
        raise ValueError(f"shape {extents} has a negative extent")
    return extents


def _array(allocation, rank: int, shape, dtype) -> np.ndarray:
    return np.ndarray(_shape(shape), dtype, allocation.area(rank))


def _attach_others(segments: dict[int, Segment], session: str, nonces: dict[int, bytes], nbytes: int):
    """Attach the segments of the others; the error if that fails. Fills the page tables now, not in a collective."""
    try:
        for r, nonce in nonces.items():
            if r in segments:
                continue
            segment = attach(segment_name(session, f"r{r}"), kind=ARRAY, rank=r)
            segments[r] = segment
            if segment.header.nonce != nonce or segment.nbytes != HEADER_NBYTES + nbytes:
                raise SegmentError(f"{segment.name} is not the segment that rank {r} has just created")
            segment.mapping.prefault(write=False)
    except ShmringError as error:
        return error
    return None


def _outcome_of(function: Callable[[Segment], None], segment: Segment | None) -> ShmringError | None:
    """The error of ours that ``function(segment)`` raises."""
    assert segment is not None
    try:
        function(segment)
    except ShmringError as error:
        return error
    return None


def check_outcomes(outcomes: list[StepOutcome], failure: Exception | None) -> None:
    """Raise on every rank if one of them failed."""
    failed = [(r, a) for r, a in enumerate(outcomes) if a.status != SUCCEEDED]
    if failure is not None:
        raise failure
    for r, outcome in failed:
        text = f"no rank has the shared array, because rank {r} failed: {outcome.what}"
        if outcome.status == NO_MEMORY:
            raise OutOfSharedMemoryError(text, outcome.needed, outcome.available)
        if outcome.status == REFUSED:
            raise ValueError(text)
        raise SegmentError(text)


def _check_requests(outcomes: list[StepOutcome]) -> None:
    """Raise on every rank if their requests differ."""
    if len({outcome.what for outcome in outcomes}) > 1:
        wanted = "; ".join(f"rank {r}: {outcome.what}" for r, outcome in enumerate(outcomes))
        raise ValueError(f"the ranks requested different shared arrays: {wanted}")


def _clear_names(session: str, makers, error: BrokenError) -> None:
    """Unlink the names that dead ranks have left; live ranks unlink their own."""
    for r in makers:
        name = segment_name(session, f"r{r}")
        deadline = time.monotonic() + (EXIT_GRACE_S if isinstance(error, PeerLostError) and r == error.rank else 0)
        pace = Pace()
        with suppress(ShmringError, OSError):
            while _exists(name) and not names.remove_stale(name) and time.monotonic() < deadline:
                pace.pause()


def _exists(name: str) -> bool:
    with names.opened(name) as fd:
        return fd is not None
