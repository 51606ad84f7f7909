"""A deep network cut into stages, one a rank: batches flow through. Run me with:  shmring run -n 4 examples/pipeline.py

While one rank works on a batch, the ranks before it work on later ones. Each keeps the next batch coming (`irecv`) and
the last one going (`isend`) while it computes.
"""

import numpy as np
from numpy.typing import NDArray

import shmring

BATCHES, ROWS, WIDTH = 8, 256, 128


def weights(stage: int) -> NDArray[np.float32]:
    """The matrix of one stage; every rank can make all of them, to check the result."""
    return np.random.default_rng(stage).standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)


def stage_of(x: NDArray[np.float32], matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """What one stage does to a batch."""
    result: NDArray[np.float32] = np.maximum(x @ matrix, 0)
    return result


with shmring.init() as comm:
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    matrix = weights(comm.rank)
    inputs = np.random.default_rng(99).standard_normal((BATCHES, ROWS, WIDTH), np.float32)
    arrays = [np.empty((ROWS, WIDTH), np.float32) for _ in range(2)]
    coming = None if first else comm.irecv(arrays[0], comm.rank - 1, tag=0)
    going = None
    outputs = []
    for batch in range(BATCHES):
        if coming is None:
            x = inputs[batch]
        else:
            coming.wait()
            x = arrays[batch % 2]
            if batch + 1 < BATCHES:
                coming = comm.irecv(arrays[(batch + 1) % 2], comm.rank - 1, tag=batch + 1)
        y = stage_of(x, matrix)
        if last:
            outputs.append(y)
        else:
            if going is not None:
                going.wait()
            going = comm.isend(y, comm.rank + 1, tag=batch)
    if going is not None:
        going.wait()

    if last:
        for batch, output in enumerate(outputs):
            expected = inputs[batch]
            for stage in range(comm.size):
                expected = stage_of(expected, weights(stage))
            assert (output == expected).all()
        print(f"{BATCHES} batches went through {comm.size} stages, bit for bit as in one process")
    comm.barrier()
