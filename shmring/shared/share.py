"""Private arrays become shared memory where they lie, and private again.

The whole pages inside an array are replaced by those of a segment, at the same address (`shmring.shared.moved_pages`).
All ranks first exchange whether each of them can, so either all arrays are moved or none. Making one private again is
local. How collectives then use it is decided in `shmring.shared.zero_copy`.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from mmap import PAGESIZE
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from shmring.arrays.array_view import memory_of
from shmring.base.unraisable import report_unraisable
from shmring.engine.engine import Engine
from shmring.errors import ShmringError
from shmring.memory.header import HEADER_NBYTES
from shmring.memory.mapping import Mapping
from shmring.memory.segment import Segment
from shmring.placement.numa import lay_like
from shmring.placement.numa_policy import place_by
from shmring.shared.movable import Properties, examine, whole_pages
from shmring.shared.moved_pages import MovedPages
from shmring.shared.registry import MovedArray, make_private
from shmring.shared.shared_arrays import check_outcomes, exchange_outcome, make_segments
from shmring.shared.zero_copy import Sharing

# Smaller arrays stay private: the ranks that agree on a zero-copy call gain nothing from it. With larger pages, they
# would have none or few whole ones.
LEAST_NBYTES = max(32768, 4 * PAGESIZE)
_FIRST_PAGE = -(-HEADER_NBYTES // PAGESIZE) * PAGESIZE


class Part(NamedTuple):
    """One array of a call, as this rank has it."""

    address: int
    nbytes: int
    what: str  # equal on all ranks
    owner: object  # keeps the memory
    inner: tuple[int, int]  # bounds of its whole pages
    kept: Properties | None  # of these; None if they stay private

    @property
    def shift(self) -> int:
        """Where it begins in a page."""
        return self.address % PAGESIZE


class Shared:
    """Arrays in memory that is shared until `close`. Made by `shmring.Communicator.share`; a context manager.

    Keeps the arrays alive. Without a reference to it they become private again, with a `ResourceWarning`. Not tied to
    the life of the communicator.
    """

    _closed = True  # until it is made

    def __init__(self, engine: Engine, arrays: tuple, moved: list[MovedArray]) -> None:
        if not (isinstance(engine, Engine) and isinstance(arrays, tuple) and isinstance(moved, list)
                and all(isinstance(one, MovedArray) for one in moved)):  # fmt: skip
            raise TypeError(f"Shared({engine!r}, ...): made by Communicator.share")
        self._arrays = arrays
        self._engine = weakref.ref(engine)
        self._moved = moved
        self._closed = False
        _open.add(self)

    @property
    def arrays(self) -> tuple:
        """The arrays as they were passed; empty after `close`."""
        return self._arrays

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or, by a fork, for this child."""
        return self._closed

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's arrays that are shared now: those of whole pages; 0 where all stay private."""
        return sum(array.nbytes for array in self._moved)

    def close(self) -> None:
        """Make the memory private again, with its present content, at the same address. Idempotent.

        Raises
        ------
        OutOfSharedMemoryError
            The kernel refuses the private memory; what is shared stays so, and the call can be repeated.
        SegmentError
            An array was resized or freed meanwhile; nothing was written there, and the others are private.
        OSError
            ``/proc/self/maps`` cannot be read; what is shared stays so, and the call can be repeated.

        Notes
        -----
        Not collective; ranks may close in any order, before or after the communicator; any thread. Waits for calls of
        other threads and for asynchronous work submitted before. Later calls on the arrays are staged on all ranks.
        Takes the time of a copy. The shared memory is freed once all ranks have closed.
        """
        engine = self._engine()
        if self._closed:
            return
        if engine is None or not self._moved:
            self._make_private()
        else:
            engine.alone(self._make_private)

    def _make_private(self) -> None:
        try:
            make_private(self._moved)
        except Exception:
            if not self.nbytes:
                self._release()
            raise
        self._release()

    def _release(self) -> None:
        self._moved = []
        self._arrays = ()
        self._closed = True
        _open.discard(self)

    def _undo(self) -> None:
        """Make the memory private where it is certain that it was not freed: in `share`, and in a forked child."""
        for array in self._moved:
            array.restore(True)
        self._release()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._closed:
            return
        if self._moved:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
        engine = self._engine()
        try:
            if engine is None or not self._moved:
                self._make_private()
            elif not engine.alone(self._make_private, waits=False):  # any thread may get here, at any time
                engine.sharing.release_later(self._moved)
        except Exception as error:
            _never_freed.extend(self._moved)  # an allocator would use the shared memory for something else
            report_unraisable(error, self)

    def __reduce__(self) -> tuple:
        raise TypeError("memory is shared by this process, and cannot be pickled; pickle the arrays")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.nbytes} bytes of {len(self.arrays)} arrays"
        return f"<shmring Shared, {state}>"


_open: weakref.WeakSet[Shared] = weakref.WeakSet()
_never_freed: list[MovedArray] = []


