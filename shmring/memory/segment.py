"""Segments of shared memory: created and reserved by one process, attached and checked by others.

A segment is a file in shared memory with a header page. Its life: its name is claimed (`shmring.memory.names`), its memory is
reserved and mapped, its header is stamped, its creator fills in what it likes and announces it; others attach; somebody
unlinks the name; it ends with its last mapping. ``docs/segments.md`` tells it byte by byte.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple

from shmring.errors import ClosedError, OutOfSharedMemoryError, SegmentError
from shmring.memory import header as headers
from shmring.memory import names
from shmring.memory.header import ARRAY, CHANNEL, HEADER_NBYTES, KIND_NAMES, OUTBOX, RING, Header
from shmring.memory.mapping import Mapping
from shmring.memory.names import segment_name

__all__ = [
    "ARRAY",
    "CHANNEL",
    "HEADER_NBYTES",
    "OUTBOX",
    "RING",
    "Leftover",
    "Segment",
    "adopt",
    "attach",
    "create",
    "join",
    "leftovers",
    "segment_name",
    "sweep",
    "sweep_after",
    "try_attach",
]

# Called with a mapping, and the offset and bytes of a range of it that is about to get its memory.
Place = Callable[[Mapping, int, int], object]

# How long a death that one look has shown may stay hidden from another: a dying process lets go of its liveness one
# after the other within microseconds, when the kernel gets round to it, and of its names a little later.
DEATH_GRACE_S = 1.0

# What the kernel answers when it has no room for a file's pages: file system, memory or its control group, quota,
# RLIMIT_FSIZE.
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)


class Segment:
    """A segment mapped into this process; made by `create` and `attach`.

    Dropping it, or the end of the process, does what `close` does. A forked child may use and unmap what it inherits;
    the names stay its parent's affair.

    Attributes
    ----------
    name : str
        The name it has, or had, with the leading slash.
    header : Header
        The checked copy of its header.
    mapping : Mapping
        Its memory, header page included.
    """

    def __init__(
        self,
        name: str,
        header: Header,
        mapping: Mapping,
        inode: tuple[int, int],
        claim: names.Claim | None = None,
        spare: int = -1,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self.header = header
        self.mapping = mapping
        self._inode = inode
        self._pid = os.getpid()
        self._claim = claim
        if claim is not None:
            weakref.finalize(self, _let_go, claim)
        self._spare = spare  # a descriptor for `reserve`, if there is anything left to reserve, or for others
        self._place = place
        self._close_spare = weakref.finalize(self, os.close, spare) if spare >= 0 else None

    @property
    def nbytes(self) -> int:
        """Size in bytes, header page included."""
        return self.mapping.nbytes

    @property
    def rank(self) -> int:
        """The creator's rank."""
        return self.header.rank

    @property
    def descriptor(self) -> int:
        """A descriptor of its file without any locks, for `adopt` in another process; -1 if none was kept."""
        return self._spare

    def share(self) -> None:
        """Let others `join` the name, which then stands as long as any of them has not closed. Creator only."""
        assert self._claim is not None
        self._claim.share()

    def alone(self) -> AbstractContextManager[None]:
        """A block in which no other that shares the name is in one: for what is done in microseconds."""
        assert self._claim is not None
        return self._claim.alone()

    def announce(self) -> None:
        """Let others attach. Creator only; they will see everything written to the segment before."""
        headers.announce(self.mapping)

    @property
    def attached(self) -> int:
        """A 64-bit word by which the creator tells whom it has attached (`shmring.bootstrap.rendezvous`); 0 at first."""
        return headers.attached(self.mapping)

    @attached.setter
    def attached(self, value: int) -> None:
        headers.set_attached(self.mapping, value)

    def reserve(self, offset: int, nbytes: int) -> None:
        """Give a sparse range its memory and fault it in, zeroed. Creator only; nobody may have touched it before.

        Raises `OutOfSharedMemoryError` if there is no room; the range then stays as it was.
        """
        if self._spare < 0 or self.mapping.closed:
            raise ClosedError(f"segment {self.name} has nothing to reserve, or is closed")
        if self._place is not None:
            self._place(self.mapping, offset, nbytes)
        _reserve(self.name, self._spare, offset, nbytes)
        self.mapping.prefault(offset, nbytes)

    def is_live(self) -> bool:
        """Whether the name still refers to this segment and its creator lives: four system calls, no waiting."""
        with names.refusals(f"look after {self.name}"):
            if not names.refers_to(self.name, self._inode):
                return False
            with names.opened(self.name) as fd:
                return fd is not None and names.inode_of(os.fstat(fd)) == self._inode and names.is_alive(fd)

    def unlink(self) -> None:
        """Take the name away if it still refers to this segment. Whoever has the segment mapped keeps it.

        Anyone attached may do it, and twice is fine; a name that meanwhile means another segment stays. So does one
        that a stopped process has in its hands: it takes it away when it goes on, or the creator's `close` does.
        """
        with suppress(names.NameHeldError):
            if self._claim is not None:
                self._claim.release()
            elif self._pid == os.getpid():
                with names.refusals(f"unlink {self.name}"):
                    names.remove(self.name, self._inode)

    def close(self) -> None:
        """Unmap; the creator also unlinks. Twice is fine; ``BufferError`` while views look at the memory."""
        if self._claim is not None:
            _let_go(self._claim)
        if self._close_spare is not None:
            self._close_spare()
            self._spare = -1
        self.mapping.close()

    def __enter__(self) -> Segment:
        if self.mapping.closed:
            raise ClosedError(f"segment {self.name} is closed")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.mapping.closed else ""
        return f"<Segment {self.name}, {KIND_NAMES[self.header.kind]} of {self.nbytes} bytes{state}>"


