"""A DataLoader of torch on a context of `shmring.multiprocessing`, beside torch's own two ways to share tensors.

    python -m pytest bench/bench_multiprocessing.py

The ways are interleaved: each sample is one batch of each way, and the order changes from sample to sample. The data
set costs nothing: its items are made once, so what is measured is what moves them.
"""

import statistics
import time

import pytest

import shmring.multiprocessing

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402 after the skip

WAYS = ("shmring", "file_descriptor", "file_system")
BATCHES = 60
ROUNDS = 7

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
    """For all batches of a loader of two workers that are running."""
    torch.multiprocessing.set_sharing_strategy("file_descriptor" if way == "shmring" else way)
    context = (shmring.multiprocessing if way == "shmring" else torch.multiprocessing).get_context("fork")
    loader = DataLoader(Batches(kind), None, num_workers=1, multiprocessing_context=context, collate_fn=collate)
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    for batch in batches:
        pass
    return (time.perf_counter() - began) / (BATCHES - 1)


def main():
    for kind in KINDS:
        for name, collate in COLLATIONS.items():
            times = {way: [] for way in WAYS}
            for round_ in range(ROUNDS):
                for way in WAYS[round_ % 3 :] + WAYS[: round_ % 3]:
                    times[way].append(seconds_of(way, kind, lambda x, c=collate: c([x])))
            us = {way: statistics.median(t) * 1e6 for way, t in times.items()}
            print(f"{kind:36s} {name:28s}", *(f"{way} {u:8.0f} us" for way, u in us.items()),
                  f" x{min(us['file_descriptor'], us['file_system']) / us['shmring']:.2f}", flush=True)


if __name__ == "__main__":
    main()
