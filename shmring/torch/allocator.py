"""Allocates tensors of a group in shared memory, so that collectives on them are zero-copy.

FSDP2 allocates a tensor before each of its collectives and drops it soon after. Creating a shared array is collective
and takes far longer than such a collective, so tensors are cut from pools: shared arrays that are kept. Each rank cuts
from its own part of a pool independently; collectives look up where each tensor lies. All ranks take part only to make
another pool: in each of the first requests, and in every `BETWEEN`-th afterwards, they exchange the size of the largest
request that found no room.

A request that finds no room is served from ordinary memory; collectives on it are staged.
"""

from __future__ import annotations

import weakref
from bisect import insort
from collections import deque
from contextlib import suppress

import numpy as np
import torch

from shmring.core.memory.reserve import free_nbytes
from shmring.errors import OutOfSharedMemoryError, SegmentError

SMALL_NBYTES = 4096  # smaller tensors go through eager payloads, wherever they lie
ALIGNMENT = 128
FIRST_REQUESTS = 64  # in each of these the ranks exchange what is missing,
BETWEEN = 64  # and afterwards in every 64th
SHARE_OF_FREE = 0.5  # upper limit of a pool on all ranks together, as a share of what is free in /dev/shm


class Extent(weakref.ref):
    """A weak reference to a piece of a pool's memory, with its range there."""

    start: int
    end: int


class Pool:
    """A shared array and its free ranges.

    Parameters
    ----------
    memory : ndarray of uint8
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self._free = [(0, memory.nbytes)]  # (start, end), sorted, not adjacent
        self._cut: dict[int, Extent] = {}  # by where they start
        self._dropped: deque[Extent] = deque()  # appended by the thread that drops a tensor, without Python code

    def cut(self, nbytes: int) -> np.ndarray | None:
        """Allocate ``nbytes`` bytes; None if there is no free range that large.

        The range is freed when the returned ndarray is. A tensor made from it keeps it alive; NumPy views do not.
        """
        self._settle()
        extent = -(-nbytes // ALIGNMENT) * ALIGNMENT
        start, end = min(self._free, key=lambda gap: (gap[1] - gap[0] < extent, gap[1] - gap[0]), default=(0, 0))
        if end - start < extent:
            return None
        self._free.remove((start, end))
        if end - start > extent:
            insort(self._free, (start + extent, end))
        piece = self._memory[start : start + nbytes]
        held = Extent(piece, self._dropped.append)
        held.start, held.end = start, start + extent
        self._cut[start] = held
        return piece

    def _settle(self) -> None:
        while self._dropped:
            dropped = self._dropped.popleft()
            start, end = dropped.start, dropped.end
            del self._cut[start]
            for gap in [gap for gap in self._free if start in gap or end in gap]:
                self._free.remove(gap)
                start, end = min(start, gap[0]), max(end, gap[1])
            insort(self._free, (start, end))


class GroupAllocator:
    """The shared-memory tensors of one group.

    Parameters
    ----------
    comm : shmring.Communicator
    """

    def __init__(self, comm) -> None:
        self._comm = comm
        self._pools: list[Pool] = []
        self._nrequests = 0
        self._missing_nbytes = 0  # the largest request that found no room
        self._last = (0, 0)  # the previous request: its bytes, and the communicator's round count at that time

    def tensor(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate a tensor of one dimension, contents undefined. It may outlive the group.

        Collective: all ranks allocate in the same order, as they make their calls.
        """
        nbytes = count * dtype.itemsize
        if self._comm.size == 1:
            return torch.empty(count, dtype=dtype, device="cpu")
        self._nrequests += 1  # whatever its size: the sizes of uneven shards differ by rank
        # What FSDP allocates between the input of a reduce-scatter and the call is the output: no other rank accesses
        # it, and it lives long, as a gradient.
        is_output = self._last == (nbytes * self._comm.size, self._comm._engine.rounds)
        is_served = nbytes >= SMALL_NBYTES and not is_output
        piece = self._cut(nbytes) if is_served else None
        if is_served and piece is None:
            self._missing_nbytes = max(self._missing_nbytes, nbytes)
        if self._nrequests <= FIRST_REQUESTS or self._nrequests % BETWEEN == 0:
            self._extend()
            if is_served and piece is None:
                piece = self._cut(nbytes)
        self._last = nbytes, self._comm._engine.rounds
        return torch.empty(count, dtype=dtype, device="cpu") if piece is None else torch.frombuffer(piece, dtype=dtype)

    def _cut(self, nbytes: int) -> np.ndarray | None:
        for pool in self._pools:
            piece = pool.cut(nbytes)
            if piece is not None:
                return piece
        return None

    def _extend(self) -> None:
        """Make another pool of the largest size that is missing on any rank, if there is room."""
        free = free_nbytes()
        need = np.array([self._missing_nbytes, -free if free >= 0 else np.iinfo(np.int64).min])
        missing, negated = self._comm.all_reduce(need, op="max").tolist()
        self._missing_nbytes = 0
        if 0 < missing * self._comm.size <= -negated * SHARE_OF_FREE:
            with suppress(OutOfSharedMemoryError, SegmentError):  # raised on all ranks alike
                self._pools.append(Pool(self._comm.empty(-(-missing // ALIGNMENT) * ALIGNMENT, np.uint8)))
