"""The family of a process: those to which `multiprocessing` lets it pass open files.

The standard library passes an open file by a server in the process that has it, which knows its peers by a key. A
process gets the key from the one that starts it, by a fork or by multiprocessing; so a program and its children are a
family, and the ranks of a launcher, each a program of its own, are not.
"""

from __future__ import annotations

import sys
from hashlib import blake2b

_last: tuple[bytes, int] = b"", 0  # a key, and its family: keys hardly change


def own_family() -> int:
    """A number of 64 bits that does not give the key away; 0: no family, as the process has not imported
    `multiprocessing` and so has no key."""
    global _last
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return 0
    key = process.current_process().authkey
    if key is not _last[0]:
        digest = blake2b(key, digest_size=8, person=b"shmring").digest()
        _last = key, int.from_bytes(digest, "little") or 1
    return _last[1]