def _let_go(claim: names.Claim) -> None:
    """Take the name away, or leave it, stale, to who has stopped with it in his hands, or to a sweep if he dies."""
    try:
        claim.release()
    except names.NameHeldError:
        claim.abandon()


def create(
    name: str,
    nbytes: int,
    *,
    kind: int,
    rank: int = 0,
    size: int = 1,
    params: Sequence[int] = (),
    prefault: bool = True,
    sparse_nbytes: int = 0,
    huge: bool = False,
    keep_descriptor: bool = False,
    place: Place | None = None,
) -> Segment:
    """Create a segment, all zero but for its header; others can attach it after `Segment.announce`.

    Parameters
    ----------
    name : str
        From `segment_name`. If a dead process has left that name, it is replaced.
    nbytes : int
        Header page included.
    kind, rank, size, params
        For the header: `OUTBOX`, `RING`, `ARRAY` or `CHANNEL`; the creator's rank and the size of its group; up to
        four numbers of 64 bits.
    prefault : bool, default True
        Fault every page in now.
    sparse_nbytes : int, default 0
        How many bytes at the end get no memory yet. They must not be touched, by anyone, before `Segment.reserve`. For
        these the creator keeps one descriptor as long as the segment.
    huge : bool, default False
        Make huge pages of those parts of the segment that hold whole ones, if the kernel can; it takes no more memory.
    keep_descriptor : bool, default False
        Keep one anyway, by which other processes can attach once the name is gone (`Segment.descriptor`).
    place : callable, optional
        Called for the whole segment, and again for each range that is reserved later, before there is memory
        (`shmring.placement.numa_policy`); all but the header page lies where it says.

    Raises
    ------
    OutOfSharedMemoryError
        No room. Nothing was created.
    SegmentError
        The name is held by a live process, or is not ours to take, or the kernel refuses. Nothing was created.
    """
    if nbytes - sparse_nbytes < HEADER_NBYTES:
        raise ValueError(f"nbytes={nbytes - sparse_nbytes} does not hold the header ({HEADER_NBYTES} bytes)")
    if kind not in KIND_NAMES or not 0 <= rank < size:
        raise ValueError(f"no header for kind={kind}, rank={rank}, size={size}")
    with names.refusals(f"create {name}"):
        claim = names.claim(name)
        spare = -1
        try:
            if place is not None:
                # Others look at the header of whatever has room for one, so it must be there before the rest has room.
                _reserve(name, claim.fd, 0, HEADER_NBYTES, needed=nbytes - sparse_nbytes)
                _extend(name, claim.fd, nbytes)
                mapping = _map(name, claim.fd, nbytes)
                place(mapping, 0, nbytes)
            _reserve(name, claim.fd, 0, nbytes - sparse_nbytes)
            if sparse_nbytes:
                _extend(name, claim.fd, nbytes)
            if sparse_nbytes or keep_descriptor:
                spare = names.reopen(name, claim.fd)
            if place is None:
                mapping = _map(name, claim.fd, nbytes)
            if huge:
                names.call("madvise", mapping.collapse, 0, nbytes - sparse_nbytes)
            if prefault:
                names.call("madvise", mapping.prefault, 0, nbytes - sparse_nbytes)
            nonce = secrets.token_bytes(16)
            headers.stamp(mapping, kind=kind, boot_id=_boot_id(), nonce=nonce, rank=rank, size=size, params=params)
            return Segment(name, headers.read(mapping), mapping, claim.inode, claim, spare, place)
        except BaseException:
            if spare >= 0:
                os.close(spare)
            claim.release()
            raise


