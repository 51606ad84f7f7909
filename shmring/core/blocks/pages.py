"""The memory of a block: a memory file without a name, sealed, and the freed ones that are kept for the next block.

The file has the contents from its beginning on, and a *label* in its last page: what the contents are, and the number
of the block. The kernel counts who has the file open or mapped, and frees it after the last of them, however that ends.
While it is still empty the maker maps it for writing and seals it: no other process can change it, nor its size.

The maker keeps the file of a block that it has dropped, for a moment: when it makes the next one, and the kernel says
that no other process has the file open, its pages are written again, without page faults. The kernel says so by a
*lease* of the file for writing, which is granted only where there is no other open file. So the maker opens the file
anew before it closes the open file that others may share: readers, mappings, sockets, forked children. Then the number
in the label is removed, and the question asked again: a process that opens the file by an old handle either is seen by
the kernel, or finds no number, or another one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import struct
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shmring.core.arrays.dtype_codec import describe, dtype_of
from shmring.core.base.control_groups import memory_room
from shmring.core.base.lifecycle import in_child
from shmring.core.base.sysfs import read
from shmring.core.memory.descriptor import Descriptor, close_or_keep
from shmring.core.memory.mapping import READ_ONLY, Mapping, allocate
from shmring.core.memory.syscalls import call
from shmring.errors import OutOfSharedMemoryError, SegmentError

MEMFD = "shmring-block"  # what /proc calls the file
TARGET = f"/memfd:{MEMFD} (deleted)"

KEPT_NBYTES = 512 << 20  # of freed files, in a process
KEPT_FILES = 32
KEPT_S = 0.4  # a file that was not used again for so long is given back
LOOK_S = 0.1
SILENT_S = 1.0  # a thread that has not looked for so long has ended, however it did

PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")

_ADD_SEALS, _GET_SEALS = 1033, 1034  # F_ADD_SEALS, F_GET_SEALS
_SEAL_SIZE = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10  # since Linux 5.1
_PART_NBYTES = 64 << 20
_COUNTED_NBYTES = 4 << 20  # from here on the memory that is left is looked up first: that takes the time of a small one

LABEL_NBYTES = PAGE_NBYTES
_MAGIC = b"shmblock"
_LABEL = struct.Struct("<Q8sQII")  # number, magic, bytes of the contents, dimensions, bytes of the dtype's description
_NUMBER = struct.Struct("<Q")
_MOST_DIMENSIONS = 64

_FREED = 0  # in place of the number while the file may be used again


class Pages:
    """The file of a block, as one process holds it. Arrays of its memory keep it, and so the block, too.

    Attributes
    ----------
    file : Descriptor
        Open for reading, and what other processes are given. Its number is part of the handle by which they find it.
    mapping : Mapping
        The whole file: writable in the maker, else not.
    number : int
        That of the block; no other block ever has it.
    """

    __slots__ = (
        "__weakref__", "dtype", "file", "handle", "is_filled", "is_own", "mapping", "nbytes", "number", "shape",
    )  # fmt: skip

    def __init__(self, file: Descriptor, mapping: Mapping, is_own: bool, is_filled: bool = False) -> None:
        self.file, self.mapping, self.is_own = file, mapping, is_own
        self.is_filled = is_filled  # whether the page table of this process has all pages
        self.handle: tuple[Any, bytes] | None = None  # core/blocks/holders.py
        self.number = _FREED  # the last: `close` looks for it

    def label(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Say what the contents are, and give the block its number. Maker only."""
        text = describe(dtype)
        self.dtype, self.shape, self.nbytes = dtype, shape, dtype.itemsize * prod(shape)
        self.number = int.from_bytes(os.urandom(8), "little") or 1
        extents = struct.pack(f"<{len(shape)}Q", *shape)
        if _LABEL.size + len(extents) + len(text) > LABEL_NBYTES:
            raise TypeError(f"dtype={dtype}: its description has {len(text)} bytes, which is too long")
        with memoryview(self.mapping) as view, view[-LABEL_NBYTES:] as page:
            rest = _LABEL.pack(_FREED, _MAGIC, self.nbytes, len(shape), len(text))[_NUMBER.size :] + extents + text
            page[_NUMBER.size : _NUMBER.size + len(rest)] = rest
            page[: _NUMBER.size] = _NUMBER.pack(self.number)

    def read_label(self, number: int) -> bool:
        """Learn what the contents are; False if the file has another block by now. `SegmentError`: it is no block."""
        page = os.pread(self.file.fd, LABEL_NBYTES, self.mapping.nbytes - LABEL_NBYTES)  # saves a page fault
        found, magic, self.nbytes, ndim, text_nbytes = _LABEL.unpack_from(page)
        at = _LABEL.size + 8 * ndim
        if magic != _MAGIC or ndim > _MOST_DIMENSIONS or at + text_nbytes > LABEL_NBYTES:
            raise SegmentError("this file is no block: its label is not as a maker writes it")
        if found != number:
            return False
        self.shape = struct.unpack_from(f"<{ndim}Q", page, _LABEL.size)
        self.number, self.dtype = number, dtype_of(page[at : at + text_nbytes])
        if prod(self.shape) * self.dtype.itemsize != self.nbytes or self.nbytes > self.mapping.nbytes - LABEL_NBYTES:
            raise SegmentError(f"this file is no block: its label says {self.dtype} {self.shape}, {self.nbytes} bytes")
        return True

    def write_number(self, number: int) -> None:
        """Put the number of the block, or `_FREED`, into the label. Maker only."""
        with memoryview(self.mapping) as view:
            view[-LABEL_NBYTES : len(view) - LABEL_NBYTES + _NUMBER.size] = _NUMBER.pack(number)

    def close(self) -> None:
        """Let the file go. Called when neither the block nor any array of it is left."""
        if getattr(self, "number", _FREED) and self.is_own:  # an interrupt of __init__ leaves it without
            keep(self)

    __del__ = close_or_keep


