"""Names in shared memory, and which process holds them. The only user of posix_ipc.

The creator of a segment opens its name exclusively and holds a lock on the file for as long as the name stands. The
kernel releases the lock when the creator dies, so a name whose lock is free is *stale*, whatever the file contains.
Two bytes of every segment serve as locks (`shmring.core.memory.ofd_locks`):

``LIFE``
    Held by the creator from creation until the name is gone. For a name that several processes share (a channel's, so
    that a restarted end can find it), all of them hold it shared, and the last one to release it unlinks the name.
``NAME``
    Held for microseconds by a process about to change what the name refers to: the creator while it takes ``LIFE``,
    any process while it unlinks. Under it, "the name refers to this file" stays true until acted upon.

A forked child shares its parent's locks, so it closes the descriptors that it inherited (`_close_inherited`).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from shmring.core.base.lifecycle import at_exit, in_child
from shmring.core.base.pace import Pace
from shmring.core.base.weak_set import WeakSet
from shmring.core.memory import header as headers
from shmring.core.memory import ofd_locks
from shmring.core.memory.descriptor import Descriptor, close_or_keep, interrupted
from shmring.core.memory.mapping import Mapping
from shmring.core.memory.syscalls import SHM_DIRECTORY, call, refusal_to_create, refusals
from shmring.core.sync.turn import IS_FREE_THREADED, Turn
from shmring.errors import SegmentError, ShmringError

if IS_FREE_THREADED:
    import shmring.core.memory.descriptor as posix_ipc  # it has the calls made here
else:
    import posix_ipc

LIFE, NAME = 0, 1

# An empty file whose LIFE is free is either new (opened, not locked yet) or its creator died in between; only waiting
# tells them apart. A creator that pauses for longer finds its name gone once it has the lock, and starts again.
BIRTH_GRACE_S = 0.1

# How long to wait for NAME. It is held for microseconds, so a timeout means that its holder is stopped.
NAME_PATIENCE_S = 1.0

# How long to wait for NAME before unlinking: a holder that is stopped was about to unlink the name as well.
UNLINK_PATIENCE_S = 0.2

# How long to try to create a name that other processes keep creating and unlinking.
CLAIM_PATIENCE_S = 5.0


class NameHeldError(SegmentError):
    """The ``NAME`` lock is held by a process that is stopped."""


# -- opening ----------------------------------------------------------------------------------------------------------


def _open_new(name: str) -> Descriptor | None:
    """Create ``name`` exclusively, empty, mode 0600; None if the name is taken."""
    try:
        return call("shm_open", Descriptor, posix_ipc.SharedMemory, name, posix_ipc.O_CREX, 0o600, 0)
    except posix_ipc.ExistentialError:
        if not os.path.isdir(SHM_DIRECTORY):
            raise refusal_to_create(name, OSError(errno.ENOENT, "")) from None
        return None
    except posix_ipc.PermissionsError:
        raise refusal_to_create(name, OSError(errno.EACCES, "")) from None
    except OSError as error:
        raise refusal_to_create(name, error) from None


def _open(name: str) -> Descriptor | None:
    """Open ``name``; None if there is no such name; `SegmentError` if it is not a private file of this user."""
    try:
        file = call("shm_open", Descriptor, posix_ipc.SharedMemory, name)
    except posix_ipc.ExistentialError:
        return None
    except posix_ipc.PermissionsError:
        raise SegmentError(errno.EACCES, f"{name} may not be opened: it is {_look(name)}") from None
    except ValueError:  # posix_ipc raises it for EINVAL, which shm_open of glibc returns for a directory
        raise SegmentError(f"{name} is not a segment but {_look(name)}") from None
    except OSError as error:
        if error.errno == errno.ENOTDIR:  # `refusal_to_create` has the remedy
            return None
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise SegmentError(f"{name} is not a segment but {_look(name)}") from None
        raise
    try:
        status = call("fstat", os.fstat, file.fd)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentError(f"{name} is not a segment but {_look(name)}")
        if status.st_uid != os.geteuid():
            raise SegmentError(f"{name} belongs to uid {status.st_uid}, not to this user ({os.geteuid()})")
        if status.st_mode & 0o077:
            raise SegmentError(f"{name} is open to others: mode {stat.S_IMODE(status.st_mode):04o}, not 0600")
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def opened(name: str) -> Iterator[int | None]:
    """A descriptor of ``name`` for the length of a block; None if there is no such name.

    Raises `SegmentError` if it is not a regular file, not this user's, or accessible to others; links are not followed.
    """
    file = _open(name)
    try:
        yield None if file is None else file.fd
    finally:
        if file is not None:
            file.close()


def reopen(name: str, fd: int) -> Descriptor:
    """Another descriptor of the file of ``fd``, opened by its ``name``.

    Not a duplicate: it shares no lock with ``fd``, so a process that inherits it does not keep the name alive.
    """
    another = _open(name)
    if another is None or inode_of(os.fstat(another.fd)) != inode_of(os.fstat(fd)):
        if another is not None:
            another.close()
        raise SegmentError(errno.ESTALE, f"{name} was unlinked while it was being created")
    return another


_KINDS = {stat.S_IFREG: "a file", stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO"}


def _look(name: str) -> str:
    """A description of the file ``name``, links not followed."""
    try:
        status = os.lstat(SHM_DIRECTORY + name)
    except OSError as error:
        return f"gone ({error.strerror})"
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
    return f"{kind} of uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"


def inode_of(status: os.stat_result) -> tuple[int, int]:
    """The identity of a file: device and inode."""
    return status.st_dev, status.st_ino


def refers_to(name: str, inode: tuple[int, int]) -> bool:
    """Whether ``name`` refers to this file now."""
    try:
        return inode_of(call("lstat", os.lstat, SHM_DIRECTORY + name)) == inode
    except FileNotFoundError:
        return False


# -- locks ------------------------------------------------------------------------------------------------------------


def is_alive(fd: int) -> bool:
    """Whether the creator of an open file lives and its name stands. Takes no lock."""
    return ofd_locks.is_locked(fd, LIFE)


@contextmanager
def _name_locked(name: str, fd: int, patience_s: float) -> Iterator[None]:
    if not ofd_locks.lock(fd, NAME, patience_s=patience_s):
        raise NameHeldError(errno.EBUSY, f"another process stopped while it was creating or unlinking {name}")
    try:
        yield
    finally:
        try:
            ofd_locks.unlock(fd, NAME)
        except OSError as error:
            if error.errno != errno.EBADF:  # closed, and the lock with it: an interrupt has come as the block ended
                raise


def remove(name: str, inode: tuple[int, int]) -> None:
    """Unlink ``name`` if it (still) refers to this file."""
    if not refers_to(name, inode):
        return
    with opened(name) as fd:
        if fd is not None and inode_of(os.fstat(fd)) == inode:
            _unlink(name, fd, inode)


def remove_stale(name: str) -> bool:
    """Unlink ``name`` if its creator is dead; return whether it was."""
    with opened(name) as fd:
        return fd is not None and not is_alive(fd) and _unlink(name, fd, inode_of(os.fstat(fd)), only_stale=True)


def _unlink(name: str, fd: int, inode: tuple[int, int], *, only_stale: bool = False) -> bool:
    with _name_locked(name, fd, NAME_PATIENCE_S if only_stale else UNLINK_PATIENCE_S):
        # While NAME is held, LIFE cannot be taken, and no other process can unlink the name and reuse it.
        if (only_stale and is_alive(fd)) or not refers_to(name, inode):
            return False
        with suppress(posix_ipc.ExistentialError):  # unlinked without the lock, for example by rm
            call("shm_unlink", posix_ipc.unlink_shared_memory, name)
        return True


def pid_of(fd: int) -> int:
    """The creator's pid, in its own PID namespace, from the header of an open file; 0 if unknown."""
    with suppress(OSError, ValueError, ShmringError):
        page = call("mmap", Mapping, fd, headers.HEADER_NBYTES)
        try:
            if headers.found_version(page) == headers.LAYOUT_VERSION:
                return headers.read(page).pid
        finally:
            page.close()
    return 0


