"""`shmring.multiprocessing` beside the standard library, and its DataLoaders beside torch's two ways to share tensors.

    python bench/bench_multiprocessing.py messages
    python bench/bench_multiprocessing.py executors
    python bench/bench_multiprocessing.py loaders ["one tensor of 10 MB"]

The ways take turns: each round measures all of them, in an order drawn anew. The data set costs nothing: its
items are made once, so what is measured is what moves them.
"""

import concurrent.futures
import multiprocessing
import statistics
import sys
import time
from functools import partial

import numpy as np
import pytest
from turns import take_turns

import shmring.multiprocessing

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402 after the skip

EXECUTORS = {
    "shmring": shmring.multiprocessing.ProcessPoolExecutor,
    "standard": concurrent.futures.ProcessPoolExecutor,
}
LIBRARIES = {"shmring": shmring.multiprocessing, "standard": multiprocessing}
ITEMS, TRIPS = 10_000, 2000
WAYS = ("shmring", "file_descriptor", "file_system")
BATCHES = 25
ROUNDS = 5

KINDS = {
    "100 tensors of 4 KB": lambda: [torch.ones(1024) for _ in range(100)],
    "1000 tensors of 64 B": lambda: [torch.ones(16) for _ in range(1000)],
    "one tensor of 10 MB": lambda: torch.ones(10 << 18),
    "nested: 8 images of 150 KB, labels": lambda: {
        "images": [torch.ones(3, 112, 112) for _ in range(8)],
        "labels": torch.arange(8),
        "boxes": [(torch.ones(5, 4), {"area": torch.ones(5)}) for _ in range(8)],
    },
}


class Batches(Dataset):
    """A data set whose items are whole batches of one kind."""

    def __init__(self, kind):
        self.batch = KINDS[kind]()

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return self.batch


def copied(batch):
    """A batch in memory of its own, as the collation of samples makes it: in shared memory, in a worker."""
    if isinstance(batch, torch.Tensor):
        storage = batch._typed_storage()._new_shared(batch.numel(), device=batch.device)
        return torch.stack([batch], out=batch.new(storage).resize_(1, *batch.shape))[0]
    if isinstance(batch, dict):
        return {key: copied(each) for key, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(copied(each) for each in batch)
    return batch


def collate_shared(items):
    return copied(items[0])


def collate_plain(items):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, items[0])


COLLATIONS = {"collated into shared memory": collate_shared, "ordinary memory": collate_plain}


def seconds_of(way, kind, collate):
    """For a batch of a loader with one worker, which is running."""
    torch.multiprocessing.set_sharing_strategy("file_descriptor" if way == "shmring" else way)
    context = (shmring.multiprocessing if way == "shmring" else torch.multiprocessing).get_context("fork")
    loader = DataLoader(Batches(kind), None, num_workers=1, multiprocessing_context=context, collate_fn=collate)
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - began) / (BATCHES - 1)


def echo(pipe):
    while (x := pipe.recv()) is not None:
        pipe.send(x)


def put_all(queue):
    for i in range(ITEMS):
        queue.put(i)


def double(x):
    return x * 2


def figures_of(library):
    """Microseconds: a round trip of an int, and of 8 MB, through a pipe; an item of a queue; a task of a pool."""
    context = library.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo, args=(theirs,))
    process.start()
    found = []
    for x, count in ((1, TRIPS), (np.ones(1 << 20), 8)):
        ours.send(x)
        ours.recv()
        began = time.perf_counter()
        for _ in range(count):
            ours.send(x)
            ours.recv()
        found.append((time.perf_counter() - began) / count * 1e6)
    ours.send(None)
    process.join()
    queue = context.Queue()
    process = context.Process(target=put_all, args=(queue,))
    process.start()
    queue.get()
    began = time.perf_counter()
    for _ in range(ITEMS - 1):
        queue.get()
    found.append((time.perf_counter() - began) / ITEMS * 1e6)
    process.join()
    with context.Pool(2) as pool:
        pool.map(double, range(10))
        began = time.perf_counter()
        pool.map(double, range(2000), chunksize=1)
        found.append((time.perf_counter() - began) / 2000 * 1e6)
    return found


def executor_figures_of(executor_type):
    """Microseconds of a call: one at a time, of many; with an argument and a result of 8 MB; both."""
    x, found = np.ones(1 << 20), []
    with executor_type(2, multiprocessing.get_context("fork")) as executor:
        list(executor.map(double, range(10)))
        began = time.perf_counter()
        for i in range(500):
            executor.submit(double, i).result()
        found.append((time.perf_counter() - began) / 500 * 1e6)
        began = time.perf_counter()
        list(executor.map(double, range(2000)))
        found.append((time.perf_counter() - began) / 2000 * 1e6)
        for function, argument in ((np.size, x), (np.ones, len(x)), (np.negative, x)):
            executor.submit(function, argument).result()
            began = time.perf_counter()
            for _ in range(8):
                executor.submit(function, argument).result()
            found.append((time.perf_counter() - began) / 8 * 1e6)
    return found


def compare(figures_of, ways, names):
    slices = {name: partial(figures_of, way) for name, way in ways.items()}
    taken = take_turns(slices, lambda cycle: cycle >= ROUNDS)
    for place, name in enumerate(names):
        us = [statistics.median(figures[place] for figures in taken[way]) for way in ways]
        print(f"{name:24s} shmring {us[0]:8.1f} us  standard {us[1]:8.1f} us  x{us[1] / us[0]:.2f}", flush=True)


def messages():
    names = ("round trip of an int", "round trip of 8 MB", "item of a queue", "task of a pool")
    compare(figures_of, LIBRARIES, names)


def executors():
    names = ("call, one at a time", "call of map", "argument of 8 MB", "result of 8 MB", "both")
    compare(executor_figures_of, EXECUTORS, names)


def loaders(*kinds):
    for kind in kinds or KINDS:
        for name, collate in COLLATIONS.items():
            slices = {way: partial(seconds_of, way, kind, lambda x, c=collate: c([x])) for way in WAYS}
            taken = take_turns(slices, lambda cycle: cycle >= ROUNDS)
            us = {way: statistics.median(times) * 1e6 for way, times in taken.items()}
            print(
                f"{kind:36s} {name:28s}",
                *(f"{way} {u:8.0f} us" for way, u in us.items()),
                f" x{min(us['file_descriptor'], us['file_system']) / us['shmring']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    {"messages": messages, "executors": executors, "loaders": loaders}[sys.argv[1]](*sys.argv[2:])