def share(comm: Any, arrays: tuple) -> Shared:
    """See `Communicator.share`."""
    engine = comm.engine
    engine.check_usable()
    moved: list[MovedArray] = []
    shared = Shared(engine, arrays, moved)
    try:
        parts, failure = _parts_of(arrays, comm.size)
        what = _described(parts)
        outcomes = exchange_outcome(comm, failure, what)
        check_outcomes(outcomes, failure)
        for r, outcome in enumerate(outcomes):
            if outcome.what != outcomes[0].what:
                engine.disagree(r, 0, f"rank 0 shares {outcomes[0].what}; rank {r} shares {outcome.what}")
        moving = [part for part in parts if part.kept is not None]
        if moving:
            _move(comm, moving, what, moved)
    except BaseException as error:
        shared._undo()
        if not isinstance(error, Exception):  # Ctrl-C between two collectives: the others wait for this rank
            comm.abort(f"{type(error).__name__} while sharing an array")
        raise
    return shared


def _move(comm: Any, parts: list[Part], what: str, moved: list[MovedArray]) -> None:
    """Move the arrays, which are as many on all ranks, into segments, and append them to ``moved``."""
    engine = comm.engine
    extents = [-(-part.nbytes // PAGESIZE) * PAGESIZE + PAGESIZE for part in parts]
    places = [_FIRST_PAGE + sum(extents[:i]) for i in range(len(parts) + 1)]  # in a segment, as pages
    shifts = comm.all_gather(np.array([part.shift for part in parts], np.int64))
    fallback = place_by(engine.config.placement)
    pages: list[MovedPages] = []

    def place(mapping: Mapping, offset: int, nbytes: int) -> None:
        for part, at, extent in zip(parts, places, extents, strict=False):
            if not lay_like(mapping, at, extent, part.inner[0]) and fallback is not None:
                fallback(mapping, at, extent)

    def prepare(segment: Segment) -> None:
        for part, at in zip(parts, places, strict=False):
            start, end = part.inner
            assert part.kept is not None
            at += start - part.address + part.shift
            pages.append(MovedPages(segment.mapping, at, start, end - start, *part.kept))

    sharing = engine.sharing or Sharing(comm.size)
    nbytes = places[-1] - HEADER_NBYTES
    segments = make_segments(comm, sharing, nbytes, what, range(comm.size), place, prepare)
    allocations = [
        sharing.add_allocation(segments, part.nbytes, (shifts[:, i] + (places[i] - HEADER_NBYTES)).tolist())
        for i, part in enumerate(parts)
    ]
    engine.sharing = sharing
    failure = None
    try:
        for part, allocation, each in zip(parts, allocations, pages, strict=True):
            moved.append(MovedArray(allocation, comm.rank, each, part.address, part.inner, part.owner))
            each.move()
    except ShmringError as error:
        failure = error
    check_outcomes(exchange_outcome(comm, failure, what), failure)


def _parts_of(arrays: Sequence, size: int) -> tuple[list[Part], Exception | None]:
    """The arrays of a call, or the error about one of them."""
    try:
        parts = [_part(x) for x in arrays]
        large = [i for i, part in enumerate(parts) if size > 1 and part.nbytes >= LEAST_NBYTES]
        bounds = sorted(parts[i].inner for i in large)
        for (_, end), (start, _) in pairwise(bounds):
            if start < end:
                raise ValueError(f"two of the arrays overlap at {start:#x}")
        for i, properties in zip(large, examine([parts[i].inner for i in large]), strict=True):
            parts[i] = parts[i]._replace(kept=properties)
        return parts, None
    except Exception as error:
        return [], error


def _part(x: object) -> Part:
    address, nbytes, dtype, count, owner = memory_of(x)
    _check_kept(x)
    # A tensor can be given another storage, which would free this one.
    storage = x.untyped_storage() if hasattr(x, "untyped_storage") else None
    return Part(address, nbytes, f"{count} {dtype}", (x, owner, storage), whole_pages(address, nbytes), None)


def _check_kept(x: object) -> None:
    """Raise if the memory of ``x`` may be freed while the object exists."""
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    if isinstance(x, np.ndarray) and not x.flags.owndata:
        raise ValueError("the array neither owns its memory nor refers to its owner, so that may be freed at any time")


def _described(parts: list[Part]) -> str:
    text = ", ".join(part.what for part in parts)
    if len(text) <= 80:
        return text or "nothing"
    nbytes = sum(part.nbytes for part in parts)
    return f"{len(parts)} arrays of {nbytes} bytes together, {sha256(text.encode()).hexdigest()[:16]}"


# ---- fork: the child gets private memory with the content at that time, as it would have without `share` -------------

_pipes: dict[int, tuple[int, int]] = {}  # by thread: of the fork under way; its child closes both ends when it is done


def _before_fork() -> None:
    if any(shared.nbytes for shared in list(_open)):
        _pipes[get_ident()] = os.pipe()


def _after_fork_in_child() -> None:
    try:
        for shared in list(_open):
            shared._undo()
    finally:
        for ends in _pipes.values():  # those of other threads, too
            for fd in ends:
                os.close(fd)
        _pipes.clear()


def _after_fork_in_parent() -> None:
    reader, writer = _pipes.pop(get_ident(), (-1, -1))
    if reader >= 0:
        os.close(writer)
        os.read(reader, 1)  # returns when the child has closed its end, or is dead
        os.close(reader)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)
