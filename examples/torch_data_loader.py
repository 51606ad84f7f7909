"""A DataLoader of torch whose workers send through rings: one argument more.

python examples/torch_data_loader.py [WORKERS]
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset

import shmring.multiprocessing


class Words(Dataset):
    """Samples of many small tensors, for which torch's own way needs a descriptor each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {f"word {j}": torch.tensor([i, j]) for j in range(100)}


def main(workers: int) -> None:
    """Add up all there is, without and with the argument."""
    sums = []
    for context in (None, shmring.multiprocessing.get_context("fork")):
        loader = DataLoader(Words(), batch_size=8, num_workers=workers, multiprocessing_context=context)
        sums.append(sum(int(each.sum()) for batch in loader for each in batch.values()))
    print(f"{workers} workers, the same sum both ways: {sums[0]} {sums[1]}")
    # Lightning and accelerate pass the argument on: it belongs to the DataLoader that they are given.


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
