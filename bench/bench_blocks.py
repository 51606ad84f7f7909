"""Handing an array to another process: blocks, beside `multiprocessing.shared_memory` by hand and torch's queue.

    python bench/bench_blocks.py [--rounds 300]

Each row is the median time from `put` to the array at a reader that waits for it; and that of making what is handed
over, a copy of an array in private memory. The reader looks at one element. All three through a queue: ours for blocks,
and the standard library's, with the name of the memory, or a shared tensor of torch's strategy `file_descriptor`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing import shared_memory

import numpy as np

import shmring

SIZES = [4 << 10, 1 << 20, 64 << 20, 1 << 30]


def read_blocks(items, times):
    """The reader of blocks."""
    while (item := items.get()) is not None:
        began, block = item
        array = block.array
        times.put(time.monotonic_ns() - began + int(array[0]))
        del array, block, item


def read_names(items, times):
    """The reader of named memory."""
    while (item := items.get()) is not None:
        began, name, nbytes = item
        memory = shared_memory.SharedMemory(name)
        array = np.ndarray(nbytes, np.uint8, memory.buf)
        times.put(time.monotonic_ns() - began + int(array[0]))
        del array
        memory.close()


def read_tensors(items, times):
    """The reader of tensors."""
    while (item := items.get()) is not None:
        began, tensor = item
        times.put(time.monotonic_ns() - began + int(tensor[0]))
        del tensor, item


def blocks(array, items, times):
    """Hand over a block; the times of making and handing over, in ns."""
    began = time.perf_counter_ns()
    block = shmring.Block(array)
    made = time.perf_counter_ns() - began
    items.put((time.monotonic_ns(), block))
    return made, times.get()


def names(array, items, times):
    """Hand over named memory."""
    began = time.perf_counter_ns()
    memory = shared_memory.SharedMemory(create=True, size=array.nbytes)
    np.ndarray(array.nbytes, np.uint8, memory.buf)[:] = array
    made = time.perf_counter_ns() - began
    items.put((time.monotonic_ns(), memory.name, array.nbytes))
    taken = times.get()
    memory.close()
    memory.unlink()
    return made, taken


def tensors(array, items, times):
    """Hand over a tensor."""
    import torch

    began = time.perf_counter_ns()
    tensor = torch.from_numpy(array).clone().share_memory_()
    made = time.perf_counter_ns() - began
    items.put((time.monotonic_ns(), tensor))
    return made, times.get()


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="of small sizes; of larger ones fewer")
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    ways = {"shmring.Block": (blocks, read_blocks, shmring.Queue), "shared_memory": (names, read_names, context.Queue)}
    try:
        import torch.multiprocessing

        ways["torch"] = tensors, read_tensors, torch.multiprocessing.get_context("spawn").Queue
    except ImportError:
        pass
    print(f"{'':16}" + "".join(f"{nbytes >> 10:>12} KiB" for nbytes in SIZES) + "   us: made, handed over")
    for title, (hand_over, read, make_queue) in ways.items():
        items, times = make_queue(), shmring.Queue()
        reader = context.Process(target=read, args=(items, times))
        reader.start()
        cells = []
        for nbytes in SIZES:
            array = np.zeros(nbytes, np.uint8)
            array[:] = 0
            some = [hand_over(array, items, times) for _ in range(max(5, min(rounds, (1 << 30) // nbytes)))]
            made, taken = (statistics.median(times_ns) / 1e3 for times_ns in zip(*some, strict=True))
            cells.append(f"{made:>9.0f} {taken:>6.0f}")
        print(f"{title:16}" + "".join(cells), flush=True)
        items.put(None)
        reader.join()


if __name__ == "__main__":
    main()
