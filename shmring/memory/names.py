"""Names in shared memory, and who holds them. The only user of posix_ipc.

The creator of a segment opens its name exclusively and holds a lock on it for as long as the name stands. The kernel
lets go of the lock when the creator dies, so a name whose lock nobody holds is *stale*, whatever else it says. Two
bytes of every segment serve as locks (as positions, their contents are not touched):

``LIFE``
    Held by the creator, and by nobody else, from creation until the name is gone.
    Of a name that many share (a channel's, by which a restarted end finds it again) all that are attached hold it, for
    reading, and who lets go last takes the name away.
``NAME``
    Held for microseconds by whoever is about to change what the name means: the creator while it takes ``LIFE``,
    anyone while he unlinks. Under it, "the name refers to this file" stays true until acted upon.

They are open-file-description locks. Like ``flock`` they belong to the open file, so threads exclude each other and
closing another descriptor of the same file loses nothing (POSIX record locks fail both). Unlike ``flock`` they can be
asked about without being taken, and there can be two. Like ``flock`` they survive in a forked child, so a child closes
what it inherited (`_close_inherited`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import posix_ipc

from shmring.errors import OutOfSharedMemoryError, SegmentError, ShmringError
from shmring.memory import header as headers
from shmring.memory.mapping import Mapping

# Where shm_open keeps its names on Linux, in glibc as in musl. Used to look at names, never to open them.
SHM_DIRECTORY = "/dev/shm"

LIFE, NAME = 0, 1

# An empty file whose LIFE is free is either being born (opened, not locked yet) or its creator died in between. Only
# watching tells. A creator that pauses for longer finds its name gone once it has the lock, and starts again.
BIRTH_GRACE_S = 0.1

# How long to wait for NAME. It is held for microseconds, so running out of patience means that its holder is stopped.
NAME_PATIENCE_S = 1.0

# How long to unlink what others unlink as well: whoever is stopped with the name in his hands was about to.
UNLINK_PATIENCE_S = 0.2

# How long to try to get a name while others keep taking it away.
CLAIM_PATIENCE_S = 5.0

# Fault injection: if set, called with the name of each system call of this module and memory/segment.py before it is made.
fault: Callable[[str], None] | None = None


def call(name: str, function: Callable, *args: Any) -> Any:
    """Make the system call ``name``: all pass here, so that a test can make each of them fail."""
    if fault is not None:
        fault(name)
    return function(*args)


class NameHeldError(SegmentError):
    """A name is in the hands of a process that has stopped while it was creating or unlinking it."""


@contextmanager
def refusals(task: str) -> Iterator[None]:
    """Turn what the kernel refuses, and nobody has a better word for, into a `SegmentError`."""
    try:
        yield
    except ShmringError:
        raise
    except OSError as error:
        raise SegmentError(error.errno or errno.EIO, f"cannot {task}: {error.strerror or error}") from error


# -- spelling ---------------------------------------------------------------------------------------------------------


def _slug(key: str) -> str:
    """``key`` as letters, digits, ``_`` and ``.``: readable, and as distinct as its hash."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "_", key)[:24].strip("_")
    return f"{readable}.{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


def user_prefix() -> str:
    """What all names of this user's segments start with."""
    return f"/shmring-{os.geteuid()}-"


def session_prefix(session: str) -> str:
    """What all names of a session and its sub-sessions start with."""
    return f"{user_prefix()}{_slug(session.partition('/')[0])}-"


