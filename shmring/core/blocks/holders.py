"""Handles: the words by which a block is found in a process that holds it.

A holder has the file of the block open, and /proc lists what a process has open: so any process of the same user can
open it from there, as a debugger does that only reads (which Yama does not restrict). The handle names the process, by
its pid, PID namespace and start time, and the file, by descriptor, inode and the number of the block. A pid, a
descriptor or an inode that is another's by now is noticed.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from contextlib import suppress

from shmring.core.base.lifecycle import in_child
from shmring.core.base.sysfs import stat_fields
from shmring.core.base.text import size_text
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.pages import Pages
from shmring.errors import BlockLostError, SegmentError

# pid, descriptor, start time, PID namespace, inode, number of the block, its bytes
_HANDLE = struct.Struct("<IIQQQQQ")
HANDLE_NBYTES = _HANDLE.size

MOMENT_S = 0.05  # for which a maker may ask the kernel for a file that is still held


class Process:
    """A process, by what tells it from later ones with its pid."""

    __slots__ = ("pid", "pid_ns", "start_time")

    def __init__(self, pid: int, start_time: int, pid_ns: int) -> None:
        self.pid, self.start_time, self.pid_ns = pid, start_time, pid_ns

    def seen_as(self) -> str | None:
        """Its name in /proc here; None if it has ended; `SegmentError` if this process cannot see it."""
        own = this_process()
        if self.pid == own.pid and self.pid_ns == own.pid_ns and self.start_time == own.start_time:
            return "self"
        if self.pid_ns == own.pid_ns and os.readlink("/proc/self") == str(own.pid):
            return str(self.pid) if start_time_of(str(self.pid)) == self.start_time else None
        return self._found()

    def _found(self) -> str:
        """Its name in /proc, which has other pids than its PID namespace."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.stat(f"/proc/{name}/ns/pid").st_ino == self.pid_ns and start_time_of(name) == self.start_time:
                    with open(f"/proc/{name}/status") as status:
                        pids = next(line.split() for line in status if line.startswith("NSpid:"))
                    if int(pids[-1]) == self.pid:
                        return name
        raise SegmentError(
            errno.ESRCH,
            f"the block is held by process {self.pid} of another PID namespace, which this process cannot see: it has "
            "ended, or is in another container. Start the containers with one PID namespace (docker run --pid=...), or "
            "send the block by a queue that both processes have",
        )

    def has_ended(self) -> bool | None:
        """Whether it has ended; None if this process cannot see it."""
        try:
            return self.seen_as() is None
        except SegmentError:
            return None


def start_time_of(name: str) -> int:
    """When a process in /proc started, in ticks since the start of the machine; 0: there is none, or it has ended."""
    fields = stat_fields(name)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


_this: Process | None = None


def this_process() -> Process:
    """The process itself."""
    global _this
    if _this is None:
        _this = Process(os.getpid(), start_time_of("self"), os.stat("/proc/self/ns/pid").st_ino)
    return _this


@in_child
def _forget() -> None:
    global _this
    _this = None


def handle_of(pages: Pages) -> bytes:
    """The handle of a block, by which it is found as long as this process holds it."""
    known, own = pages.handle, this_process()
    if known is None or known[0] is not own:
        fd = pages.file.fd
        inode = os.fstat(fd).st_ino
        handle = _HANDLE.pack(own.pid, fd, own.start_time, own.pid_ns, inode, pages.number, pages.nbytes)
        known = pages.handle = own, handle
    return known[1]


def number_and_size(handle: bytes) -> tuple[int, int]:
    """The number of the block that a handle is of, and its bytes."""
    return _HANDLE.unpack(handle)[5:]


def taken(handle: bytes) -> Pages:
    """The pages of a block, from the process that holds it.

    Raises `BlockLostError`: that process has ended, or has let the block go; `SegmentError`: it cannot be seen from
    here, or is another user's.
    """
    pid, fd, start_time, pid_ns, inode, number, nbytes = _HANDLE.unpack(handle)
    holder = Process(pid, start_time, pid_ns)
    seen_as = holder.seen_as()
    if seen_as is None:
        raise _lost(holder, nbytes, "has ended")
    path = f"/proc/{seen_as}/fd/{fd}"
    until = time.monotonic() + MOMENT_S
    while True:
        try:
            if os.stat(path).st_ino == inode:
                # Without waiting for the end of a lease, in which the holder asks whether it is alone.
                file = block_pages.opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                status = os.fstat(file.fd)
                if status.st_uid != os.geteuid():  # this process may be root's
                    raise PermissionError
                if status.st_ino == inode and (found := block_pages.adopt(file, number, nbytes)) is not None:
                    return found
            else:
                until = 0.0
        except FileNotFoundError:
            until = 0.0
        except PermissionError as error:
            raise SegmentError(
                errno.EACCES,
                f"the block of process {pid} may not be opened: that process is another user's, or has forbidden "
                "others to look at it (PR_SET_DUMPABLE)",
            ) from error
        except BlockingIOError:
            pass
        if time.monotonic() >= until:
            raise _lost(holder, nbytes, "has ended" if holder.has_ended() else "had let it go")
        time.sleep(0.0005)


def _lost(holder: Process, nbytes: int, what: str) -> BlockLostError:
    return BlockLostError(
        f"a block of {size_text(nbytes)} is lost: process {holder.pid}, which held it, {what} before it was opened "
        "here. In a queue, pipe or channel without a name a block outlives its sender; sent in any other way, a "
        "process that sent it must hold it until it is opened",
        holder.pid,
    )
