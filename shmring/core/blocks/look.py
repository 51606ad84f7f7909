"""Which processes hold which blocks, as seen from outside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from shmring.core.blocks.pages import TARGET
from shmring.core.memory.open_files import OpenFile, open_files


class HeldBlocks(NamedTuple):
    """The blocks of one process of this user, those included that it keeps for a moment after their end.

    Attributes
    ----------
    pid : int
    nblocks : int
    nbytes : int
        Memory of all of them.
    others : tuple of int
        The other processes that hold some of them, too.
    """

    pid: int
    nblocks: int
    nbytes: int
    others: tuple[int, ...]

    def describe(self) -> str:
        """A line for people."""
        others = f", some of them held by {', '.join(map(str, self.others))}, too" if self.others else ""
        return f"pid {self.pid}: {self.nblocks} blocks, {self.nbytes} bytes{others}"


def held_blocks(files: Iterable[OpenFile] | None = None) -> list[HeldBlocks]:
    """The processes that hold blocks, by pid. What is in flight, or only mapped, no process lists.

    ``files``: what `open_files` has found with `TARGET`, if the caller has called it.
    """
    sizes: dict[int, int] = {}  # by inode
    held: dict[int, set[int]] = {}
    for file in open_files(target=TARGET) if files is None else files:
        if file.target != TARGET:
            continue
        with suppress(OSError):  # closed meanwhile
            status = os.stat(file.path)
            sizes[status.st_ino] = status.st_blocks * 512
            held.setdefault(file.pid, set()).add(status.st_ino)
    return [
        HeldBlocks(
            pid,
            len(inodes),
            sum(sizes[inode] for inode in inodes),
            tuple(other for other in sorted(held) if other != pid and held[other] & inodes),
        )
        for pid, inodes in sorted(held.items())
    ]