def segment_name(session: str, part: str | int) -> str:
    """The name of one segment of a session: ``/shmring-UID-SESSION-PART``, at most 141 bytes.

    Parameters
    ----------
    session : str
        Any text. What follows a first ``/`` names a sub-session, which `sweep` counts to its session.
    part : str or int
        Which segment: 1 to 64 letters, digits, ``_``, ``.``, ``-``.
    """
    part = str(part)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", part):
        raise ValueError(f"part={part!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
    _, slash, rest = session.partition("/")
    return session_prefix(session) + (f"{_slug(rest)}-" if slash else "") + part


# -- opening ----------------------------------------------------------------------------------------------------------


def _open_new(name: str) -> int | None:
    """Create ``name`` exclusively, empty, mode 0600; the descriptor, or None if the name is taken."""
    try:
        return call("shm_open", posix_ipc.SharedMemory, name, posix_ipc.O_CREX, 0o600, 0).fd
    except posix_ipc.ExistentialError:
        return None
    except posix_ipc.PermissionsError:
        raise SegmentError(errno.EACCES, f"{SHM_DIRECTORY} does not let this user create {name}") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OutOfSharedMemoryError(f"cannot create {name}: {SHM_DIRECTORY} has no room for a file") from None
        raise


def _open(name: str) -> int | None:
    """Open ``name``; None if there is no such name. What is not a private file of this user is a `SegmentError`."""
    try:
        fd = call("shm_open", posix_ipc.SharedMemory, name).fd
    except posix_ipc.ExistentialError:
        return None
    except posix_ipc.PermissionsError:
        raise SegmentError(errno.EACCES, f"{name} may not be opened: it is {_look(name)}") from None
    except ValueError:  # posix_ipc's word for EINVAL, which is shm_open's word for a directory
        raise SegmentError(f"{name} is not a segment but {_look(name)}") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise SegmentError(f"{name} is not a segment but {_look(name)}") from None
        raise
    try:
        status = call("fstat", os.fstat, fd)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentError(f"{name} is not a segment but {_look(name)}")
        if status.st_uid != os.geteuid():
            raise SegmentError(f"{name} belongs to uid {status.st_uid}, not to this user ({os.geteuid()})")
        if status.st_mode & 0o077:
            raise SegmentError(f"{name} is open to others: mode {stat.S_IMODE(status.st_mode):04o}, not 0600")
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened(name: str) -> Iterator[int | None]:
    """A descriptor of ``name`` for the length of a block; None if there is no such name.

    Raises `SegmentError` if it is not a regular file, not this user's, or open to others; links are not followed.
    """
    fd = _open(name)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def reopen(name: str, fd: int) -> int:
    """Another descriptor of the file behind ``fd``, which still has ``name``.

    Not a duplicate: it has none of the locks of ``fd``, so whoever inherits it keeps nobody alive.
    """
    another = _open(name)
    if another is None or inode_of(os.fstat(another)) != inode_of(os.fstat(fd)):
        if another is not None:
            os.close(another)
        raise SegmentError(errno.ESTALE, f"{name} was taken away while it was created")
    return another


_KINDS = {stat.S_IFREG: "a file", stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO"}


def _look(name: str) -> str:
    """What stands under ``name``, in words, links not followed."""
    try:
        status = os.lstat(SHM_DIRECTORY + name)
    except OSError as error:
        return f"gone ({error.strerror})"
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
    return f"{kind} of uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"


def inode_of(status: os.stat_result) -> tuple[int, int]:
    """What tells files apart, whatever their names."""
    return status.st_dev, status.st_ino


def refers_to(name: str, inode: tuple[int, int]) -> bool:
    """Whether ``name`` refers to this very file now."""
    try:
        return inode_of(call("lstat", os.lstat, SHM_DIRECTORY + name)) == inode
    except FileNotFoundError:
        return False


def free_nbytes() -> int:
    """Bytes free for shared memory; -1 if unknown (a tmpfs without limit has 0 blocks in all)."""
    try:
        status = call("statvfs", os.statvfs, SHM_DIRECTORY)
    except OSError:
        return -1
    return status.f_bavail * status.f_frsize if status.f_blocks else -1


# -- locks ------------------------------------------------------------------------------------------------------------

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks), padding.
_FLOCK = struct.Struct("hhqqi0q")


def _flock(fd: int, command: int, kind: int, byte: int) -> int:
    return _FLOCK.unpack(call("fcntl", fcntl.fcntl, fd, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)))[0]


