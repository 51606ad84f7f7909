"""Python objects as bytes: a pickle stream, and large buffers (arrays) that stay out of it (pickle protocol 5).

The *stream* is the pickle stream followed by the sizes of the *out-of-band buffers*, so a receiver of the stream can
allocate memory for them. An out-of-band buffer is one contiguous buffer of at least `OUT_OF_BAND_NBYTES` that the
object exported: usually the elements of an array.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Smaller buffers are copied into the stream: moving one by itself costs a collective, tens of microseconds, in which
# some 100 KiB can be copied twice.
OUT_OF_BAND_NBYTES = 64 << 10

_COUNT = struct.Struct("<Q")


class Pickled(NamedTuple):
    """A pickled object. Both parts are views of memory that the object or this tuple owns: nothing large was copied."""

    stream: memoryview
    buffers: list[memoryview]
    """Out of band."""

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.stream.nbytes + sum(buffer.nbytes for buffer in self.buffers)


class _Stream(bytearray):
    """What a pickler writes to. Not a `BytesIO`: that is closed when collected in a cycle, which its views prevent."""

    __slots__ = ()
    write = bytearray.extend


def require_pickle(allowed: bool) -> None:
    """Refuse a call that needs pickle on a communicator that was made without it."""
    if not allowed:
        raise ValueError("this communicator was made with allow_pickle=False: it neither sends nor receives objects")


def pack(obj: object) -> Pickled:
    """Pickle an object; raises what pickling it raises. It must not be changed before the result has been sent."""
    buffers: list[memoryview] = []

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        try:
            memory = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if memory.nbytes < OUT_OF_BAND_NBYTES:
            return True
        buffers.append(memory)
        return False

    stream = _Stream()
    pickle.Pickler(stream, protocol=5, buffer_callback=stays_in_stream).dump(obj)
    for buffer in buffers:
        stream += _COUNT.pack(buffer.nbytes)
    stream += _COUNT.pack(len(buffers))
    return Pickled(memoryview(stream), buffers)


def buffer_sizes(stream) -> tuple[int, ...]:
    """Bytes of each out-of-band buffer that belongs to a stream."""
    view = memoryview(stream)
    (count,) = _COUNT.unpack_from(view, view.nbytes - _COUNT.size)
    return struct.unpack_from(f"<{count}Q", view, view.nbytes - (count + 1) * _COUNT.size)


def empty_buffers(stream) -> list[np.ndarray]:
    """Fresh memory for the out-of-band buffers of a stream: one array of bytes each, so that each is freed alone."""
    return [np.empty(nbytes, np.uint8) for nbytes in buffer_sizes(stream)]


def unpack(stream, buffers: Sequence) -> object:
    """Unpickle an object. Its arrays are views of ``buffers``, writable if the originals were.

    Unpickling runs code that the sender chose: only for peers that are trusted as much as one's own code.
    """
    view = memoryview(stream)
    end = view.nbytes - (len(buffers) + 1) * _COUNT.size
    return pickle.loads(view[:end], buffers=buffers)
