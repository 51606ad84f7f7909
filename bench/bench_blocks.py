"""Handing an array to another process: blocks, beside `multiprocessing.shared_memory` by hand and torch's queue.

    python bench/bench_blocks.py [--rounds 300]

Each row of the first table is the median time from `put` to the array at a reader that waits for it; and that of making
what is handed over, a copy of an array in private memory. The reader looks at one element. All three through a queue:
ours for blocks, and the standard library's, with the name of the memory, or a shared tensor of torch's strategy
`file_descriptor`.

Two more rows are the processor time for a frame of 1920 x 1080 pixels, written into a `Latest` 60 times in a second and
read by three processes: in place, by leases, which is one copy in all; and by copies, which is four.

The last two are the time from the first start of four spawned processes, which have an array of 500 MB as an argument,
to the last answer; each adds up an element of every page.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import NamedTuple

import numpy as np

import shmring
import shmring.multiprocessing

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


def make_name(array):
    """Named memory with a copy of the array."""
    memory = shared_memory.SharedMemory(create=True, size=array.nbytes)
    np.ndarray(array.nbytes, np.uint8, memory.buf)[:] = array
    return memory


def free_name(memory):
    """Free named memory."""
    memory.close()
    memory.unlink()


def make_tensor(array):
    """A tensor in shared memory with a copy of the array."""
    import torch

    return torch.from_numpy(array).clone().share_memory_()


class Way(NamedTuple):
    """A way to hand over an array: how it is made, what is put into which queue, how it is freed, and its reader."""

    make: Callable
    item: Callable
    free: Callable
    read: Callable
    make_queue: Callable


def time_of(way, array, rounds, items, times):
    """The median times of making, and of handing over, in us: each by itself, as making fills the caches."""
    made, taken = [], []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        thing = way.make(array)
        made.append(time.perf_counter_ns() - began)
        way.free(thing)
    thing = way.make(array)
    for _ in range(300):
        items.put((time.monotonic_ns(), *way.item(thing)))
        taken.append(times.get())
    way.free(thing)
    return statistics.median(made) / 1e3, statistics.median(taken) / 1e3


def watch(newest, in_place, times):
    """A reader of frames."""
    version = frames = 0
    began = time.process_time_ns()
    while True:
        try:
            if in_place:
                with newest.lease(after=version) as frame:
                    version, _pixel = frame.version, frame[0, 0, 0]
            else:
                frame, version = newest.read_version(after=version)
        except shmring.EndOfStreamError:
            break
        frames += 1
    times.put((time.process_time_ns() - began) / frames / 1e3)


def frames(context, in_place, count=300):
    """Write frames; the processor time for each, in us: of the writer, and of each reader."""
    frame = np.zeros((1080, 1920, 3), np.uint8)
    newest, times = shmring.Latest(frame.nbytes), shmring.Queue()
    readers = [context.Process(target=watch, args=(newest, in_place, times)) for _ in range(3)]
    for reader in readers:
        reader.start()
    time.sleep(2)  # until they read
    began = time.process_time_ns()
    for _ in range(count):
        newest.write(frame)
        time.sleep(1 / 60)
    written = (time.process_time_ns() - began) / count / 1e3
    newest.close()
    found = [times.get() for _ in readers]
    for reader in readers:
        reader.join()
    return written, found


def add_up(array, results):
    """A process with a large argument."""
    results.put(int(array[::4096].sum()))


def arguments(library, count=4):
    """Start processes with a large argument; the seconds until all have answered."""
    context = library.get_context("spawn")
    results = shmring.Queue()
    array = np.ones(500_000_000, np.uint8)
    began = time.perf_counter()
    started = [context.Process(target=add_up, args=(array, results)) for _ in range(count)]
    for process in started:
        process.start()
    for _ in started:
        results.get()
    found = time.perf_counter() - began
    for process in started:
        process.join()
    return found


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="of making small ones; of larger ones fewer")
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    ways = {
        "shmring.Block": Way(shmring.Block, lambda block: (block,), shmring.Block.close, read_blocks, shmring.Queue),
        "shared_memory": Way(
            make_name, lambda memory: (memory.name, memory.size), free_name, read_names, context.Queue
        ),
    }
    try:
        import torch.multiprocessing

        queue = torch.multiprocessing.get_context("spawn").Queue
        ways["torch"] = Way(make_tensor, lambda tensor: (tensor,), lambda tensor: None, read_tensors, queue)
    except ImportError:
        pass
    print(f"{'':16}" + "".join(f"{nbytes >> 10:>12} KiB" for nbytes in SIZES) + "   us: made, handed over")
    for title, way in ways.items():
        items, times = way.make_queue(), shmring.Queue()
        reader = context.Process(target=way.read, args=(items, times))
        reader.start()
        cells = []
        for nbytes in SIZES:
            array = np.zeros(nbytes, np.uint8)
            array[:] = 0
            made, taken = time_of(way, array, max(3, min(rounds, (1 << 30) // nbytes)), items, times)
            cells.append(f"{made:>9.0f} {taken:>6.0f}")
        print(f"{title:16}" + "".join(cells), flush=True)
        items.put(None)
        reader.join()
    for title, in_place in (("Latest.lease", True), ("Latest.read", False)):
        written, found = frames(context, in_place)
        print(f"{title:16}a frame: {written:.0f} us to write, {', '.join(f'{one:.0f}' for one in found)} us to read")
    for title, library in (("shmring", shmring.multiprocessing), ("multiprocessing", multiprocessing)):
        print(f"{title:16}arguments of four processes: {arguments(library):.2f} s")


if __name__ == "__main__":
    main()