def _lock(fd: int, byte: int, kind: int = fcntl.F_WRLCK) -> bool:
    """Take a lock; False if another open file holds it."""
    try:
        _flock(fd, fcntl.F_OFD_SETLK, kind, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_alive(fd: int) -> bool:
    """Whether the creator of an open file lives and its name stands. Asking takes nothing and disturbs nobody."""
    return _flock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, LIFE) != fcntl.F_UNLCK


@contextmanager
def _name_locked(name: str, fd: int, patience_s: float) -> Iterator[None]:
    deadline = time.monotonic() + patience_s
    while not _lock(fd, NAME):
        if time.monotonic() > deadline:
            raise NameHeldError(errno.EBUSY, f"another process stopped while it was creating or unlinking {name}")
        time.sleep(0.0002)
    try:
        yield
    finally:
        _flock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, NAME)


def remove(name: str, inode: tuple[int, int]) -> None:
    """Unlink ``name`` if it (still) refers to this file."""
    if not refers_to(name, inode):
        return
    with opened(name) as fd:
        if fd is not None and inode_of(os.fstat(fd)) == inode:
            _unlink(name, fd, inode)


def remove_stale(name: str) -> bool:
    """Unlink ``name`` if its creator is dead; whether that was so."""
    with opened(name) as fd:
        return fd is not None and not is_alive(fd) and _unlink(name, fd, inode_of(os.fstat(fd)), only_stale=True)


def _unlink(name: str, fd: int, inode: tuple[int, int], *, only_stale: bool = False) -> bool:
    with _name_locked(name, fd, NAME_PATIENCE_S if only_stale else UNLINK_PATIENCE_S):
        # Under the lock nobody comes alive here, and nobody else takes the name away and reuses it.
        if (only_stale and is_alive(fd)) or not refers_to(name, inode):
            return False
        with suppress(posix_ipc.ExistentialError):  # somebody who knows no locks, such as rm
            call("shm_unlink", posix_ipc.unlink_shared_memory, name)
        return True


def pid_of(fd: int) -> int:
    """The creator's pid, in its own PID namespace, from the header of an open file; 0 if it does not say."""
    with suppress(OSError, ValueError, ShmringError):
        page = call("mmap", Mapping, fd, headers.HEADER_NBYTES)
        try:
            if headers.found_version(page) == headers.LAYOUT_VERSION:
                return headers.read(page).pid
        finally:
            page.close()
    return 0


# -- the creator's hold on a name -------------------------------------------------------------------------------------


class Claim:
    """A name taken by this process: the descriptor that holds its ``LIFE`` lock. Made by `claim` and `join`."""

    def __init__(self, name: str, fd: int, is_shared: bool = False) -> None:
        self.name = name
        self.fd = fd
        self.is_shared = is_shared
        self.inode = inode_of(os.fstat(fd))
        self._pid = os.getpid()

    def release(self) -> None:
        """Unlink the name if it is still ours (alone, if it is shared), then let the lock go.

        A second call, or one in a fork, does nothing.

        If the kernel refuses, or a process has stopped with the name in its hands (`NameHeldError`), the claim stands
        and `release` may be called again.
        """
        if self.fd < 0 or self._pid != os.getpid():
            return
        with refusals(f"unlink {self.name}"):
            if not self.is_shared:
                _unlink(self.name, self.fd, self.inode)
            # Said aloud: closing alone would leave the lock to a child forked behind Python's back.
            _flock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, LIFE)
            if self.is_shared:
                _unlink(self.name, self.fd, self.inode, only_stale=True)
            fd, self.fd = self.fd, -1
            _claims.discard(self)
            os.close(fd)

    def abandon(self) -> None:
        """Hold nothing any more; the name stays as it is."""
        fd, self.fd = self.fd, -1
        _claims.discard(self)
        os.close(fd)

    def share(self) -> None:
        """Let others `join`."""
        _flock(self.fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, LIFE)
        self.is_shared = True

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """A block in which no other holder of this name is in one; for microseconds, as it holds ``NAME``."""
        return _name_locked(self.name, self.fd, NAME_PATIENCE_S)


