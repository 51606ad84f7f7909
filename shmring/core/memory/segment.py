"""Segments of shared memory: created and reserved by one process, attached and checked by others.

A segment is a file in shared memory with a header page. Its life: a process claims its name
(`shmring.core.memory.names`), reserves and maps its memory, stamps its header, fills in the contents and announces it;
others attach; one of them unlinks the name; the memory is freed with the last mapping. ``docs/maintainers/segments.md``
describes every byte.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

from shmring.core.memory import header as headers
from shmring.core.memory import names
from shmring.core.memory.descriptor import Descriptor, passed_on
from shmring.core.memory.family import own_family
from shmring.core.memory.header import ARRAY, CHANNEL, HEADER_NBYTES, KIND_NAMES, OUTBOX, RING, Header
from shmring.core.memory.mapping import Mapping
from shmring.core.memory.reserve import extend, map_file, reserve
from shmring.core.memory.spelling import segment_name
from shmring.core.memory.syscalls import call, refusals
from shmring.errors import ClosedError, SegmentError

__all__ = [
    "ARRAY",
    "CHANNEL",
    "HEADER_NBYTES",
    "OUTBOX",
    "RING",
    "Place",
    "Segment",
    "adopt",
    "attach",
    "create",
    "join",
    "segment_name",
    "try_attach",
]

# A NUMA policy for memory that is about to be allocated: called with a mapping, and offset and bytes of the range.
Place = Callable[[Mapping, int, int], object]


class Segment:
    """A segment mapped into this process; made by `create` and `attach`.

    Garbage collection and the end of the process do what `close` does. A forked child may use and unmap the segments
    that it inherits, but never unlinks their names.

    Attributes
    ----------
    name : str
        The name it has, or had, with the leading slash.
    header : Header
        A copy of its header, checked.
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
        spare: Descriptor | None = None,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self.header = header
        self.mapping = mapping
        self._inode = inode
        self._pid = os.getpid()
        self._claim = claim
        self._spare = spare  # for `reserve`, or for other processes; None if neither is needed
        self._place = place

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
        return -1 if self._spare is None else self._spare.fd

    def share(self) -> None:
        """Let other processes `join` the name, which then stands until all of them have closed. Creator only."""
        assert self._claim is not None
        self._claim.share()

    def alone(self) -> AbstractContextManager[None]:
        """A block that one of the processes sharing the name executes at a time; for microseconds."""
        assert self._claim is not None
        return self._claim.alone()

    def announce(self) -> None:
        """Let other processes attach. Creator only; they see everything written to the segment before."""
        headers.announce(self.mapping)

    @property
    def attached(self) -> int:
        """A 64-bit word in which the creator publishes its progress (`shmring.collectives.bootstrap.rendezvous`); 0 at
        first."""
        return headers.attached(self.mapping)

    @attached.setter
    def attached(self, value: int) -> None:
        headers.set_attached(self.mapping, value)

    def reserve(self, offset: int, nbytes: int) -> None:
        """Give a sparse range its memory and fault it in, zeroed. Creator only; no process may have touched it before.

        Raises `OutOfSharedMemoryError` if there is no room; the range then stays as it was.
        """
        if self.descriptor == -1 or self.mapping.closed:
            raise ClosedError(f"segment {self.name} has no sparse range to reserve, or is closed")
        if self._place is not None:
            self._place(self.mapping, offset, nbytes)
        reserve(self.name, self.descriptor, offset, nbytes)
        self.mapping.prefault(offset, nbytes)

    def grow(self, nbytes: int) -> Mapping:
        """Extend the file of a shared name to ``nbytes``, unless it is as long already, and map all of it anew.

        The header keeps the size that the creator has announced. Raises as `create`; then nothing has changed.
        """
        with refusals(f"extend {self.name}"), names.opened(self.name) as fd:
            if fd is None or names.inode_of(os.fstat(fd)) != self._inode:
                raise SegmentError(f"{self.name} is no longer the name of this segment: its last process has left it")
            if os.fstat(fd).st_size < nbytes:
                reserve(self.name, fd, 0, nbytes)
            return map_file(self.name, fd, nbytes)

    def has_name(self) -> bool:
        """Whether the name refers to this segment still."""
        return names.refers_to(self.name, self._inode)

    def is_live(self) -> bool:
        """Whether the name still refers to this segment and its creator lives. Four system calls; does not wait."""
        with refusals(f"examine {self.name}"):
            if not names.refers_to(self.name, self._inode):
                return False
            with names.opened(self.name) as fd:
                return fd is not None and names.inode_of(os.fstat(fd)) == self._inode and names.is_alive(fd)

    def unlink(self) -> None:
        """Unlink the name if it still refers to this segment. Existing mappings stay valid.

        Any attached process may call this, any number of times; a name that by now refers to another segment stays.
        If a stopped process holds the ``NAME`` lock, the name stays too: that process unlinks it when it continues,
        or the creator's `close` does.
        """
        with suppress(names.NameHeldError):
            if self._claim is not None:
                self._claim.release()
            elif self._pid == os.getpid():
                with refusals(f"unlink {self.name}"):
                    names.remove(self.name, self._inode)

    def close(self) -> None:
        """Unmap; the creator also unlinks. May be called again; ``BufferError`` while there are views of the memory."""
        try:
            if self._claim is not None:
                self._claim.close()
        finally:
            if self._spare is not None:
                self._spare.close()
            self.mapping.close()

    def __enter__(self) -> Segment:
        if self.mapping.closed:
            raise ClosedError(f"segment {self.name} is closed")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        """Pass the segment to another process with its descriptor. Objects that share it there as here pass it once."""
        if self.descriptor < 0:
            raise TypeError(f"segment {self.name} keeps no descriptor, so it cannot be pickled")
        return _adopted, (passed_on(self.descriptor), self.header.kind)

    def __repr__(self) -> str:
        state = ", closed" if self.mapping.closed else ""
        return f"<Segment {self.name}, {KIND_NAMES[self.header.kind]} of {self.nbytes} bytes{state}>"


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
    place: Place | None = None,
) -> Segment:
    """Create a segment, zeroed except for its header; other processes can attach it after `Segment.announce`.

    ``name`` is made by `segment_name`; a stale one is replaced. ``nbytes`` includes the header page. ``kind``
    (`OUTBOX`, `RING`, `ARRAY` or `CHANNEL`), ``rank`` of the creator, ``size`` of its group and ``params``, up to four
    numbers of 64 bits, are for the header. ``prefault`` faults every page in now. The last ``sparse_nbytes`` bytes get
    no memory yet: no process may touch them before `Segment.reserve`, for which the creator keeps one descriptor.
    ``huge`` uses huge pages for the parts that contain whole ones, if the kernel can; it takes no more memory.
    ``place``, a NUMA policy (`shmring.core.placement.numa_policy`), is called for the whole segment, and for each range
    reserved later, before the memory is allocated; it applies to all but the header page.

    Nothing was created after an error: `OutOfSharedMemoryError`, no room; `SegmentError`, a live process holds the
    name, it belongs to another user, or the kernel refuses.
    """
    if nbytes - sparse_nbytes < HEADER_NBYTES:
        raise ValueError(f"nbytes={nbytes - sparse_nbytes}: must be at least {HEADER_NBYTES}, the size of the header")
    if kind not in KIND_NAMES or not 0 <= rank < size:
        raise ValueError(f"kind={kind}, rank={rank}, size={size}: no segment can have these")
    claim: names.Claim | None = None
    spare: Descriptor | None = None
    try:  # from before there is a name: a signal handler may raise anywhere
        with refusals(f"create {name}"):
            claim = names.claim(name)
            if place is not None:
                # Other processes read the header of any file that is long enough, so its page must be reserved first.
                reserve(name, claim.fd, 0, HEADER_NBYTES, needed=nbytes - sparse_nbytes)
                extend(name, claim.fd, nbytes)
                mapping = map_file(name, claim.fd, nbytes)
                place(mapping, 0, nbytes)
            reserve(name, claim.fd, 0, nbytes - sparse_nbytes)
            if sparse_nbytes:
                extend(name, claim.fd, nbytes)
                spare = names.reopen(name, claim.fd)
            if place is None:
                mapping = map_file(name, claim.fd, nbytes)
            if huge:
                call("madvise", mapping.collapse, 0, nbytes - sparse_nbytes)
            if prefault:
                call("madvise", mapping.prefault, 0, nbytes - sparse_nbytes)
            stamp(mapping, kind, rank, size, params)
            return Segment(name, headers.read(mapping), mapping, claim.inode, claim, spare, place)
    except BaseException:
        if spare is not None:
            spare.close()
        if claim is not None:
            claim.drop()
        raise


