"""Processes whose large arguments are blocks: started by spawn or by a fork server, they map the memory.

Everything about a process that is started is one pickle, so that an object that is there twice arrives as one. The
large buffers in it, usually the elements of arrays, stay out of band and become blocks, whose descriptors the process
inherits. It maps them copy-on-write: its arrays are writable and its own, and only pages that it changes are copied.
Tensors are passed by the reducers of torch, where it is imported: as shared memory.
Processes that are started one after the other with the same contents get the same block: contents are compared, as the
array may have been changed in between, which takes half as long as a copy.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import time
from functools import partial
from multiprocessing import context, reduction
from typing import Any
from weakref import WeakSet

import numpy as np

from shmring.core.blocks.block import Block
from shmring.core.blocks.pages import keep_while
from shmring.core.objects.codec import out_of_band
from shmring.core.objects.tensors import reduce_array

LEAST_NBYTES = 1 << 20  # of a buffer that becomes a block
MOST_BLOCKS = 64  # of a process, the largest: a fork server passes on at most 256 descriptors
KEPT_S = 1.0  # a block for the process that is started next
_PART_NBYTES = 1 << 20

_recent: WeakSet[Block] = WeakSet()
_pickled: set[int] = set()  # ids of the processes of which the state is being pickled


class _WithBlocks:
    """What the classes of processes have in common."""

    _blocks: list[Any]

    def start(self) -> None:
        """Start the process, as `multiprocessing.Process.start`; arrays of 1 MiB or more in it are passed as blocks.

        Raises
        ------
        OutOfSharedMemoryError
            There is no memory for a copy of the arrays. Nothing was started.
        """
        try:
            super().start()
        finally:
            vars(self).pop("_blocks", None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if id(self) in _pickled or context.get_spawning_popen() is None:
            return super().__reduce_ex__(protocol)
        buffers: list[memoryview] = []
        stream = io.BytesIO()
        pickler = reduction.ForkingPickler(stream, 5, True, out_of_band(buffers, LEAST_NBYTES))
        pickler.dispatch_table = {np.ndarray: reduce_array, **pickler.dispatch_table}
        _pickled.add(id(self))
        try:
            pickler.dump(self)
        finally:
            _pickled.discard(id(self))
        self._blocks = _passed(buffers)  # held until the process has the descriptors
        return _arrived, (stream.getvalue(), self._blocks)


class Process(_WithBlocks, multiprocessing.Process):
    """`multiprocessing.Process`; large arguments are blocks."""


class SpawnProcess(_WithBlocks, context.SpawnProcess):
    """The process of a context that spawns; large arguments are blocks."""


class ForkServerProcess(_WithBlocks, context.ForkServerProcess):
    """The process of a context that has a server fork; large arguments are blocks."""


def _passed(buffers: list[memoryview]) -> list[Any]:
    """The largest buffers as blocks, the others as they are pickled."""
    by_size = sorted(range(len(buffers)), key=lambda i: buffers[i].nbytes, reverse=True)
    large = set(by_size[:MOST_BLOCKS])
    return [_block_with(buffer) if i in large else bytearray(buffer) for i, buffer in enumerate(buffers)]


def _block_with(buffer: memoryview) -> Block:
    """A block with these contents: that of a process which was started a moment ago, or a new one."""
    contents = np.frombuffer(buffer, np.uint8)
    block = next((one for one in list(_recent) if _has(one, contents)), None)
    if block is None:
        block = Block(contents)
        _recent.add(block)
    keep_while(partial(_is_recent, block, time.monotonic() + KEPT_S))
    return block


def _has(block: Block, contents: np.ndarray) -> bool:
    found = block.array
    parts = range(0, len(contents), _PART_NBYTES)
    return len(found) == len(contents) and all(
        np.array_equal(found[at : at + _PART_NBYTES], contents[at : at + _PART_NBYTES]) for at in parts
    )


def _is_recent(block: Block, until: float) -> bool:
    return time.monotonic() < until


def _arrived(stream: bytes, buffers: list[Any]) -> Any:
    """The process, in the process that it is."""
    return pickle.loads(
        stream,
        buffers=[one.array_copy_on_write() if isinstance(one, Block) else one for one in buffers],
    )
