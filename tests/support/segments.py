"""Segments that no rank of ours has made: headers with chosen fields, and files under our names."""

import os
import struct

from shmring.core.memory import header as headers
from shmring.core.memory import names, ofd_locks, spelling

PAGE_NBYTES = 8192


def path_of(name):
    """The file of a name."""
    return names.SHM_DIRECTORY + name


def standing(session):
    """The names that stand in /dev/shm for a session."""
    prefix = spelling.session_prefix(session)
    return sorted("/" + entry for entry in os.listdir(names.SHM_DIRECTORY) if ("/" + entry).startswith(prefix))


def page(**changes):
    """An announced header that nothing is wrong with but for ``changes``."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = bytes.fromhex(file.read().strip().replace("-", ""))
    fields = {
        "magic": (0, "Q", headers.MAGIC),
        "version": (8, "I", headers.LAYOUT_VERSION),
        "header_nbytes": (12, "I", headers.HEADER_NBYTES),
        "nbytes": (16, "Q", PAGE_NBYTES),
        "kind": (24, "I", headers.OUTBOX),
        "uid": (28, "I", os.geteuid()),
        "boot_id": (32, "16s", boot_id),
        "rank": (64, "i", 1),
        "size": (68, "i", 2),
        "ready": (128, "I", 1),
    }
    data = bytearray(PAGE_NBYTES)
    for field, (offset, form, value) in fields.items():
        struct.pack_into(f"={form}", data, offset, changes.get(field, value))
    return bytes(data)


class Squatter:
    """A file under a name of ours; alive in the sense of core/memory/names.py if ``locked``."""

    def __init__(self, name, contents=b"", mode=0o600, uid=None, locked=True, link=None):
        self.path = path_of(name)
        self.fd = -1
        if link is not None:
            os.symlink(link, self.path)
            return
        self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.write(self.fd, contents)
        if locked:
            assert ofd_locks.lock(self.fd, names.LIFE)
        os.fchmod(self.fd, mode)
        if uid is not None:
            os.fchown(self.fd, uid, -1)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if os.path.lexists(self.path):
            os.unlink(self.path)
        if self.fd >= 0:
            os.close(self.fd)