_claims: set[Claim] = set()

# Held while a descriptor is on its way into _claims, and over fork: no child inherits one it does not know of.
# Reentrant, so that a signal handler which forks meanwhile does not wait for itself.
_claiming = threading.RLock()


def _close_inherited() -> None:
    """In a forked child: close what holds the parent's locks, or they would live as long as the child does."""
    for held in _claims:
        os.close(held.fd)
        held.fd = -1
    _claims.clear()
    _claiming.release()


os.register_at_fork(before=_claiming.acquire, after_in_parent=_claiming.release, after_in_child=_close_inherited)


def claim(name: str) -> Claim:
    """Create ``name``, in place of a stale one if need be, and hold it.

    Raises
    ------
    SegmentError
        Somebody alive holds it (the message has the pid), or it is not ours to take, or the kernel refuses.
    OutOfSharedMemoryError
        Not even room for a name.
    """
    deadline = time.monotonic() + CLAIM_PATIENCE_S
    first_seen: dict[tuple[int, int], float] = {}
    claimed: Claim | None = None
    try:
        while time.monotonic() < deadline:
            with _claiming:
                fd = _open_new(name)
                if fd is not None:
                    claimed = Claim(name, fd)
                    _claims.add(claimed)
            if claimed is None:
                _make_room(name, first_seen)
            elif _come_alive(claimed):
                return claimed
            else:
                claimed.release()
                claimed = None
    except BaseException:
        if claimed is not None:
            claimed.release()
        # An interrupt may have fallen between the kernel's answer and our knowing of it. What is left then is empty and
        # unlocked; if it is somebody else's after all, he finds it gone and starts again.
        with suppress(OSError, ShmringError):
            remove_stale(name)
        raise
    raise SegmentError(errno.EBUSY, f"cannot get {name}: it comes and goes in {SHM_DIRECTORY}")


def join(name: str) -> Claim | None:
    """Hold ``name`` together with all others that do; None if nobody does (yet: its creator has not shared it).

    Raises `SegmentError` if the name is not a segment of this user's, or the kernel refuses.
    """
    with refusals(f"join {name}"), _claiming:
        fd = _open(name)
        if fd is None:
            return None
        claimed = Claim(name, fd, is_shared=True)
        _claims.add(claimed)
        try:
            with claimed.alone():
                if is_alive(fd) and refers_to(name, claimed.inode) and _lock(fd, LIFE, fcntl.F_RDLCK):
                    return claimed
        except BaseException:
            claimed.abandon()
            raise
        claimed.abandon()
        return None


def _come_alive(claimed: Claim) -> bool:
    """Take ``LIFE``; False if the newborn was taken for stale meanwhile and its name is gone."""
    with _name_locked(claimed.name, claimed.fd, NAME_PATIENCE_S):
        return _lock(claimed.fd, LIFE) and refers_to(claimed.name, claimed.inode)


def _make_room(name: str, first_seen: dict[tuple[int, int], float]) -> None:
    """Remove ``name`` if it is stale; return to be asked again while that is not known; raise if it is alive."""
    with opened(name) as fd:
        if fd is None:
            return
        status = call("fstat", os.fstat, fd)
        alive, pid = is_alive(fd), pid_of(fd)
        now = time.monotonic()
        is_newborn = now < first_seen.setdefault(inode_of(status), now) + BIRTH_GRACE_S
        # A newborn may yet take its lock, or write down its pid, which makes for a better message.
        if is_newborn and (not pid if alive else status.st_size == 0):
            time.sleep(0.001)
            return
    if alive:
        raise SegmentError(
            errno.EEXIST,
            f"{name} exists and its creator is alive ({f'pid {pid}' if pid else 'its pid is not known'}): "
            "is the same session, or the same rank of it, running twice?",
        )
    remove_stale(name)
