"""Memory with a name, as `multiprocessing.shared_memory`, which ends with the last process that holds it.

The memory is a file of the kernel's that has its name in /proc alone: where a process has it open. So a name is looked
for among the open files of this user's processes, and nothing is left when these have ended, however they did. The
state of a file is in its seals, which can only be added: its size is sealed once it is made, its seals once it is
*unlinked*: from then on no process finds it.

The process that has made the memory holds it also after `close`, until it is unlinked: so a worker may make it, close
it and return its name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec, module_from_spec
from multiprocessing import shared_memory as _standard
from typing import Any

from shmring.core.base.pace import Pace
from shmring.core.blocks.pages import keep_while
from shmring.core.memory.descriptor import Descriptor, above_standard
from shmring.core.memory.mapping import Mapping
from shmring.core.memory.open_files import open_files

__all__ = ["ShareableList", "SharedMemory"]

_PREFIX = "shmring-memory:"
_MOST_NAME_BYTES = 249 - len(_PREFIX)
_ADD_SEALS, _GET_SEALS = 1033, 1034  # F_ADD_SEALS, F_GET_SEALS
_SIZE_IS_SEALED, _IS_UNLINKED = 0x2 | 0x4, 0x1  # F_SEAL_SHRINK and F_SEAL_GROW, F_SEAL_SEAL
_PATIENCE_S = 1.0


class SharedMemory(_standard.SharedMemory):
    """Memory with a name, as `multiprocessing.shared_memory.SharedMemory`.

    Parameters
    ----------
    name : str, optional
        None: a new name.
    create : bool, default False
        Whether to make the memory; else it is found by its name.
    size : int, default 0
        Bytes, if it is made.
    track : bool, default True
        Without effect: there is nothing to track.

    Raises
    ------
    FileExistsError
        Memory of that name is to be made, and is held by some process.
    FileNotFoundError
        No process of this user holds memory of that name.
    ValueError
        A bad size or name.
    """

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True) -> None:
        if size < 0 or (create and not size):
            raise ValueError(f"size={size}: must be positive")
        if name is None and not create:
            raise ValueError("name=None: only if create=True")
        if create:
            self._name, self._fd = _made(size) if name is None else (name, _made_as(name, size))
        else:
            self._name, self._fd = str(name), _found(str(name))
        self._size: int = os.fstat(self._fd).st_size
        try:
            self._mmap: Mapping | None = Mapping(self._fd, self._size)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise
        self._buf: memoryview | None = memoryview(self._mmap)
        self._maker = os.getpid() if create else 0

    _maker = 0

    @property
    def name(self) -> str:
        """The name, for other processes."""
        return self._name

    def close(self) -> None:
        """Let go of it here; its maker holds it until it is unlinked. `buf` is of no more use.

        Arrays and views that were made of it stay valid.
        """
        if self._buf is not None:
            self._buf.release()
        self._mmap = None  # unmapped with the last array: the standard library's close makes each use of one a crash
        if self._fd >= 0 and self._maker == os.getpid():
            keep_while(partial(_is_named, Descriptor(int, self._fd)))
            self._fd = -1
        super().close()

    def unlink(self) -> None:
        """Have no process find it by its name any more. Raises FileNotFoundError if it is so already."""
        fd = self._fd if self._fd >= 0 else _found(self._name)
        try:
            if _seals(fd) & _IS_UNLINKED:
                raise _not_found(self._name)
            fcntl.fcntl(fd, _ADD_SEALS, _IS_UNLINKED)
        finally:
            if fd != self._fd:
                os.close(fd)


def _not_found(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no process of this user holds shared memory of this name", name)


# ---- names -----------------------------------------------------------------------------------------------------------


def _target(name: str) -> str:
    """What /proc calls the file."""
    if not 0 < len(os.fsencode(name)) <= _MOST_NAME_BYTES or "\0" in name:
        raise ValueError(f"name={name!r}: must have between 1 and {_MOST_NAME_BYTES} bytes, none of them 0")
    return f"/memfd:{_PREFIX}{name} (deleted)"


def _found(name: str) -> int:
    """A descriptor of the memory of that name; FileNotFoundError: there is none."""
    target = _target(name)
    for file in open_files(target=target):
        with suppress(OSError):  # closed meanwhile
            if file.target == target and (fd := _opened(file.path, target)) >= 0:
                return fd
    raise _not_found(name)


def _opened(path: str, target: str) -> int:
    """A descriptor of a file in /proc; -1 if it is another file by now, or is not to be found."""
    fd = above_standard(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    is_it = os.readlink(f"/proc/self/fd/{fd}") == target and os.fstat(fd).st_uid == os.geteuid()
    if is_it and _seals(fd) & (_SIZE_IS_SEALED | _IS_UNLINKED) == _SIZE_IS_SEALED:
        return fd
    os.close(fd)
    return -1


def _seals(fd: int) -> int:
    return fcntl.fcntl(fd, _GET_SEALS)


def _is_named(file: Descriptor) -> bool:
    return not _seals(file.fd) & _IS_UNLINKED


def _made(size: int) -> tuple[str, int]:
    """New memory, of a new name."""
    name = f"psm_{secrets.token_hex(8)}"
    return name, _new(name, size)


def _made_as(name: str, size: int) -> int:
    """New memory of that name; FileExistsError: there is some."""
    with _alone(name):
        try:
            os.close(_found(name))
        except FileNotFoundError:
            return _new(name, size)
    raise FileExistsError(errno.EEXIST, "a process of this user holds shared memory of this name", name)


def _new(name: str, size: int) -> int:
    fd = above_standard(os.memfd_create(_PREFIX + name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _ADD_SEALS, _SIZE_IS_SEALED)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Meanwhile no other process makes memory of that name: one address of a socket has one owner, while that lives."""
    address = f"\0shmring-memory-{os.geteuid()}-{hashlib.sha256(os.fsencode(name)).hexdigest()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        pace, until = Pace(), time.monotonic() + _PATIENCE_S
        while True:
            try:
                owner.bind(address)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() > until:
                    raise FileExistsError(errno.EEXIST, "another process is making memory of this name", name) from None
                pace.pause()
        yield


# ---- lists -----------------------------------------------------------------------------------------------------------


def _standard_over_ours() -> Any:
    """The standard module once more, whose lists are made over our memory."""
    spec = find_spec(_standard.__name__)
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SharedMemory = SharedMemory
    return module


class ShareableList(_standard_over_ours().ShareableList):
    """A list in memory with a name, as `multiprocessing.shared_memory.ShareableList`."""
