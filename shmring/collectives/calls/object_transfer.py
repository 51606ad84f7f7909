"""How Python objects travel in collectives: headers of fixed size, then bytes with a count per rank.

See `shmring.collectives.calls.objects`, where the calls are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from shmring.core.objects.codec import Dumped, empty_buffers
from shmring.errors import MismatchError

# Five cache lines of an eager message: most small objects fit.
OBJECT_HEADER_NBYTES = 256

# Most bytes that one rank contributes to one collective on bytes: they stay in the second-level cache between staging
# and copying out.
PIECE_NBYTES = 256 << 10
GRAIN_NBYTES = 4096


# ---- headers ---------------------------------------------------------------------------------------------------------


class ObjectCall(IntEnum):
    """The call that a header belongs to: two calls may consist of collectives that look the same to the engine."""

    BROADCAST = 1
    GATHER = 2
    ALL_GATHER = 3
    SCATTER = 4
    ALL_TO_ALL = 5


class PackedSize(NamedTuple):
    """Bytes of a packed object: of its pickle stream, and of its out-of-band buffers together."""

    stream: int
    buffers: int


class ObjectHeader(NamedTuple):
    """The header sent ahead of an object. ``inline`` starts its pickle stream, or is an error text if ``failed``."""

    failed: bool
    nbytes: PackedSize
    longest: PackedSize
    """The largest sizes in all headers of the same sender."""
    inline: memoryview
    sender: int


NOTHING = PackedSize(0, 0)

_HEADER = struct.Struct("<IHHqQQQQ")
_MAGIC = 0x4A624F73
INLINE_NBYTES = OBJECT_HEADER_NBYTES - _HEADER.size


def write_header(call: ObjectCall, root: int, failed: bool, nbytes: PackedSize, longest: PackedSize, text):
    """A header as an array of bytes; ``text`` is the pickle stream, or an error."""
    header = bytearray(OBJECT_HEADER_NBYTES)
    inline = memoryview(text)[:INLINE_NBYTES]
    _HEADER.pack_into(header, 0, _MAGIC, call, failed, root, *nbytes, *longest)
    header[_HEADER.size : _HEADER.size + inline.nbytes] = inline
    return np.frombuffer(header, np.uint8)


def read_headers(rank: int, raw: np.ndarray, ranks: Sequence[int], call: ObjectCall, root: int) -> list[ObjectHeader]:
    """The headers that ``ranks`` sent to ``rank``; a header of another call is a `MismatchError`."""
    headers = []
    for row, r in zip(raw, ranks, strict=True):
        magic, their_call, failed, their_root, *sizes = _HEADER.unpack_from(row)
        if magic != _MAGIC or their_call != call or their_root != root:
            theirs = _in_words(their_call, their_root) if magic == _MAGIC else "a collective on arrays"
            raise MismatchError(
                f"ranks disagree: rank {rank} called {_in_words(call, root)}, rank {r} called {theirs}", (rank, r)
            )
        inline = memoryview(row)[_HEADER.size : _HEADER.size + min(sizes[0], INLINE_NBYTES)]
        headers.append(ObjectHeader(bool(failed), PackedSize(*sizes[:2]), PackedSize(*sizes[2:]), inline, r))
    return headers


def size_of(packed: Dumped | None) -> PackedSize:
    """The sizes of a packed object; None stands for one that is not sent."""
    if packed is None:
        return NOTHING
    return PackedSize(packed.header.nbytes, sum(buffer.nbytes for buffer in packed.buffers))


def longest_of(sizes: Sequence[PackedSize]) -> PackedSize:
    """The largest stream and the largest buffers, which may be of different objects."""
    return PackedSize(max((s.stream for s in sizes), default=0), max((s.buffers for s in sizes), default=0))


def _in_words(call: int, root: int) -> str:
    name = ObjectCall(call).name.lower()
    return f"{name}_object(root={root})" if root >= 0 else f"{name}_object()"


# ---- what follows them -----------------------------------------------------------------------------------------------

# A collective on bytes: (what this rank sends, counts sent, counts received) -> what this rank receives.
Move = Callable[[np.ndarray, list[int], list[int]], Any]

# Pickle stream and out-of-band buffers of an object.
Received = tuple[Any, Sequence]


def carry(
    packed: Sequence[Dumped | None],
    sent: Sequence[PackedSize],
    headers: Sequence[ObjectHeader],
    received: Sequence[PackedSize],
    longest: PackedSize,
    move: Move,
) -> list[Received]:
    """Move what the headers do not hold; return the stream and the out-of-band buffers of each header's object.

    ``sent`` and ``received`` are the sizes from which ``move`` gets its counts. ``longest`` is equal on all ranks and
    no smaller than any size on any of them, so all ranks make the same calls. An object of size zero is not sent.
    """
    streams = [
        np.empty(_extra(nbytes), np.uint8) if _extra(nbytes) else header.inline if nbytes.stream else None
        for header, nbytes in zip(headers, received, strict=False)
    ]
    _move_pieces(
        [[p.header] if p and _extra(size_of(p)) else [] for p in packed],
        [_extra(nbytes) for nbytes in sent],
        [[stream] if isinstance(stream, np.ndarray) else [] for stream in streams],
        [_extra(nbytes) for nbytes in received],
        _extra(longest),
        move,
    )
    buffers = [[] if stream is None else empty_buffers(stream) for stream in streams]
    _move_pieces(
        [p.buffers if p else [] for p in packed],
        [nbytes.buffers for nbytes in sent],
        buffers,
        [nbytes.buffers for nbytes in received],
        longest.buffers,
        move,
    )
    return list(zip(streams, buffers, strict=True))


def _extra(nbytes: PackedSize) -> int:
    """Bytes of a pickle stream that is sent after its header: all, or none if the header holds it."""
    return nbytes.stream if nbytes.stream > INLINE_NBYTES else 0


def _move_pieces(sources, sent: list[int], targets, received: list[int], longest: int, move: Move) -> None:
    """Move lists of buffers to lists of buffers, at most `PIECE_NBYTES` of each in one call of ``move``."""
    outgoing, incoming = ([_cut(buffers) for buffers in lists] for lists in (sources, targets))
    for i, start in enumerate(range(0, longest, PIECE_NBYTES)):
        counts, coming = ([_rounded(min(PIECE_NBYTES, max(n - start, 0))) for n in ns] for ns in (sent, received))
        block = move(_joined(list(_placed(outgoing, i, counts)), sum(counts)), counts, coming)
        for place, view in _placed(incoming, i, coming):
            view[:] = block[place : place + view.nbytes]


def _cut(buffers: Sequence) -> list[list[np.ndarray]]:
    """The views that make up each piece of `PIECE_NBYTES` of the buffers, one after the other."""
    pieces: list[list[np.ndarray]] = []
    room = 0
    for buffer in buffers:
        array = np.frombuffer(buffer, np.uint8)
        while array.nbytes:
            if not room:
                pieces.append([])
                room = PIECE_NBYTES
            view, array = array[:room], array[room:]
            pieces[-1].append(view)
            room -= view.nbytes
    return pieces


def _placed(lists: Sequence[list[list[np.ndarray]]], i: int, counts: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """The views of piece ``i`` of each list, and where they belong in a block with these counts."""
    for pieces, end, count in zip(lists, accumulate(counts), counts, strict=False):
        place = end - count
        for view in pieces[i] if i < len(pieces) else ():
            yield place, view
            place += view.nbytes


def _joined(placed: list[tuple[int, np.ndarray]], nbytes: int) -> np.ndarray:
    """The block of these views; the view itself if one fills it."""
    if len(placed) == 1 and placed[0][1].nbytes == nbytes:
        return placed[0][1]
    block = np.empty(nbytes, np.uint8)
    for place, view in placed:
        block[place : place + view.nbytes] = view
    return block


def _rounded(nbytes: int) -> int:
    """Up to the next of a few sizes, the powers of two: each tuple of counts has a plan of its own."""
    return max(GRAIN_NBYTES, 1 << (nbytes - 1).bit_length()) if nbytes else 0