# -- claims -----------------------------------------------------------------------------------------------------------


class Claim:
    """A name taken by this process: the descriptor that holds its ``LIFE`` lock. Made by `claim` and `join`.

    A claim that nothing refers to any more closes itself.
    """

    _file: Descriptor | None = None

    def __init__(self, name: str, file: Descriptor, is_shared: bool = False) -> None:
        self.name = name
        self.is_shared = is_shared
        self.inode = inode_of(os.fstat(file.fd))
        self._pid = os.getpid()
        self._file = file  # last: from here on there is something to release
        _claims.add(self)

    @property
    def fd(self) -> int:
        """The descriptor; -1 once it is closed."""
        return -1 if self._file is None else self._file.fd

    def release(self) -> None:
        """Unlink the name if it still refers to this file (a shared one: if no other process holds it), then unlock.

        A second call, or one in a forked child, does nothing. If the kernel refuses, or another process is stopped
        while it holds ``NAME`` (`NameHeldError`), the claim stands and `release` may be called again.
        """
        if self.fd < 0 or self._pid != os.getpid():
            return
        with refusals(f"unlink {self.name}"):
            if not self.is_shared:
                _unlink(self.name, self.fd, self.inode)
            # Closing alone would leave the lock to a child that was forked by C code and still has the descriptor.
            ofd_locks.unlock(self.fd, LIFE)
            if self.is_shared:
                _unlink(self.name, self.fd, self.inode, only_stale=True)
            self.abandon()

    def close(self) -> None:
        """Release; but if a stopped process holds ``NAME``, leave the name stale, for that process or a sweep."""
        try:
            self.release()
        except NameHeldError:
            self.abandon()

    def drop(self) -> None:
        """Release because of an error that is being raised, which no second error may hide.

        What the kernel refuses is tried again when nothing refers to the claim any more, and as the process ends.
        """
        with suppress(OSError, ShmringError):
            self.close()

    __del__ = close_or_keep

    def abandon(self) -> None:
        """Close the descriptor, and with it the locks; the name stays as it is."""
        if self._file is not None:
            _claiming.run(self._file.close)
        _claims.discard(self)

    def share(self) -> None:
        """Let other processes `join`."""
        ofd_locks.lock(self.fd, LIFE, shared=True)
        self.is_shared = True

    def alone(self) -> AbstractContextManager[None]:
        """A block that one holder of this name executes at a time; for microseconds, as it holds ``NAME``."""
        return _name_locked(self.name, self.fd, NAME_PATIENCE_S)