def stamp(mapping: Mapping, kind: int, rank: int, size: int, params: Sequence[int]) -> None:
    """Write the header of a new segment."""
    nonce = secrets.token_bytes(16)
    headers.stamp(
        mapping,
        kind=kind,
        boot_id=boot_id(),
        nonce=nonce,
        rank=rank,
        size=size,
        params=params,
        family=own_family(),
    )


def attach(name: str, *, kind: int | None = None, rank: int | None = None) -> Segment:
    """Attach a segment that was announced by a creator that is alive; ``kind`` and ``rank`` are expected
    values, None for any.

    `SegmentError` if there is none, or it is stale, not announced yet, or not as expected; the message describes it.
    `OutOfSharedMemoryError` if it cannot be mapped.
    """
    segment, reason = _attach(name, kind, rank)
    if segment is None:
        raise SegmentError(errno.ENOENT, f"cannot attach {name}: {reason}")
    return segment


def join(name: str, *, kind: int) -> Segment | None:
    """Attach and lock a name that its creator shares; None if there is none yet. Raises as `attach`."""
    claim = names.join(name)
    if claim is None:
        return None
    try:
        return _adopt(name, claim.fd, kind, claim=claim)
    except BaseException:
        claim.drop()
        raise


def adopt(fd: int, *, kind: int) -> Segment:
    """Attach by a descriptor received from another process; the segment takes it over. Raises as `attach`."""
    spare = Descriptor(int, fd)
    try:
        status = os.fstat(spare.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size < HEADER_NBYTES:
            raise SegmentError(f"descriptor {fd} is not a segment of this user's")
        return _adopt(f"descriptor {fd}", spare.fd, kind, spare=spare)
    except BaseException:
        spare.close()
        raise


def _adopted(descriptor, kind: int) -> Segment:
    return adopt(descriptor.detach(), kind=kind)


def _adopt(name: str, fd: int, kind: int, claim: names.Claim | None = None, spare: Descriptor | None = None) -> Segment:
    header = _read_header(name, fd)
    if header is None:
        raise SegmentError(f"cannot attach {name}: its creator has not announced it")
    status = os.fstat(fd)
    _check(name, header, status.st_size, kind, None)
    return Segment(name, header, map_file(name, fd, header.nbytes), names.inode_of(status), claim, spare)


def try_attach(
    name: str, *, kind: int | None = None, rank: int | None = None, header_only: bool = False
) -> Segment | None:
    """Attach like `attach`, or return None if there is no name, a stale one, or one not announced yet.

    With ``header_only``, map only the header page.
    """
    return _attach(name, kind, rank, header_only)[0]


def _attach(name: str, kind: int | None, rank: int | None, header_only: bool = False) -> tuple[Segment | None, str]:
    with refusals(f"attach {name}"), names.opened(name) as fd:
        if fd is None:
            return None, "there is no such segment"
        if not names.is_alive(fd):
            return None, "it is stale: its creator is dead"
        status = call("fstat", os.fstat, fd)
        if status.st_size == 0:
            return None, "it is being created"
        if status.st_size < HEADER_NBYTES:
            raise SegmentError(f"{name} is truncated: {status.st_size} bytes cannot hold the header ({HEADER_NBYTES})")
        header = _read_header(name, fd)
        if header is None:
            return None, "its creator has not announced it yet"
        status = call("fstat", os.fstat, fd)  # the file may have grown before the header was announced
        _check(name, header, status.st_size, kind, rank)
        mapping = map_file(name, fd, HEADER_NBYTES if header_only else header.nbytes)
        return Segment(name, header, mapping, names.inode_of(status), spare=_for_observers(fd, header)), ""


def _for_observers(fd: int, header: Header) -> Descriptor | None:
    """A descriptor of the outbox of a rank in another PID namespace: observers in this one see no process that has its
    own (`shmring.core.memory.open_files`)."""
    with suppress(OSError):  # no /proc, or no descriptor left: observers then do not see that rank
        if header.kind == OUTBOX and header.pid_ns not in (0, os.stat("/proc/self/ns/pid").st_ino):
            return Descriptor(os.dup, fd)
    return None


def _read_header(name: str, fd: int) -> Header | None:
    """A copy of the header, None before it is announced; another layout version raises even before."""
    page = map_file(name, fd, HEADER_NBYTES)
    try:
        version = headers.found_version(page)
        if version is not None and version != headers.LAYOUT_VERSION:
            raise SegmentError(
                f"{name} has layout version {version}, expected {headers.LAYOUT_VERSION}: "
                "the processes use different builds of shmring"
            )
        return headers.read(page) if headers.is_ready(page) else None
    finally:
        page.close()


def _check(name: str, header: Header, file_nbytes: int, kind: int | None, rank: int | None) -> None:
    """Check the header that another process wrote."""

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise SegmentError(f"{name} has an invalid header: {what} {found}, expected {expected}")

    expect("magic", f"{header.magic:#018x}", f"{headers.MAGIC:#018x}")
    expect("header size", header.header_nbytes, HEADER_NBYTES)
    expect("uid", header.uid, os.geteuid())
    expect("boot id", uuid.UUID(bytes=header.boot_id), uuid.UUID(bytes=boot_id()))
    if header.kind not in KIND_NAMES:
        expect("kind", header.kind, f"one of {list(KIND_NAMES)}")
    if kind is not None:
        expect("kind", KIND_NAMES[header.kind], KIND_NAMES[kind])
    if not 0 <= header.rank < header.size:
        raise SegmentError(f"{name} has an invalid header: rank {header.rank} of size {header.size}")
    if rank is not None:
        expect("rank", header.rank, rank)
    if not HEADER_NBYTES <= header.nbytes <= file_nbytes:
        raise SegmentError(f"{name} is truncated: its header says {header.nbytes} bytes, the file has {file_nbytes}")


def boot_id() -> bytes:
    """The id of this boot of this machine; zeros where it cannot be read (some sandboxes)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return uuid.UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
