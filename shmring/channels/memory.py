"""The memory of a channel, and how processes get it: by a descriptor, or by name.

The file of an unnamed channel never has a name: other processes get its descriptor, through a fork or in a
pickle that multiprocessing transfers. So the kernel frees it, whichever processes die. A named channel is found by its
name, which exists as long as one end is open, so that the other can be opened again.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing.process  # noqa: F401 whose key tells the family of a channel's processes
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shmring.channels.queue_locks import QUEUE_NBYTES, format_queue
from shmring.config import configure
from shmring.core.arrays import dtype_codec
from shmring.core.base.pace import Pace
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.crate import Crate
from shmring.core.blocks.in_flight import Departure
from shmring.core.blocks.pages import Pages
from shmring.core.memory import header as headers
from shmring.core.memory import segment
from shmring.core.memory.descriptor import Descriptor, passed_on
from shmring.core.memory.family import own_family
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.segment import CHANNEL, Segment
from shmring.core.memory.unnamed import create_unnamed as create_unnamed_segment
from shmring.core.objects.open_files import NOT_ONE, STRANGERS
from shmring.core.placement.cpus import processor_quota
from shmring.core.ring.spsc import CONTROL_NBYTES, HEAD_NBYTES, format_ring
from shmring.errors import SegmentError

# What the sender of a channel does when there is no room. The header of the segment has their positions, as has
# channels/ring_ends.pxd.
POLICIES = ("wait", "drop_newest")

# In a channel of records their description follows the header in its page.
_TEXT_OFFSET = 1024
_TEXT_NBYTES = HEADER_NBYTES - _TEXT_OFFSET

# Before it, in the segment of an unnamed channel, its label for inspection: as long as a name, ended by a zero.
LABEL_OFFSET, LABEL_NBYTES = 768, 256

_WORD_NBYTES = 8
_LEAST_NBYTES = 64
_MOST_NBYTES = 1 << 35
_QUEUE_ALIGNMENT = 128
QUEUE_CAPACITY_NBYTES = 8 << 20

# How long to try to open a name that other processes are creating or unlinking.
_OPEN_TIMEOUT_S = 5.0


class ChannelMemory:
    """The memory that the two ends of a channel share, as one process sees it.

    Attributes
    ----------
    mapping : Mapping
    ring_offset : int
        The ring's offset in the mapping.
    key : str or None
        The name that it was opened by.
    dtype : numpy.dtype or None
        The dtype of its records; None: messages of any kind.
    when_full : str
        One of `POLICIES`.
    crate : Crate or None
        What holds the blocks in flight; None: this process does those that it sends.
    allow_pickle : bool
        Whether the ends that use this object send objects, or unpickle those that they receive: the process that made
        the channel must allow it, and this process by its own argument or setting.
    spin_ns, tick_ns : int
        How this process waits.
    writes_notes : bool
        Whether a wait that lasts long writes a note (core/sync/long_waits.pyx).
    """

    ring_offset = HEADER_NBYTES
    number = 0  # of the receiver, in a broadcast
    nreceivers = 1
    is_broadcast = False
    slow_ns = -1  # in a broadcast: a receiver that leaves no room for so long is disconnected
    writes_notes = True
    owned_by_lock = False  # whether its ends go from process to process: see channels/queue.pyx

    def __init__(
        self,
        memory: Segment,
        key: str | None = None,
        allow_pickle: bool | None = None,
        crate: Crate | None = None,
    ) -> None:
        self.memory = memory
        self.crate = crate
        self.mapping = memory.mapping
        self.key = key
        flags, text_nbytes, _, _ = memory.header.params
        text = bytes(memoryview(self.mapping)[_TEXT_OFFSET : _TEXT_OFFSET + min(text_nbytes, _TEXT_NBYTES)])
        self.dtype = dtype_codec.dtype_of(text) if text else None
        if flags & 0xFF >= len(POLICIES):
            raise SegmentError(f"{self.title} is corrupted: its header has flags {flags:#x}")
        self.when_full = POLICIES[flags & 0xFF]
        config = configure()
        self.allow_pickle = bool(flags >> 8 & 1) and (config.allow_pickle if allow_pickle is None else allow_pickle)
        if memory.header.family != own_family():
            headers.forget_family(memory.mapping)
        self.spin_ns = config.spin_ns(2, min(os.cpu_count() or 1, processor_quota() or float("inf")))
        self.tick_ns = int(config.internals.tick_ms * 1e6)

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this channel" if self.key is None else f"channel {self.key!r}"

    @property
    def refusal(self) -> str | None:
        """Why its objects cannot have open files (core/objects/open_files.py); None: they can."""
        if self.nreceivers != 1:
            return NOT_ONE
        return None if headers.is_of_one_family(self.mapping) else STRANGERS

    def taking(self) -> AbstractContextManager[bool]:
        """A context in which an end is taken. Its value: whether an end that had a holder may be taken again."""
        return contextlib.nullcontext(False) if self.key is None else self._alone()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        with self.memory.alone():
            yield True

    def hold_blocks(self, number: int, departure: Departure, taken: Callable[[ChannelMemory], int]) -> None:
        """Where there is no crate: hold the blocks of an item that was sent until ``taken(self)`` is its number.

        The item has their handles, and all that are to have it open them before they count it as taken.
        """
        if self.crate is None:
            block_pages.keep_while(partial(self._awaits_taker, number, departure.blocks, taken))

    def _awaits_taker(self, number: int, _blocks: list[Pages], taken: Callable[[ChannelMemory], int]) -> bool:
        return taken(self) < number

    def leave(self) -> None:
        """Drop the name after the end has closed; the last end to do so unlinks it."""
        if self.key is not None:
            self.memory.unlink()

    def __reduce__(self) -> tuple:
        if self.key is not None:
            raise TypeError(f"{self.title} has a name: call shmring.open_channel() in the other process")
        return ChannelMemory, (self.memory, None, None, self.crate)


class QueueMemory(ChannelMemory):
    """The memory that the processes of a queue share, as one process sees it: a ring, and the locks of its ends.

    [header page][ring and its slots][shmring_queue]

    Attributes
    ----------
    queue_offset : int
        The offset of the locks.
    maxsize : int
    signal : Descriptor or None
        The eventfd of the queue. A queue with a name has none, as unrelated processes have no descriptors in common;
        nor has a pipe, as its sockets are known to its connections. Pipes are those of `shmring.multiprocessing`, where
        an idle process waits in silence, as with the standard library's.
    """

    owned_by_lock = True

    def __init__(
        self,
        memory: Segment,
        allow_pickle: bool | None = None,
        signal: Descriptor | None = None,
        key: str | None = None,
        crate: Crate | None = None,
    ) -> None:
        super().__init__(memory, key, allow_pickle, crate)
        self.signal = signal
        self.writes_notes = signal is not None or key is not None
        self.queue_offset, self.maxsize = memory.header.params[2:]
        last = memory.nbytes - QUEUE_NBYTES
        if self.queue_offset % _QUEUE_ALIGNMENT or not CONTROL_NBYTES <= self.queue_offset <= last:
            raise SegmentError("this queue is corrupted: its header has an invalid offset of the locks")

    @property
    def title(self) -> str:
        """How error messages name it."""
        return "this queue" if self.key is None else f"queue {self.key!r}"

    @property
    def capacity_nbytes(self) -> int:
        """Size of the ring in bytes: the power of two to which the one asked for was rounded up."""
        return 1 << (self.queue_offset - HEADER_NBYTES - CONTROL_NBYTES).bit_length() - 1

    def taking(self) -> AbstractContextManager[bool]:
        """The locks decide which process uses an end."""
        return contextlib.nullcontext(False)

    def __reduce__(self) -> tuple:
        return _arrived, (self.memory, self.signal and passed_on(self.signal.fd), self.crate)


def _arrived(memory: Segment, signal: Any, crate: Crate) -> QueueMemory:
    """The memory that another process has passed on."""
    return QueueMemory(memory, signal=signal and Descriptor(signal.detach), crate=crate)


def allows_pickle(allow_pickle: bool | None) -> bool:
    """Whether a channel allows pickle: the argument of the call, or else the setting of this process."""
    return configure().allow_pickle if allow_pickle is None else bool(allow_pickle)


def create_unnamed(capacity_nbytes: int, dtype: np.dtype | None, when_full: str, allow_pickle: bool) -> ChannelMemory:
    """Fresh memory without a name."""
    memory = _create(None, capacity_nbytes, dtype, when_full, allow_pickle)
    crate = Crate() if allow_pickle and dtype is None else None
    return ChannelMemory(memory, allow_pickle=allow_pickle, crate=crate)


def open_named(
    key: str, capacity_nbytes: int, dtype: np.dtype | None, when_full: str, allow_pickle: bool
) -> ChannelMemory:
    """The memory of that name; created if there is none."""
    memory = open_or_create(
        f"channel/{key}", lambda name: _create(name, capacity_nbytes, dtype, when_full, allow_pickle)
    )
    return _require_same(ChannelMemory(memory, key, allow_pickle), dtype, when_full)


def create_queue(
    capacity_nbytes: int, maxsize: int, allow_pickle: bool | None = None, *, with_signal: bool = False
) -> QueueMemory:
    """Fresh memory for a queue without a name."""
    memory = _create_queue(None, capacity_nbytes, maxsize, allow_pickle)
    signal = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if with_signal else None
    return QueueMemory(memory, allow_pickle, signal, crate=Crate() if allows_pickle(allow_pickle) else None)


def open_queue(key: str, capacity_nbytes: int | None, maxsize: int, allow_pickle: bool | None) -> QueueMemory:
    """The memory of the queue of that name, created if there is none. What is not None, or 0, must agree with it."""
    wanted = QUEUE_CAPACITY_NBYTES if capacity_nbytes is None else capacity_nbytes
    nbytes = max(checked_ring(wanted, None, "wait", False).nslots * _WORD_NBYTES, _QUEUE_ALIGNMENT)
    memory = open_or_create(f"queue/{key}", lambda name: _create_queue(name, wanted, maxsize, allow_pickle))
    try:
        found = QueueMemory(memory, allow_pickle, key=key)
        if maxsize not in (0, found.maxsize):
            raise SegmentError(f"{found.title} is open with maxsize={found.maxsize}, not {maxsize}")
        if capacity_nbytes is not None and nbytes != found.capacity_nbytes:
            raise SegmentError(f"{found.title} is open with capacity_nbytes={found.capacity_nbytes}, not {nbytes}")
    except BaseException:
        memory.unlink()
        raise
    return found


def _create_queue(name: str | None, capacity_nbytes: int, maxsize: int, allow_pickle: bool | None) -> Segment:
    ring = checked_ring(capacity_nbytes, None, "wait", allows_pickle(allow_pickle))
    ring_nbytes = -(-ring.nbytes // _QUEUE_ALIGNMENT) * _QUEUE_ALIGNMENT
    memory = ring.reserve(name, ring_nbytes + QUEUE_NBYTES, (HEADER_NBYTES + ring_nbytes, maxsize))
    ring.format(memory)
    with memoryview(memory.mapping) as view, view[HEADER_NBYTES + ring_nbytes :] as rest:
        format_queue(rest)
    memory.announce()
    return memory


def open_or_create(key: str, create: Callable[[str], Segment]) -> Segment:
    """The segment of that name, which its processes share; ``create`` makes it if there is none."""
    name = segment.segment_name(key, "ring")
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    pace = Pace()
    while True:
        memory = segment.join(name, kind=CHANNEL)
        if memory is not None:
            return memory
        try:
            memory = create(name)
        except SegmentError as error:
            if error.errno != errno.EEXIST or time.monotonic() > deadline:
                raise
            pace.pause()  # another process is creating it
        else:
            memory.share()
            return memory


def is_same_dtype(one: np.dtype | None, other: np.dtype | None) -> bool:
    """Whether both are equal, or both None: NumPy takes None for float64 when it compares."""
    return one is other or (one is not None and other is not None and one == other)


def _require_same(found: ChannelMemory, dtype: np.dtype | None, when_full: str) -> ChannelMemory:
    if is_same_dtype(found.dtype, dtype) and found.when_full == when_full:
        return found
    found.leave()
    raise SegmentError(
        f"{found.title} is open with dtype={found.dtype}, when_full={found.when_full!r}, "
        f"not dtype={dtype}, when_full={when_full!r}"
    )


class RingPlan(NamedTuple):
    """Checked arguments of a ring to be made."""

    nslots: int
    slot_nbytes: int
    when_full: str
    allow_pickle: bool
    text: bytes
    """The description of its records."""
    nheads: int = 1

    @property
    def nbytes(self) -> int:
        return CONTROL_NBYTES + (self.nheads - 1) * HEAD_NBYTES + self.nslots * self.slot_nbytes

    def reserve(self, name: str | None, nbytes: int, params: tuple = ()) -> Segment:
        """A segment of ``nbytes`` bytes and its header page, not announced yet; ``params``: of a broadcast or queue."""
        nbytes += HEADER_NBYTES
        params = (POLICIES.index(self.when_full) | self.allow_pickle << 8, len(self.text), *params)
        if name is not None:
            memory = segment.create(name, nbytes, kind=CHANNEL, params=params)
        else:
            label = segment.segment_name("channel", secrets.token_hex(8))
            memory = create_unnamed_segment(label, nbytes, kind=CHANNEL, params=params)
            _write(memory, LABEL_OFFSET, label.encode())
        _write(memory, _TEXT_OFFSET, self.text)
        return memory

    def format(self, memory: Segment, offset: int = HEADER_NBYTES) -> None:
        """Make the ring at an offset of its segment."""
        with memoryview(memory.mapping) as view, view[offset:] as rest:
            format_ring(rest, self.nslots, self.slot_nbytes, nheads=self.nheads)


def _write(memory: Segment, offset: int, text: bytes) -> None:
    with memoryview(memory.mapping) as page:
        page[offset : offset + len(text)] = text


def checked_ring(capacity_nbytes: int, dtype: np.dtype | None, when_full: str, allow_pickle: bool) -> RingPlan:
    """Check the arguments of a ring; raises `TypeError` and `ValueError`."""
    if when_full not in POLICIES:
        raise ValueError(f"when_full={when_full!r}: must be one of {', '.join(POLICIES)}")
    if dtype is not None and dtype.subdtype is not None:
        raise TypeError(f"dtype={dtype}: records cannot be sub-arrays; a structured dtype can have one as a field")
    text = b"" if dtype is None else dtype_codec.describe(dtype)
    if len(text) > _TEXT_NBYTES:
        raise ValueError(f"dtype={dtype}: its description has {len(text)} bytes, there is room for {_TEXT_NBYTES}")
    slot_nbytes = _WORD_NBYTES if dtype is None else dtype.itemsize
    if not slot_nbytes:
        raise ValueError(f"dtype={dtype}: records must have at least one byte")
    if not isinstance(capacity_nbytes, int) or isinstance(capacity_nbytes, bool):
        raise TypeError(f"capacity_nbytes={capacity_nbytes!r}: must be an int")
    if not _LEAST_NBYTES <= capacity_nbytes <= _MOST_NBYTES:
        raise ValueError(f"capacity_nbytes={capacity_nbytes}: must be from {_LEAST_NBYTES} to {_MOST_NBYTES}")
    nslots = 1 << max(0, -(-capacity_nbytes // slot_nbytes) - 1).bit_length()
    return RingPlan(nslots, slot_nbytes, when_full, allow_pickle, text)


def _create(name, capacity_nbytes, dtype, when_full, allow_pickle) -> Segment:
    ring = checked_ring(capacity_nbytes, dtype, when_full, allow_pickle)
    memory = ring.reserve(name, ring.nbytes)
    ring.format(memory)
    memory.announce()
    return memory