def attach(name: str, *, kind: int | None = None, rank: int | None = None) -> Segment:
    """Attach a segment whose creator lives and has announced it.

    Parameters
    ----------
    name : str
        From `segment_name`.
    kind, rank : int, optional
        What it must be; None takes any.

    Raises
    ------
    SegmentError
        There is none, or it is stale, not announced yet, or not what it should be; the message says what was found.
    OutOfSharedMemoryError
        It cannot be mapped.
    """
    segment, reason = _attach(name, kind, rank)
    if segment is None:
        raise SegmentError(errno.ENOENT, f"cannot attach {name}: {reason}")
    return segment


def join(name: str, *, kind: int) -> Segment | None:
    """Attach and hold the name, which its creator shares; None if there is nothing there (yet). Raises as `attach`."""
    claim = names.join(name)
    if claim is None:
        return None
    try:
        return _adopt(name, claim.fd, kind, claim=claim)
    except BaseException:
        claim.release()
        raise


def adopt(fd: int, *, kind: int) -> Segment:
    """Attach by a descriptor from another process, which becomes this segment's own. Raises as `attach`."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size < HEADER_NBYTES:
            raise SegmentError(f"descriptor {fd} is not a segment of this user's")
        return _adopt(f"descriptor {fd}", fd, kind, spare=fd)
    except BaseException:
        os.close(fd)
        raise


def _adopt(name: str, fd: int, kind: int, claim: names.Claim | None = None, spare: int = -1) -> Segment:
    header = _read_header(name, fd)
    if header is None:
        raise SegmentError(f"cannot attach {name}: its creator has not announced it")
    status = os.fstat(fd)
    _check(name, header, status.st_size, kind, None)
    return Segment(name, header, _map(name, fd, header.nbytes), names.inode_of(status), claim, spare)


def try_attach(
    name: str, *, kind: int | None = None, rank: int | None = None, header_only: bool = False
) -> Segment | None:
    """Attach like `attach`; None if there is nothing there yet: no name, a stale one, one not announced.

    With ``header_only`` no more than the header page is mapped.
    """
    return _attach(name, kind, rank, header_only)[0]


def _attach(name: str, kind: int | None, rank: int | None, header_only: bool = False) -> tuple[Segment | None, str]:
    with names.refusals(f"attach {name}"), names.opened(name) as fd:
        if fd is None:
            return None, "there is no such segment"
        if not names.is_alive(fd):
            return None, "it is stale, its creator is dead"
        status = names.call("fstat", os.fstat, fd)
        if status.st_size == 0:
            return None, "it is being created"
        if status.st_size < HEADER_NBYTES:
            raise SegmentError(f"{name} is truncated: {status.st_size} bytes cannot hold the header ({HEADER_NBYTES})")
        header = _read_header(name, fd)
        if header is None:
            return None, "its creator has not announced it yet"
        _check(name, header, status.st_size, kind, rank)
        mapping = _map(name, fd, HEADER_NBYTES if header_only else header.nbytes)
        return Segment(name, header, mapping, names.inode_of(status)), ""


def _read_header(name: str, fd: int) -> Header | None:
    """A copy of the header once it is announced, None before; another layout version is refused without waiting."""
    page = _map(name, fd, HEADER_NBYTES)
    try:
        version = headers.found_version(page)
        if version is not None and version != headers.LAYOUT_VERSION:
            raise SegmentError(
                f"{name} has layout version {version}, expected {headers.LAYOUT_VERSION}: "
                "two builds of shmring are at work here"
            )
        return headers.read(page) if headers.is_ready(page) else None
    finally:
        page.close()


def _check(name: str, header: Header, file_nbytes: int, kind: int | None, rank: int | None) -> None:
    """Judge what another process wrote."""

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise SegmentError(f"{name} is not to be trusted: its header has {what} {found}, expected {expected}")

    expect("magic", f"{header.magic:#018x}", f"{headers.MAGIC:#018x}")
    expect("header size", header.header_nbytes, HEADER_NBYTES)
    expect("uid", header.uid, os.geteuid())
    expect("boot id", uuid.UUID(bytes=header.boot_id), uuid.UUID(bytes=_boot_id()))
    if header.kind not in KIND_NAMES:
        expect("kind", header.kind, f"one of {list(KIND_NAMES)}")
    if kind is not None:
        expect("kind", KIND_NAMES[header.kind], KIND_NAMES[kind])
    if not 0 <= header.rank < header.size:
        raise SegmentError(f"{name} is not to be trusted: its header has rank {header.rank} of size {header.size}")
    if rank is not None:
        expect("rank", header.rank, rank)
    if not HEADER_NBYTES <= header.nbytes <= file_nbytes:
        raise SegmentError(f"{name} is truncated: its header says {header.nbytes} bytes, the file has {file_nbytes}")


@contextmanager
def _room(name: str, nbytes: int) -> Iterator[None]:
    """Make it an `OutOfSharedMemoryError` that the kernel has no room for so many bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        free = names.free_nbytes()
        raise OutOfSharedMemoryError(
            f"cannot reserve {nbytes} bytes of shared memory for {name}: {error.strerror}; {names.SHM_DIRECTORY} has "
            f"{free if free >= 0 else 'an unknown number of'} bytes free. Give it more (docker run --shm-size=1g, "
            "or mount -o remount,size=1g /dev/shm), use smaller or fewer slots, or look for leftovers (shmring info)",
            nbytes,
            free,
        ) from error


