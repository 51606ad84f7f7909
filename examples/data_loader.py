"""Loaders feed a trainer: each has a ring to it, and batches are trained on where they lie.

python examples/data_loader.py [LOADERS]
"""

import multiprocessing
import sys

import numpy as np

import shmring

BATCHES, ROWS, COLUMNS = 40, 256, 64
TRUTH = np.linspace(-1, 1, COLUMNS, dtype=np.float32)


def load(sender: shmring.Sender, seed: int) -> None:
    """Make batches; where a real loader would decode files, straight into the memory of the ring."""
    generator = np.random.default_rng(seed)
    with sender:
        for _ in range(BATCHES):
            batch = sender.reserve((ROWS, COLUMNS + 1), np.float32)  # waits while the trainer is behind
            batch[:, :COLUMNS] = generator.standard_normal((ROWS, COLUMNS))
            batch[:, COLUMNS] = batch[:, :COLUMNS] @ TRUTH
            sender.commit()


def main(loaders: int) -> None:
    """Train a linear model on what comes."""
    senders, batches = shmring.fan_in(loaders, capacity_nbytes=4 << 20)
    context = multiprocessing.get_context("spawn")
    for seed, sender in enumerate(senders):
        context.Process(target=load, args=(sender, seed)).start()
    weights, count = np.zeros(COLUMNS, np.float32), 0
    with batches:
        while True:
            try:
                loader = batches.next_ready()  # the receiver of a loader that has a batch
            except shmring.EndOfStreamError:  # every loader has closed; a dead one would be a PeerLostError
                break
            batch = loader.peek()  # not copied
            x, y = batch[:, :COLUMNS], batch[:, COLUMNS]
            weights -= 0.5 / ROWS * x.T @ (x @ weights - y)
            del x, y  # nothing may look at it any more
            loader.release()
            count += 1
    error = float(np.abs(weights - TRUTH).max())
    print(f"{count} batches from {loaders} loaders, weights off by {error:.0e} at most")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
