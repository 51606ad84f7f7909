"""Python objects as bytes: a pickle stream, and beside it the memory of large arrays, which is never copied into it.

A packed object is its *letter* and its *enclosures*. The letter is the pickle stream (protocol 5) with the sizes of the
enclosures behind it, so whoever has the letter knows what memory to provide for them. An enclosure is one contiguous
buffer of at least `ENCLOSED_NBYTES` that the object exported: usually the elements of an array.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Smaller buffers are copied into the letter: moving one by itself costs a collective, tens of microseconds, in which
# some 100 KiB can be copied twice.
ENCLOSED_NBYTES = 64 << 10

_COUNT = struct.Struct("<Q")


class Pickled(NamedTuple):
    """A packed object. Both parts look at the memory of the object or of this pickled: nothing large was copied."""

    letter: memoryview
    enclosures: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.letter.nbytes + sum(enclosure.nbytes for enclosure in self.enclosures)


def require_pickle(allowed: bool) -> None:
    """Refuse what needs pickle on a communicator that was made without it."""
    if not allowed:
        raise ValueError("made with allow_pickle=False, this communicator neither sends nor receives objects")


def pack(obj: object) -> Pickled:
    """Pack an object. It must not be changed before the pickled has been sent.

    Raises
    ------
    Exception
        Whatever pickling it raises: `pickle.PicklingError`, ``TypeError``, or what a ``__reduce__`` of its raises.
    """
    enclosures: list[memoryview] = []

    def keep_in_letter(buffer: pickle.PickleBuffer) -> bool:
        try:
            memory = buffer.raw()
        except BufferError:  # not contiguous; pickle says so in its own words
            return True
        if memory.nbytes < ENCLOSED_NBYTES:
            return True
        enclosures.append(memory)
        return False

    stream = io.BytesIO()
    pickle.Pickler(stream, protocol=5, buffer_callback=keep_in_letter).dump(obj)
    for enclosure in enclosures:
        stream.write(_COUNT.pack(enclosure.nbytes))
    stream.write(_COUNT.pack(len(enclosures)))
    return Pickled(stream.getbuffer(), enclosures)


def enclosed_sizes(letter) -> tuple[int, ...]:
    """Bytes of each enclosure that belongs to a letter."""
    view = memoryview(letter)
    (count,) = _COUNT.unpack_from(view, view.nbytes - _COUNT.size)
    return struct.unpack_from(f"<{count}Q", view, view.nbytes - (count + 1) * _COUNT.size)


def empty_enclosures(letter) -> list[np.ndarray]:
    """Fresh memory for the enclosures of a letter: one array of bytes each, so that each is freed by itself."""
    return [np.empty(nbytes, np.uint8) for nbytes in enclosed_sizes(letter)]


def unpack(letter, enclosures: Sequence) -> object:
    """Make the object. Its arrays look at the enclosures, which it keeps; they are writable if those were at `pack`.

    Runs what the sender put into the letter: only for peers that are trusted as much as one's own code.
    """
    view = memoryview(letter)
    end = view.nbytes - (len(enclosures) + 1) * _COUNT.size
    return pickle.loads(view[:end], buffers=enclosures)
