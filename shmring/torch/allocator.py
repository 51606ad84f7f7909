"""Buffers that torch programs ask a group for: in shared memory, so that collectives on them need not stage.

FSDP2 asks for one before each of its collectives, and drops it soon after. A shared array is made by all ranks together
and takes far longer than such a collective, so buffers are cut from shared arrays that stay. Which part of its own
array a rank cuts is its own affair: collectives look up where each buffer lies, and a rank drops its buffers when it
likes. All ranks are needed only where the arrays do not suffice. So in each of the first requests, and now and then
afterwards, they tell each other what was missing, and make another one.

Whoever finds no room gets ordinary memory: as right, and staged.
"""

from __future__ import annotations

import weakref
from bisect import insort
from collections import deque
from contextlib import suppress

import numpy as np
import torch

from shmring.errors import OutOfSharedMemoryError, SegmentError
from shmring.memory.reserve import free_nbytes

SMALL_NBYTES = 4096  # travels as eager messages, from whatever memory
ALIGNMENT = 128
FIRST_REQUESTS = 64  # in each of these the ranks tell each other what is missing,
BETWEEN = 64  # and afterwards in one of so many
SHARE_OF_FREE = 0.5  # what all ranks together take at most, of what is free in /dev/shm


class Pool:
    """A shared array and what of it is free.

    Parameters
    ----------
    memory : ndarray of uint8
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self._free = [(0, memory.nbytes)]  # from, to; in order, apart from each other
        self._dropped: deque[tuple[int, int]] = deque()  # by whatever thread drops a tensor

    def cut(self, nbytes: int) -> np.ndarray | None:
        """So many bytes, None if there are not so many side by side.

        They are free again once this very ndarray is gone, which a tensor made of it keeps; NumPy's own views do not.
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
        weakref.finalize(piece, self._dropped.append, (start, start + extent)).atexit = False
        return piece

    def _settle(self) -> None:
        while self._dropped:
            start, end = self._dropped.popleft()
            for gap in [gap for gap in self._free if start in gap or end in gap]:
                self._free.remove(gap)
                start, end = min(start, gap[0]), max(end, gap[1])
            insort(self._free, (start, end))


class Buffers:
    """The buffers of one group.

    Parameters
    ----------
    comm : shmring.Communicator
    """

    def __init__(self, comm) -> None:
        self._comm = comm
        self._pools: list[Pool] = []
        self._nrequests = 0
        self._missing_nbytes = 0  # of the largest request that found no room
        self._last = (0, 0)  # the request before: its bytes, and the rounds that the communicator had made by then

    def tensor(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of one dimension, contents undefined. It may outlive the group.

        Collective: all ranks ask for their buffers in one order, as they make their calls.
        """
        nbytes = count * dtype.itemsize
        if self._comm.size == 1 or nbytes < SMALL_NBYTES:
            return torch.empty(count, dtype=dtype)
        self._nrequests += 1
        # What FSDP asks for between a reduce-scatter's input and the call is the output: no other rank reaches it, and
        # it stays for long, as gradient.
        is_output = self._last == (nbytes * self._comm.size, self._comm.engine.rounds)
        piece = None if is_output else self._cut(nbytes)
        if piece is None and not is_output:
            self._missing_nbytes = max(self._missing_nbytes, nbytes)
        if self._nrequests <= FIRST_REQUESTS or self._nrequests % BETWEEN == 0:
            self._extend()
            if piece is None and not is_output:
                piece = self._cut(nbytes)
        self._last = nbytes, self._comm.engine.rounds
        return torch.empty(count, dtype=dtype) if piece is None else torch.frombuffer(piece, dtype=dtype)

    def _cut(self, nbytes: int) -> np.ndarray | None:
        for pool in self._pools:
            piece = pool.cut(nbytes)
            if piece is not None:
                return piece
        return None

    def _extend(self) -> None:
        """Make another shared array of what is missing on any rank, if there is room."""
        free = free_nbytes()
        said = np.array([self._missing_nbytes, -free if free >= 0 else np.iinfo(np.int64).min])
        missing, negated = self._comm.all_reduce(said, op="max").tolist()
        self._missing_nbytes = 0
        if 0 < missing * self._comm.size <= -negated * SHARE_OF_FREE:
            with suppress(OutOfSharedMemoryError, SegmentError):  # on all ranks, then
                self._pools.append(Pool(self._comm.empty(-(-missing // ALIGNMENT) * ALIGNMENT, np.uint8)))