_claims: WeakSet[Claim] = WeakSet()

# Held while descriptors are opened, closed and listed in _claims, and over fork, so that a child finds all that it
# inherits there. Reentrant: a signal handler may fork meanwhile.
_claiming = Turn("names", is_reentrant=True)


@in_child
def _close_inherited() -> None:
    """In a forked child: close the descriptors with the parent's locks, which the child would keep locked otherwise."""
    for held in (*_claims, *interrupted):
        held.abandon()
    _claiming.renew()


os.register_at_fork(before=_claiming.take, after_in_parent=_claiming.give)


@at_exit
def _release_all() -> None:
    """As the process ends: release claims that only a traceback refers to, or whose deallocation was interrupted."""
    for held in (*_claims, *interrupted):
        with suppress(OSError, ShmringError):
            held.close()


def claim(name: str) -> Claim:
    """Create ``name``, replacing a stale one, and lock it.

    `SegmentError` if a live process holds it (the message has the pid), it belongs to another user, or the kernel
    refuses; `OutOfSharedMemoryError` if there is no room even for an empty file.
    """
    deadline = time.monotonic() + CLAIM_PATIENCE_S
    first_seen: dict[tuple[int, int], float] = {}
    pace = Pace()
    claimed: Claim | None = None
    try:
        while time.monotonic() < deadline:
            claimed = _claiming.run(_create, name)
            if claimed is None:
                _make_room(name, first_seen, pace)
            elif _come_alive(claimed):
                return claimed
            else:
                claimed.release()
                claimed = None
    except BaseException:
        if claimed is not None:
            claimed.drop()
        # An interrupt may have come after the kernel created the file and before `claimed` was set. That file is empty
        # and unlocked. If it is another process's after all, that process finds its name gone and starts again.
        with suppress(OSError, ShmringError):
            remove_stale(name)
        raise
    raise SegmentError(errno.EBUSY, f"cannot create {name}: other processes keep creating and unlinking it")


def join(name: str) -> Claim | None:
    """Lock ``name`` together with the processes that share it; None if there are none (its creator has not shared it).

    Raises `SegmentError` if the name is not a segment of this user's, or the kernel refuses.
    """
    with refusals(f"join {name}"):
        return _claiming.run(_join, name)


def _create(name: str) -> Claim | None:
    file = _open_new(name)
    return None if file is None else Claim(name, file)


def _join(name: str) -> Claim | None:
    file = _open(name)
    if file is None:
        return None
    claimed = Claim(name, file, is_shared=True)
    try:
        with claimed.alone():
            if is_alive(file.fd) and refers_to(name, claimed.inode) and ofd_locks.lock(file.fd, LIFE, shared=True):
                return claimed
    except BaseException:
        claimed.abandon()
        raise
    claimed.abandon()
    return None


def _come_alive(claimed: Claim) -> bool:
    """Take ``LIFE``; False if another process took the new file for stale meanwhile and unlinked its name."""
    with _name_locked(claimed.name, claimed.fd, NAME_PATIENCE_S):
        return ofd_locks.lock(claimed.fd, LIFE) and refers_to(claimed.name, claimed.inode)


def _make_room(name: str, first_seen: dict[tuple[int, int], float], pace: Pace) -> None:
    """Unlink ``name`` if it is stale; raise if its creator is alive; return, for another try, if still unknown."""
    with opened(name) as fd:
        if fd is None:
            return
        status = call("fstat", os.fstat, fd)
        alive, pid = is_alive(fd), pid_of(fd)
        now = time.monotonic()
        is_new = now < first_seen.setdefault(inode_of(status), now) + BIRTH_GRACE_S
        # The creator of a new file may still take its lock, or store its pid, which the message below reports.
        if is_new and (not pid if alive else status.st_size == 0):
            pace.pause()
            return
    if alive:
        raise SegmentError(
            errno.EEXIST,
            f"{name} exists and its creator is alive ({f'pid {pid}' if pid else 'its pid is not known'}): "
            "is the same session, or the same rank of it, running twice?",
        )
    remove_stale(name)
