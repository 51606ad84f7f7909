"""Private arrays become shared memory where they lie, and private again.

The whole pages inside an array are replaced by those of a segment, at the same address
(`shmring.collectives.shared.moved`). All ranks first exchange whether each of them can, so either all arrays are moved
or none. Making one private again is local. How collectives then use it is decided in
`shmring.collectives.shared.zero_copy`.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from mmap import PAGESIZE
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from shmring.collectives.engine.engine import Engine
from shmring.collectives.shared.movable import Properties, examine, mapped_files, whole_pages
from shmring.collectives.shared.moved import (
    MovedArray,
    MovedPages,
    claim,
    disclaim,
    make_private,
    make_private_in_child,
    make_shared,
    turn,
)
from shmring.collectives.shared.shared_arrays import (
    abort_if_interrupted,
    check_outcomes,
    exchange_outcome,
    make_segments,
)
from shmring.collectives.shared.zero_copy import Sharing
from shmring.core.arrays.array_view import memory_of
from shmring.core.memory.descriptor import above_standard
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.mapping import Mapping
from shmring.core.memory.segment import Segment
from shmring.core.placement.numa import lay_like
from shmring.core.placement.numa_policy import place_by
from shmring.errors import SegmentError, ShmringError

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


class Memory:
    """The arrays of one call, until they are private again: the handle's, and kept here if that is dropped."""

    def __init__(self, engine: Engine, arrays: tuple) -> None:
        self.engine = weakref.ref(engine)
        self.arrays = arrays
        self.claims: list[tuple[int, int]] = []
        self.moved: list[MovedArray] = []
        self.closed = False
        _open.add(self)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.moved)

    def close(self) -> None:
        """See `Shared.close`."""
        todo = [array for array in self.moved if array.nbytes]
        files = iter(mapped_files([bounds for array in todo for bounds in array.bounds]))
        mapped = [here == there for here, there in zip(files, files, strict=True)]
        lost = [array for array, is_mapped in zip(todo, mapped, strict=True) if not is_mapped or has_left(array.owner)]
        own = make_private(todo, mapped)
        self.release()
        lost = [array for array in lost if array in own]
        if lost:
            where = ", ".join("{:#x}-{:#x}".format(*array.bounds[0]) for array in lost)
            raise SegmentError(
                f"an array was resized or freed while it was shared: that at {where}; if other memory "
                "is there now, it was left as it is"
            )

    def release(self) -> None:
        disclaim(self.claims)
        self.moved, self.arrays, self.closed = [], (), True
        _open.discard(self)


class Shared:
    """Arrays in memory that is shared until `close`. Made by `shmring.Communicator.share`; a context manager.

    The memory stays shared until `close`, or until its communicator is closed, or the process ends. A handle that is
    dropped before warns (`ResourceWarning`).
    """

    _memory: Memory

    def __init__(self, memory: Memory) -> None:
        if not isinstance(memory, Memory):
            raise TypeError(f"Shared({memory!r}): made by Communicator.share")
        self._memory = memory

    @property
    def arrays(self) -> tuple:
        """The arrays as they were passed; empty after `close`."""
        return self._memory.arrays

    @property
    def closed(self) -> bool:
        """Whether the memory is private: by `close`, by the end of its communicator, or by a fork, in the child."""
        return self._memory.closed

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's arrays that are shared now: the bytes of whole pages; 0 if all stay private."""
        return self._memory.nbytes

    def close(self) -> None:
        """Make the memory private again, with its present content, at the same address. Idempotent.

        Raises
        ------
        OutOfSharedMemoryError
            The kernel refuses the private memory; what is shared stays so, and the call can be repeated.
        SegmentError
            An array was resized or freed meanwhile; nothing was written there, and the others are private.
        RuntimeError
            This thread is in a call on the memory, as in a signal handler; nothing has changed.
        OSError
            ``/proc/self/maps`` cannot be read; what is shared stays so, and the call can be repeated.

        Notes
        -----
        Not collective; ranks may close in any order; any thread. Waits for the calls of other threads that may store
        into the memory, of all communicators of this process, messages included. It does not know what threads do in
        other ways: those must not store into it meanwhile. Later calls on the arrays are staged on all ranks, also
        asynchronous work that was submitted before and has not begun. Takes the time of a copy, in which no other
        thread of Python runs. The shared memory is freed once all ranks have closed.
        """
        if not self.closed:
            self._memory.close()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_memory") and self.nbytes and not sys.is_finalizing():
            warnings.warn(
                f"{self!r} was dropped without close(): it stays shared until its communicator is closed",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __reduce__(self) -> tuple:
        raise TypeError("memory is shared by this process, and cannot be pickled; pickle the arrays")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.nbytes} bytes of {len(self.arrays)} arrays"
        return f"<shmring Shared, {state}>"