# -- descriptors ------------------------------------------------------------------------------------------------------


def opened(opening: Callable, *args: Any) -> Descriptor:
    """A descriptor of a block. Where the process has no descriptor left, freed files are given back, and the soft limit
    is raised as far as the hard one allows; then `SegmentError`."""
    for repair in (give_back, raise_limit, None):
        try:
            return Descriptor(opening, *args)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            if repair is None:
                soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise SegmentError(
                    errno.EMFILE,
                    f"this process has as many files open as it may, {soft}, and each block that it holds is one: "
                    "close blocks, or raise the limit (ulimit -n)",
                ) from error
            repair()
    raise AssertionError


def _reopened(fd: int) -> int:
    """Not a duplicate but an open file of its own, for reading."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def raise_limit() -> None:
    """Raise the soft limit of open files as far as the hard one allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 1 << 20, hard))


# -- making -----------------------------------------------------------------------------------------------------------


def make(nbytes: int, contents: np.ndarray | None = None) -> Pages:
    """Pages for ``nbytes`` bytes: those of a block that was freed, or new ones; with ``contents``, if given, a
    contiguous array of bytes.

    Raises `OutOfSharedMemoryError`: no memory; `SegmentError`: no descriptor, or the kernel has no memory files.
    """
    file_nbytes = _rounded(nbytes) + LABEL_NBYTES
    pages = _used_again(file_nbytes)
    if pages is None:
        return _new(file_nbytes, nbytes, contents)
    if not pages.is_filled:
        pages.mapping.prefault()
        pages.is_filled = True
    if contents is not None:
        np.frombuffer(pages.mapping, np.uint8, nbytes)[:] = contents
    return pages


