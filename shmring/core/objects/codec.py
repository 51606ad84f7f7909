"""Any Python object as a header and buffers: the one form in which objects travel (pickle protocol 5).

`dump` pickles an object; large buffers in it (usually the elements of arrays) stay *out of band*: they are sent from
where they lie and received where the object keeps them. The *header* is the pickle stream followed by the sizes of the
out-of-band buffers, so its receiver can allocate memory for them (`empty_buffers`) before they come. `load` makes the
object of both. A transport that moves an object as one *block* sends the length of the header, the header, and the
buffers, each on a multiple of `BUFFER_ALIGNMENT` from the beginning of the block; `parts_of` finds them there.

Tensors of torch are sent as arrays are (core/objects/tensors.pyx).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shmring.core.base.interrupts import is_interrupt
from shmring.core.blocks import in_flight
from shmring.core.blocks.in_flight import Arrival, Found
from shmring.core.objects.stream import Stream
from shmring.core.objects.tensors import dispatch_table
from shmring.errors import BlockLostError, ObjectError

# Smaller buffers are copied into the stream: moving one by itself costs a collective, tens of microseconds, in which
# about 100 KiB can be copied twice.
OUT_OF_BAND_NBYTES = 64 << 10

# Likewise in a block, where a buffer by itself costs a microsecond.
OUT_OF_BAND_OF_BLOCK_NBYTES = 4 << 10

BUFFER_ALIGNMENT = 64  # of the out-of-band buffers in a block, from its beginning on: a cache line

_SIZE = struct.Struct("<Q")

# Pickled without looks at what is in them: a third of the time.
_PLAIN = frozenset({int, float, complex, bool, str, type(None)})
_MOST_PLAIN = 16  # in a tuple
_NO_BUFFERS = _SIZE.pack(0)


class _Parts(NamedTuple):
    header: memoryview
    buffers: list[memoryview]


class Dumped(_Parts):
    """An object to be sent: its header, and its buffers, each contiguous. Both are views of memory that the object or
    this tuple owns: nothing large was copied, so the object must not be changed before they have been sent.

    Attributes
    ----------
    flight : Departure, Arrival, Found or None
        The blocks in it, if the transport carries them (core/blocks/in_flight.py).
    """

    flight: Any = None

    @property
    def stream(self) -> bytes:
        """The pickle stream alone, which ``pickle.loads`` takes if there are no buffers."""
        return bytes(self.header[: -(len(self.buffers) + 1) * _SIZE.size])

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.header.nbytes + sum(buffer.nbytes for buffer in self.buffers)


def require_pickle(allowed: bool) -> None:
    """Refuse a call that needs pickle on a communicator that was made without it."""
    if not allowed:
        raise ValueError("this communicator was made with allow_pickle=False: it neither sends nor receives objects")


def is_plain(obj: object) -> bool:
    """Whether this is a number, a text or None, or a short tuple of them: the pickle has no buffers nor reducers."""
    if type(obj) is tuple:
        return len(obj) <= _MOST_PLAIN and _PLAIN.issuperset(map(type, obj))
    return type(obj) in _PLAIN


def out_of_band(buffers: list[memoryview], least_nbytes: int) -> Callable[[pickle.PickleBuffer], bool]:
    """The ``buffer_callback`` of a pickler that appends buffers of ``least_nbytes`` or more to a list; others stay in
    the stream."""

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        try:
            memory = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if memory.nbytes < least_nbytes:
            return True
        buffers.append(memory)
        return False

    return stays_in_stream


def dump(
    obj: object,
    rank: int = -1,
    *,
    refusal: str | None,
    out_of_band_nbytes: int = OUT_OF_BAND_NBYTES,
    as_multiprocessing: bool = False,
    carries_blocks: bool = False,
) -> Dumped:
    """Pickle an object; buffers of ``out_of_band_nbytes`` or more stay out of band.

    ``refusal`` says why the object must have no open files, of connections or ends of channels, if it must not
    (`shmring.core.objects.open_files`); ``as_multiprocessing`` how tensors and arrays arrive
    (`shmring.core.objects.tensors.dispatch_table`); ``carries_blocks`` whether the transport carries the blocks in it,
    else their taker finds them at a process that holds them. `ObjectError` if pickling fails, with its error
    as the cause. It names ``rank``, the number of this rank, if that is not negative.
    """
    if is_plain(obj):
        return Dumped(memoryview(pickle.dumps(obj, 5) + _NO_BUFFERS), [])
    buffers: list[memoryview] = []
    stream = Stream()
    departure = in_flight.Departure() if carries_blocks else None
    outer = in_flight.begin(departure)
    try:
        pickler = pickle.Pickler(stream, protocol=5, buffer_callback=out_of_band(buffers, out_of_band_nbytes))
        pickler.dispatch_table = dispatch_table(as_multiprocessing, refusal)
        pickler.dump(obj)
    except Exception as error:
        if is_interrupt(error):
            raise
        subject = "cannot pickle this object" if rank < 0 else f"rank {rank} cannot pickle its object"
        raise ObjectError(f"{subject}: {type(error).__name__}: {error}", rank) from error
    finally:
        in_flight.end(outer)
    for buffer in buffers:
        stream.write(_SIZE.pack(buffer.nbytes))
    stream.write(_SIZE.pack(len(buffers)))
    dumped = Dumped(stream.joined(), buffers)
    if departure is not None and departure.blocks:
        dumped.flight = departure
    return dumped


def buffer_sizes(header, rank: int = -1) -> tuple[int, ...]:
    """Bytes of each out-of-band buffer that belongs to a header; `ObjectError` if the header is malformed."""
    view = memoryview(header)
    try:
        (count,) = _SIZE.unpack_from(view, view.nbytes - _SIZE.size)
        if not count:
            return ()
        return struct.unpack_from(f"<{count}Q", view, view.nbytes - (count + 1) * _SIZE.size)
    except struct.error as error:
        raise _malformed(rank) from error


def _malformed(rank: int) -> ObjectError:
    return ObjectError(f"{'the sender' if rank < 0 else f'rank {rank}'} sent a malformed object", rank)


def empty_buffers(header, rank: int = -1) -> list[np.ndarray]:
    """Fresh memory for the out-of-band buffers of a header: one array of bytes each, so that each is freed alone."""
    return [np.empty(nbytes, np.uint8) for nbytes in buffer_sizes(header, rank)]


def block_of(dumped: Dumped) -> np.ndarray:
    """An object as one block of bytes, a copy."""
    parts: list[bytes | memoryview] = [_SIZE.pack(dumped.header.nbytes), dumped.header]
    nbytes = _SIZE.size + dumped.header.nbytes
    for part in dumped.buffers:
        gap = -nbytes % BUFFER_ALIGNMENT
        parts += [bytes(gap), part]
        nbytes += gap + part.nbytes
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])


def parts_of(block: np.ndarray, rank: int = -1) -> tuple[memoryview, list[np.ndarray]]:
    """The header and the out-of-band buffers of an object that came as one block of bytes, in which they lie.

    `ObjectError` if the block is malformed.
    """
    view = block.data
    try:
        (header_nbytes,) = _SIZE.unpack_from(view)
    except struct.error as error:
        raise _malformed(rank) from error
    at = _SIZE.size + header_nbytes
    header, buffers = view[_SIZE.size : at], []
    for nbytes in buffer_sizes(header, rank):
        at = -(-at // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        buffers.append(block[at : at + nbytes])
        at += nbytes
    return header, buffers


def load(header, buffers: Sequence, rank: int = -1, flight: Arrival | Found | None = None) -> object:
    """The object with this header, these out-of-band buffers, and these blocks, which ``rank`` sent.

    Its arrays are views of ``buffers``, writable if the originals were. `ObjectError` if unpickling fails, with the
    error as its cause. Unpickling runs code that the sender chose: only for peers that are trusted as much as one's own
    code.
    """
    try:
        if flight is None:
            return pickle.loads(header, buffers=buffers)  # the stream has an end: the sizes after it are not read
        outer = in_flight.begin(flight)
        try:
            return pickle.loads(header, buffers=buffers)
        finally:
            in_flight.end(outer)
    except BlockLostError:
        raise
    except Exception as error:
        if is_interrupt(error):
            raise
        what = "the object received" if rank < 0 else f"what rank {rank} sent"
        raise ObjectError(f"cannot unpickle {what}: {type(error).__name__}: {error}", rank) from error
