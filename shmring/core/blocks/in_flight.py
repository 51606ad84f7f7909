"""Blocks in flight: the kernel holds them while the item in which they were sent waits to be taken.

A queue, pipe or channel that processes get by descriptors has a *crate*: a pair of sockets in which the sender leaves
descriptors of the blocks of an item, right before the item. A descriptor in a socket is an open file of the kernel's:
so the blocks outlive the sender, whether it drops them, exits or is killed, and end with the item's taker, or with the
last process that has the queue. No process keeps anything, and nothing is to be counted.

Both ends of the crate are used in the order of the items: by the process that has the sending end, or its lock, and by
the one that has the receiving end. Each message in it has the *ticket* of its item. Tickets ascend. One that is lower
than that of the item in hand belonged to an item that never came, or whose taker died.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import threading
import time
from array import array
from typing import Any

from shmring.core.base.pace import Pace
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.pages import Pages
from shmring.core.memory.descriptor import Descriptor, above_standard, close_or_keep, passed_on

# At the end of an item: its ticket, the number of its blocks, and the process that sent it.
_TAIL = struct.Struct("<QII")
TAIL_NBYTES = _TAIL.size
_TICKET = struct.Struct("<Q")

_MOST_IN_MESSAGE = 250  # descriptors; the kernel's limit is 253
_TRUNCATED, _CLOSE_ON_EXEC = int(socket.MSG_CTRUNC), int(socket.MSG_CMSG_CLOEXEC)
_CONTROL_NBYTES = socket.CMSG_SPACE(_MOST_IN_MESSAGE * 4)
_BUFFER_NBYTES = 1 << 20  # for the descriptors in flight; the kernel gives less to most users


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


class Arrival:
    """The blocks of one item that was taken."""

    def __init__(self, files: list[Descriptor], reason: str, sender: int) -> None:
        self.files, self.reason, self.sender = files, reason, sender


class Crate:
    """What a queue, pipe or channel has in flight. Pickles as descriptors do, for processes that get the queue."""

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        if ends is None:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends = pair[0].detach(), pair[1].detach()
        self._out, self._in = (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, above_standard(end)) for end in ends
        )
        self._out.setblocking(False)
        self._in.setblocking(False)
        self._out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_NBYTES)
        self._highest = self._limit = 0  # of the descriptors that came last; the soft limit

    def __reduce__(self) -> tuple:
        return _arrived, (passed_on(self._out.fileno()), passed_on(self._in.fileno()))

    def close(self) -> None:
        """Let go of it. What is in flight ends with the last process that has it."""
        for end in ("_out", "_in"):
            if hasattr(self, end):
                getattr(self, end).close()

    __del__ = close_or_keep

    def put(self, departure: Departure, timeout_s: float | None) -> bool:
        """Leave the blocks of the item that is sent next; False: there was no room for them in time."""
        _TAIL.pack_into(departure.tail, 0, time.monotonic_ns(), len(departure.blocks), os.getpid())
        until: float | None = None
        pace = Pace()
        for at in range(0, len(departure.blocks), _MOST_IN_MESSAGE):
            files = array("i", [pages.file.fd for pages in departure.blocks[at : at + _MOST_IN_MESSAGE]])
            while not self._send(departure.tail[: _TICKET.size], files):
                now = time.monotonic()
                until = now + timeout_s if until is None and timeout_s is not None else until
                if until is not None and now >= until:
                    return False
                pace.pause()
        return True

    def _send(self, ticket: bytearray, files: array) -> bool:
        try:
            self._out.sendmsg([ticket], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                raise
            if error.errno == errno.ETOOMANYREFS:  # in all sockets of the user: as many as the process may open
                block_pages.raise_limit()
            return False
        return True

    def take(self, tail: bytes) -> Arrival:
        """The blocks of an item that was taken, which has this tail."""
        ticket, count, pid = _TAIL.unpack(tail)
        files: list[Descriptor] = []
        reason = ""
        while len(files) < count and not reason:
            try:
                found, some, flags = self._receive()
            except BlockingIOError:
                found, some, flags = ticket + 1, [], 0
            if found > ticket:
                reason = "the process that had taken it has ended"
            elif found == ticket:
                files += some
                if flags & _TRUNCATED:
                    reason = "this process has as many files open as it may (ulimit -n)"
        return Arrival(files, reason, pid)

    def _receive(self) -> tuple[int, list[Descriptor], int]:
        """The next message: its ticket, what came with it, and its flags."""
        if self._highest + _MOST_IN_MESSAGE >= self._limit:  # what there is no descriptor for would be lost
            self._limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if self._highest + _MOST_IN_MESSAGE >= self._limit:
                block_pages.raise_limit()
        numbers = array("i")
        ticket, parts, flags, _ = self._in.recvmsg(_TICKET.size, _CONTROL_NBYTES, _CLOSE_ON_EXEC)
        for _, _, part in parts:
            numbers.frombytes(part[: len(part) - len(part) % numbers.itemsize])
        self._highest = max(numbers, default=0)
        return _TICKET.unpack(ticket)[0], [Descriptor(int, number) for number in numbers], flags


def _arrived(out: Any, into: Any) -> Crate:
    return Crate((out.detach(), into.detach()))


# -- pickling ---------------------------------------------------------------------------------------------------------


class _OfThread(threading.local):
    """The departure or arrival of the object that the thread is pickling or unpickling."""

    flight: Departure | Arrival | bool | None = None


_thread = _OfThread()


def begin(flight: Arrival | bool | None) -> Departure | Arrival | bool | None:
    """Begin to unpickle an item that came with ``flight``, or to pickle one: True if its blocks are left in a crate.
    The value is for `end`."""
    outer, _thread.flight = _thread.flight, flight
    return outer


def end(outer: Departure | Arrival | bool | None) -> Departure | None:
    """End what `begin` began; the departure of the item, if it has blocks that are left in a crate."""
    flight, _thread.flight = _thread.flight, outer
    return flight if isinstance(flight, Departure) else None


def departing() -> Departure | None:
    """The departure of the item that this thread is pickling; None if its blocks are not left in a crate."""
    if _thread.flight is True:
        _thread.flight = Departure()
    return _thread.flight if isinstance(_thread.flight, Departure) else None


def arriving() -> Arrival | None:
    """The arrival of the item that this thread is unpickling."""
    return _thread.flight if isinstance(_thread.flight, Arrival) else None
