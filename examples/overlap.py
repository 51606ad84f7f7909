"""Compute while the last result is still being summed. Run me with:  shmring run -n 2 examples/overlap.py"""

import asyncio

import numpy as np
from numpy.typing import NDArray

import shmring

LAYERS, COUNT = 6, 200_000


def gradient(layer: int, rank: int) -> NDArray[np.float32]:
    """What a layer's backward pass would compute; here something that can be checked."""
    return np.full(COUNT, (rank + 1) * (layer + 1), np.float32)


with shmring.init() as comm:
    total = comm.size * (comm.size + 1) / 2

    # Each layer's gradient is on its way while the next one is computed.
    works = [comm.all_reduce(gradient(layer, comm.rank), async_op=True) for layer in reversed(range(LAYERS))]
    for layer, work in zip(reversed(range(LAYERS)), works, strict=True):
        assert (work.wait() == total * (layer + 1)).all()

    # In asyncio the loop is free meanwhile.
    async def main() -> tuple[NDArray[np.float32], int]:
        ticks = 0
        work = comm.all_reduce(gradient(0, comm.rank), async_op=True)
        while not work.done():
            await asyncio.sleep(0)
            ticks += 1
        return await work, ticks

    summed, ticks = asyncio.run(main())
    assert (summed == total).all()
    if comm.rank == 0:
        print(f"{LAYERS} gradients of {COUNT} elements summed in the background over {comm.size} ranks")