def _rounded(nbytes: int) -> int:
    """Room for that many bytes: one of eight sizes between a power of two and the next, so that freed files fit."""
    unit = max(PAGE_NBYTES, 1 << max(0, nbytes - 1).bit_length() >> 4)
    return max(1, -(-nbytes // unit)) * unit


def _new(file_nbytes: int, nbytes: int, contents: np.ndarray | None) -> Pages:
    try:
        file = opened(call, "memfd_create", os.memfd_create, MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise SegmentError(error.errno or errno.EIO, f"cannot make a block: memfd_create: {error.strerror}") from error
    try:
        _reserve(file.fd, file_nbytes)
        if contents is not None:  # while writing is allowed: with mapped memory there would be a fault for each page
            for at in range(0, nbytes, _PART_NBYTES):
                _write(file.fd, contents[at : at + _PART_NBYTES], at)
        mapping = call("mmap", Mapping, file.fd, file_nbytes)
        fcntl.fcntl(file.fd, _ADD_SEALS, _sealing())
        return Pages(opened(_reopened, file.fd), mapping, True)
    finally:
        file.close()


def _write(fd: int, part: np.ndarray, at: int) -> None:
    while part.nbytes:
        written = os.pwrite(fd, part.data, at)
        part, at = part[written:], at + written


_seals: int | None = None


def _sealing() -> int:
    """The seals that this kernel has for the file of a block."""
    global _seals
    if _seals is None:
        trial = Descriptor(os.memfd_create, MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fcntl.fcntl(trial.fd, _ADD_SEALS, _SEAL_SIZE | _SEAL_FUTURE_WRITE)
            _seals = _SEAL_SIZE | _SEAL_FUTURE_WRITE
        except OSError:
            _seals = _SEAL_SIZE
        finally:
            trial.close()
    return _seals


def _reserve(fd: int, nbytes: int) -> None:
    try:
        if nbytes >= _COUNTED_NBYTES and 0 <= available_nbytes() < nbytes:  # else the kernel would end a process
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        call("posix_fallocate", allocate, fd, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        available = available_nbytes()
        raise OutOfSharedMemoryError(
            f"no memory for a block of {nbytes} bytes: {available if available >= 0 else 'an unknown number of'} bytes "
            "are available to this process. The memory of its control group, or container, and that of the machine "
            "count (docker run --memory=2g); the size of /dev/shm does not",
            nbytes,
            available,
        ) from error


def available_nbytes() -> int:
    """Bytes that a block can have now: of the machine, and of the memory control group; -1 if unknown."""
    table = dict(line.split(":", 1) for line in read(Path("/proc/meminfo")).splitlines() if ":" in line)
    with suppress(KeyError, ValueError):
        machine = sum(int(table[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
        room = memory_room()
        return machine if room is None else min(machine, room)
    return -1


# -- taking -----------------------------------------------------------------------------------------------------------


def adopt(file: Descriptor, number: int, nbytes: int) -> Pages | None:
    """The pages of a block of ``nbytes`` bytes, by a descriptor from another process; None if the file has another
    block by now. `SegmentError` if it has none."""
    try:
        if fcntl.fcntl(file.fd, _GET_SEALS) & _SEAL_SIZE != _SEAL_SIZE:
            raise ValueError("it is not sealed")
        pages = Pages(file, call("mmap", Mapping, file.fd, _rounded(nbytes) + LABEL_NBYTES, 0, READ_ONLY), False)
    except (OSError, ValueError) as error:  # EINVAL: no memory file
        raise SegmentError(errno.EBADF, f"descriptor {file.fd} is not the file of a block: {error}") from error
    return pages if pages.read_label(number) else None


# -- what is kept for a moment ----------------------------------------------------------------------------------------


class Freed(NamedTuple):
    """A file that is kept for the next block."""

    since: float
    number: int  # of the block whose file it was, and still is if other processes hold it
    file: Descriptor
    mapping: Mapping
    is_filled: bool


_freed: deque[Freed] = deque()  # oldest first
_kept: deque[Callable[[], bool]] = deque()  # what `keep_while` was called with
_NEVER = float("-inf")
_looked_at = _NEVER  # when the thread that gives files back has last looked


def keep(dropped: Pages) -> None:
    """Keep the file of a block that its maker has dropped, for a moment. Called by finalizers: takes no lock."""
    if dropped.mapping.nbytes <= KEPT_NBYTES // 2:
        with suppress(OSError):  # under another number, where no handle leads
            file = Descriptor(_reopened, dropped.file.fd)
            dropped.file.close()
            # A process that opens the file while the lease is held is one with an old handle. The kernel tells the
            # holder by a signal, by default SIGIO, which would end the process; this one does nothing.
            fcntl.fcntl(file.fd, fcntl.F_SETSIG, signal.SIGURG)
            _freed.append(Freed(time.monotonic(), dropped.number, file, dropped.mapping, dropped.is_filled))
        while len(_freed) > KEPT_FILES or sum(freed.mapping.nbytes for freed in list(_freed)) > KEPT_NBYTES:
            with suppress(IndexError):
                _freed.popleft()
        _have_thread()


def keep_while(is_wanted: Callable[[], bool]) -> None:
    """Keep what ``is_wanted`` refers to, such as blocks, until it is False, or this process ends."""
    _kept.append(is_wanted)
    _have_thread()


def _have_thread() -> None:
    global _looked_at
    if (_freed or _kept) and time.monotonic() - _looked_at > SILENT_S:
        _looked_at = time.monotonic()
        try:
            start_new_thread(_give_back_in_time, ())
        except RuntimeError:  # the interpreter ends
            _looked_at = _NEVER
            _freed.clear()


def _used_again(file_nbytes: int) -> Pages | None:
    """A kept file of that size which no other process has any more."""
    for freed in list(_freed):
        if freed.mapping.nbytes == file_nbytes and _is_alone(freed.file.fd):
            try:
                _freed.remove(freed)
            except ValueError:  # another thread was quicker
                continue
            pages = Pages(freed.file, freed.mapping, True, freed.is_filled)
            pages.write_number(_FREED)  # an old handle leads to no block from here on; but it may have until now
            if _is_alone(freed.file.fd):
                return pages
            pages.write_number(freed.number)
            _freed.appendleft(freed)
    return None


def _is_alone(fd: int) -> bool:
    """Whether no other open file refers to the file, of any process."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def give_back() -> None:
    """Give all kept files back to the kernel."""
    _freed.clear()


def _give_back_in_time() -> None:
    """The thread's function: it ends when nothing is kept."""
    global _looked_at
    while _freed or _kept:
        _looked_at = time.monotonic()
        time.sleep(LOOK_S)
        for _ in range(len(_kept)):
            is_wanted = _kept.popleft()
            if is_wanted():
                _kept.append(is_wanted)
            del is_wanted
        oldest = time.monotonic() - KEPT_S
        with suppress(IndexError):
            while _freed[0].since < oldest:
                _freed.popleft()
    _looked_at = _NEVER
    _have_thread()  # a file may have been kept meanwhile, by a call that has seen this thread


@in_child
def _forget() -> None:
    global _looked_at
    _looked_at = _NEVER
    _freed.clear()
    _kept.clear()