_open: set[Memory] = set()


def close_all(engine: Engine) -> None:
    """Make private what was shared by a communicator, which is closed. Raises, after the others, as `Shared.close`."""
    errors: list[Exception] = []
    for memory in list(_open):
        if memory.engine() is engine:
            try:
                memory.close()
            except Exception as error:
                errors.append(error)
    if errors:
        raise errors[0]


def where_is(x: Any, storage: Any) -> int:
    """The address of what can be resized: of the storage of a tensor, or of an ndarray; else 0."""
    if storage is not None:
        return int(storage.data_ptr())
    return x.ctypes.data if isinstance(x, np.ndarray) else 0


def has_left(owner: Any) -> bool:
    """Whether an array that is still shared has other memory than when it was shared."""
    if owner is None:
        return False
    x, _, storage, address = owner
    return where_is(x, storage) != address


def share(comm: Any, arrays: tuple) -> Shared:
    """See `Communicator.share`."""
    engine = comm._engine
    engine.check_usable()
    memory = Memory(engine, arrays)
    try:
        parts, failure = _parts_of(arrays, comm.size, memory)
        what = _described(parts)
        outcomes = exchange_outcome(comm, failure, what)
        check_outcomes(outcomes, failure)
        for r, outcome in enumerate(outcomes):
            if outcome.what != outcomes[0].what:
                engine.disagree(r, 0, f"rank 0 shares {outcomes[0].what}; rank {r} shares {outcome.what}")
        moving = [part for part in parts if part.kept is not None]
        if moving:
            _move(comm, moving, what, memory)
    except BaseException as error:
        with suppress(Exception):  # it stays shared, until the communicator is closed
            memory.close()
        abort_if_interrupted(comm, error, "sharing an array")
        raise
    return Shared(memory)


def _move(comm: Any, parts: list[Part], what: str, memory: Memory) -> None:
    """Move the arrays, which are as many on all ranks, into segments."""
    engine = comm._engine
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
        memory.moved = [
            MovedArray(allocation, comm.rank, each, part.address, part.inner, part.owner)
            for part, allocation, each in zip(parts, allocations, pages, strict=True)
        ]
        make_shared(memory.moved)
    except ShmringError as error:
        failure = error
    check_outcomes(exchange_outcome(comm, failure, what), failure)


def _parts_of(arrays: Sequence, size: int, memory: Memory) -> tuple[list[Part], Exception | None]:
    """The arrays of a call, with what will move claimed for ``memory``; or the error about one of them."""
    try:
        parts = [_part(x) for x in arrays]
        large = [i for i, part in enumerate(parts) if size > 1 and part.nbytes >= LEAST_NBYTES]
        claim([parts[i].inner for i in large], memory.claims)
        for i, properties in zip(large, examine(memory.claims), strict=True):
            parts[i] = parts[i]._replace(kept=properties)
        return parts, None
    except Exception as error:
        return [], error


def _part(x: object) -> Part:
    address, nbytes, dtype, count, owner = memory_of(x)
    _check_kept(x)
    # A tensor can be given another storage, which would free this one.
    storage = x.untyped_storage() if hasattr(x, "untyped_storage") else None
    kept = x, owner, storage, where_is(x, storage)
    return Part(address, nbytes, f"{count} {dtype}", kept, whole_pages(address, nbytes), None)


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
    turn.take()
    if any(memory.nbytes for memory in list(_open)):
        reader, writer = os.pipe()
        _pipes[get_ident()] = above_standard(reader), above_standard(writer)


def _after_fork_in_child() -> None:
    try:
        for memory in list(_open):
            make_private_in_child(memory.moved)
            memory.release()
    finally:
        for ends in _pipes.values():  # those of other threads, too
            for fd in ends:
                os.close(fd)
        _pipes.clear()


def _after_fork_in_parent() -> None:
    turn.give()
    reader, writer = _pipes.pop(get_ident(), (-1, -1))
    if reader >= 0:
        os.close(writer)
        os.read(reader, 1)  # returns when the child has closed its end, or is dead
        os.close(reader)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)
