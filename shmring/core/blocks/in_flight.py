"""Blocks in flight: the kernel holds them while the item in which they were sent waits to be taken.

A queue, pipe or channel that processes get by descriptors has a *crate*: a pair of sockets in which the sender leaves
descriptors of the blocks of an item, right after the item. A descriptor in a socket is an open file of the kernel's: so
the blocks outlive the sender, whether it drops them, exits or is killed, and end with the item's taker, or with the
last process that has the queue. No process keeps anything, and nothing is to be counted.

Both ends of the crate are used in the order of the items: by the process that has the sending end, or its lock, and by
the one that has the receiving end. Each message in it has the *ticket* of its item. Tickets ascend. One that is lower
than that of the item in hand belonged to an item whose taker died; a higher one shows that the sender of this item died
before it left the blocks.
"""

from __future__ import annotations

import fcntl
import resource
import socket
import struct
import sys
import termios
import threading
import time
from array import array
from contextlib import suppress
from typing import Any

from shmring.core.base.pace import Pace
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.holders import Process, this_process
from shmring.core.blocks.pages import Pages
from shmring.core.memory.descriptor import Descriptor, above_standard, close_or_keep, passed_on

# At the end of an item: its ticket, the number of its blocks, and its sender.
_TAIL = struct.Struct("<QIIQQ")
TAIL_NBYTES = _TAIL.size
_TICKET = struct.Struct("<Q")

_MOST_IN_MESSAGE = 250  # descriptors; the kernel's limit is 253
_TRUNCATED, _PEEK, _CLOSE_ON_EXEC = int(socket.MSG_CTRUNC), int(socket.MSG_PEEK), int(socket.MSG_CMSG_CLOEXEC)
_CONTROL_NBYTES = socket.CMSG_SPACE(_MOST_IN_MESSAGE * 4)
_MESSAGE_NBYTES = 1024  # of the socket's memory that one takes, at most
_BUFFER_NBYTES = 1 << 20  # for the descriptors in flight; the kernel gives less to most users
UNSEEN_S = 1.0  # how long to wait for a sender that cannot be seen from here


class Departure:
    """The blocks of one item that is sent.

    Attributes
    ----------
    tail : bytes
        To be sent at the end of the item.
    """

    def __init__(self) -> None:
        self.blocks: list[Pages] = []
        self.tail = b""

    def add(self, pages: Pages) -> int:
        """Have a block leave with the item; its position."""
        self.blocks.append(pages)
        return len(self.blocks) - 1

    def stamp(self) -> None:
        """Make the tail. By the one process that sends items now."""
        own = this_process()
        self.tail = _TAIL.pack(time.monotonic_ns(), len(self.blocks), own.pid, own.start_time, own.pid_ns)


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
        self._room_nbytes = self._out.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def __reduce__(self) -> tuple:
        return _arrived, (passed_on(self._out.fileno()), passed_on(self._in.fileno()))

    def close(self) -> None:
        """Let go of it. What is in flight ends with the last process that has it."""
        for end in ("_out", "_in"):
            if hasattr(self, end):
                getattr(self, end).close()

    __del__ = close_or_keep

    # ---- by the sender of an item ----

    def has_room(self, departure: Departure) -> bool:
        """Whether the blocks of an item can be left here now: `put` will not be refused."""
        used = int.from_bytes(fcntl.ioctl(self._out.fileno(), termios.TIOCOUTQ, b"1234"), sys.byteorder)
        return used + -(-len(departure.blocks) // _MOST_IN_MESSAGE) * _MESSAGE_NBYTES <= self._room_nbytes

    def await_room(self, departure: Departure, timeout_s: float | None) -> bool:
        """Wait until `has_room`; False after the timeout."""
        if self.has_room(departure):
            return True
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pace = Pace()
        while not self.has_room(departure):
            if until is not None and time.monotonic() >= until:
                return False
            pace.pause()
        return True

    def put(self, departure: Departure) -> None:
        """Leave the blocks of an item that was sent. OSError: the kernel refuses; then `put_nothing`."""
        for at in range(0, len(departure.blocks), _MOST_IN_MESSAGE):
            files = [pages.reopen() for pages in departure.blocks[at : at + _MOST_IN_MESSAGE]]
            socket.send_fds(self._out, [departure.tail[: _TICKET.size]], [file.fd for file in files])

    def put_nothing(self, departure: Departure) -> None:
        """Tell the taker of an item, which may be waiting, that its blocks do not come: `put` has failed."""
        with suppress(OSError):
            self._out.send(departure.tail[: _TICKET.size])

    # ---- by the taker of an item ----

    def take(self, tail: bytes) -> Arrival:
        """The blocks of an item that was taken, which has this tail."""
        ticket, count, pid, start_time, pid_ns = _TAIL.unpack(tail)
        files: list[Descriptor] = []
        reason, ended = "", f"process {pid}, which sent it, has ended before it had handed it over"
        while len(files) < count and not reason:
            found = self._look()
            if found is None:
                found = self._await_ticket(Process(pid, start_time, pid_ns))
            if found is None:
                reason = ended
            elif found > ticket:
                reason = f"{ended}, or one that had taken it has"
            else:
                some, flags = self._receive()
                if found == ticket:
                    files += some
                    if flags & _TRUNCATED:
                        reason = "this process has as many files open as it may (ulimit -n)"
                    elif not some:
                        reason = f"the kernel did not let process {pid} pass so many descriptors (ulimit -n)"
        return Arrival(files, reason, pid)

    def _look(self) -> int | None:
        """The ticket of the next message; None if there is none."""
        try:
            return _TICKET.unpack(self._in.recv(_TICKET.size, _PEEK))[0]
        except BlockingIOError:
            return None

    def _await_ticket(self, sender: Process) -> int | None:
        """The ticket of the next message; None if there is none, and the sender leaves no more."""
        pace, began = Pace(), time.monotonic()
        while True:
            ended = sender.has_ended()
            found = self._look()  # after that: what it has left is there now
            if found is not None or ended or (ended is None and time.monotonic() - began > UNSEEN_S):
                return found
            pace.pause()

    def _receive(self) -> tuple[list[Descriptor], int]:
        if self._highest + _MOST_IN_MESSAGE >= self._limit:  # what there is no descriptor for would be lost
            self._limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if self._highest + _MOST_IN_MESSAGE >= self._limit:
                block_pages.raise_limit()
        numbers = array("i")
        _, parts, flags, _ = self._in.recvmsg(_TICKET.size, _CONTROL_NBYTES, _CLOSE_ON_EXEC)
        for _, _, part in parts:
            numbers.frombytes(part[: len(part) - len(part) % numbers.itemsize])
        self._highest = max(numbers, default=0)
        return [Descriptor(int, number) for number in numbers], flags


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