def _extend(name: str, fd: int, nbytes: int) -> None:
    """Make the file so long; its new pages get no memory."""
    with _room(name, nbytes):
        names.call("ftruncate", os.ftruncate, fd, nbytes)


def _reserve(name: str, fd: int, offset: int, nbytes: int, *, needed: int = 0) -> None:
    """Give the file its pages now: later the kernel could only say SIGBUS. ``needed`` counts those to come, too."""
    with _room(name, needed or nbytes):
        names.call("posix_fallocate", os.posix_fallocate, fd, offset, nbytes)


def _map(name: str, fd: int, nbytes: int) -> Mapping:
    try:
        return names.call("mmap", Mapping, fd, nbytes)
    except ValueError as error:  # the file was cut short since we looked at its size
        raise SegmentError(f"cannot map {name}: {error}") from error


def _boot_id() -> bytes:
    """The id of this boot of this machine; zeros where the kernel does not tell (some sandboxes)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return uuid.UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


class Leftover(NamedTuple):
    """A name of this user's that stands in shared memory: of a rendezvous under way, or left by a killed one.

    ``status`` is ``"live"``, ``"stale"``, or says what else stands there; ``pid`` is 0 if unknown.
    """

    name: str
    nbytes: int
    status: str
    pid: int


def leftovers(session: str | None = None) -> list[Leftover]:
    """All names of this user's segments (of one session), sorted. Segments whose ranks have met have none."""
    return list(_standing(names.user_prefix() if session is None else names.session_prefix(session)))


def sweep(session: str) -> list[str]:
    """Unlink what a finished session and its sub-sessions left; return the names. Those of live creators stay.

    For launchers, once all their children have ended.
    """
    stale = [leftover.name for leftover in _standing(names.session_prefix(session)) if leftover.status == "stale"]
    with names.refusals(f"sweep session {session!r}"):
        return [name for name in stale if names.remove_stale(name)]


def sweep_after(session: str, pids: Iterable[int], patience_s: float = DEATH_GRACE_S) -> None:
    """Unlink what these processes, which have died, left of a session; nobody else of it need know those names.

    A dying process lets go of its names a moment after its liveness has broken, so they are waited for. So are, for as
    long, names under which no pid is written yet: somebody was just about to.
    """
    awaited = {0, *pids}
    deadline = time.monotonic() + patience_s
    with suppress(SegmentError):
        sweep(session)
        while any(name.pid in awaited for name in leftovers(session)) and time.monotonic() < deadline:
            time.sleep(0.001)
            sweep(session)


def _standing(prefix: str) -> Iterator[Leftover]:
    entries = os.listdir(names.SHM_DIRECTORY) if os.path.isdir(names.SHM_DIRECTORY) else []
    for name in sorted("/" + entry for entry in entries if ("/" + entry).startswith(prefix)):
        try:
            with names.opened(name) as fd:
                if fd is not None:
                    status = "live" if names.is_alive(fd) else "stale"
                    yield Leftover(name, os.fstat(fd).st_size, status, names.pid_of(fd))
        except SegmentError as error:
            yield Leftover(name, 0, error.strerror or str(error), 0)
