"""The blocks of an item that is pickled to be sent, or was taken to be unpickled.

What they need, beside the handles in the pickle, is the item's *tail*: of a crate (core/blocks/crate.pyx), or, where
there is none, the handles again, so that the blocks are opened before the item counts as taken.
"""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Callable

from shmring.core.base.text import size_text
from shmring.core.blocks import holders
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.pages import Pages
from shmring.core.memory.descriptor import Descriptor
from shmring.errors import BlockLostError, SegmentError

TAIL_NBYTES = 16  # of a crate
_COUNT = struct.Struct("<I")


class Departure:
    """The blocks of one item that is sent.

    Attributes
    ----------
    tail : bytearray
        What is sent at the end of the item, and is filled in as the blocks are left.
    """

    def __init__(self) -> None:
        self.blocks: list[Pages] = []
        self.tail = bytearray(TAIL_NBYTES)

    def add(self, pages: Pages) -> int:
        """Have a block leave with the item; its position."""
        self.blocks.append(pages)
        return len(self.blocks) - 1

    def name(self) -> None:
        """Have the taker find the blocks at this process."""
        handles = [holders.handle_of(pages) for pages in self.blocks]
        self.tail = bytearray(b"".join((*handles, _COUNT.pack(len(handles)))))


class Arrival:
    """The blocks of one item that was taken: the files that came, and why others did not."""

    def __init__(self, files: list[Descriptor], reason: str, sender: int) -> None:
        self.files, self.reason, self.sender = files, reason, sender

    def pages(self, place: int, handle: bytes) -> Pages:
        """The block at this place, which has this handle. `BlockLostError`, `SegmentError`: it has not come."""
        number, nbytes = holders.number_and_size(handle)
        if place < len(self.files):
            pages = block_pages.adopt(self.files[place], number, nbytes)
            if pages is not None:
                return pages
        raise BlockLostError(f"a block of {size_text(nbytes)} is lost: {self.reason}", self.sender)


class Found:
    """The blocks of one item that was taken, as the process that sent it has them: each, or the error without it."""

    def __init__(self, item: memoryview) -> None:
        (count,) = _COUNT.unpack(item[-_COUNT.size :])
        first = len(item) - _COUNT.size - count * holders.HANDLE_NBYTES
        if first < 0:
            raise SegmentError("a message says that it has more blocks than there is room for their handles")
        self._found: list[Pages | Exception] = []
        for at in range(first, len(item) - _COUNT.size, holders.HANDLE_NBYTES):
            try:
                self._found.append(holders.taken(bytes(item[at : at + holders.HANDLE_NBYTES])))
            except (BlockLostError, SegmentError) as error:
                self._found.append(error)

    def pages(self, place: int, handle: bytes) -> Pages:
        """As `Arrival.pages`."""
        found = self._found[place]
        if isinstance(found, Exception):
            raise found
        return found

    def require_all(self) -> None:
        """Raise the error of a block that was not found."""
        for found in self._found:
            if isinstance(found, Exception):
                raise found


Flight = Departure | Arrival | Found


def _none() -> None:
    """No departure or arrival."""


class _OfThread(threading.local):
    """The departure or arrival of the object that the thread is pickling or unpickling.

    By a weak reference: it lasts as long as the call that has it, also if an interrupt comes before `end`.
    """

    flight: Callable[[], Flight | None] = staticmethod(_none)


_thread = _OfThread()


def begin(flight: Flight | None) -> Callable[[], Flight | None]:
    """Begin to pickle or unpickle an item whose blocks the transport carries with ``flight``; None: it carries none.
    The value is for `end`."""
    outer = _thread.flight
    _thread.flight = _none if flight is None else weakref.ref(flight)
    return outer


def end(outer: Callable[[], Flight | None]) -> None:
    """End what `begin` began."""
    _thread.flight = outer


def departing() -> Departure | None:
    """The departure of the item that this thread is pickling; None if the transport does not carry its blocks."""
    flight = _thread.flight()
    return flight if isinstance(flight, Departure) else None


def arriving() -> Arrival | Found | None:
    """What has come with the item that this thread is unpickling."""
    flight = _thread.flight()
    return flight if isinstance(flight, (Arrival, Found)) else None
