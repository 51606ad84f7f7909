"""A deep network cut into stages, one a rank: batches flow through. Run me with:  shmring run -n 4 examples/pipeline.py

While one rank works on a batch, the ranks before it work on later ones. Each keeps the next batch coming (`irecv`) and
the last one going (`isend`) while it computes.
"""

import numpy as np

import shmring

BATCHES, ROWS, WIDTH = 8, 256, 128


def weights(stage):
    """The matrix of one stage; every rank can make all of them, to check the result."""
    return np.random.default_rng(stage).standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)


def stage_of(x, matrix):
    """What one stage does to a batch."""
    return np.maximum(x @ matrix, 0)


with shmring.init() as comm:
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    matrix = weights(comm.rank)
    inputs = np.random.default_rng(99).standard_normal((BATCHES, ROWS, WIDTH), np.float32)
    arrays = [np.empty((ROWS, WIDTH), np.float32) for _ in range(2)]
    coming = None if first else comm.irecv(arrays[0], comm.rank - 1, tag=0)
    going = outputs = None
    for batch in range(BATCHES):
        if first:
            x = inputs[batch]
        else:
            coming.wait()
            x = arrays[batch % 2]
            if batch + 1 < BATCHES:
                coming = comm.irecv(arrays[(batch + 1) % 2], comm.rank - 1, tag=batch + 1)
        y = stage_of(x, matrix)
        if last:
            outputs = y if outputs is None else np.concatenate([outputs, y])
        else:
            if going is not None:
                going.wait()
            going = comm.isend(y, comm.rank + 1, tag=batch)
    if going is not None:
        going.wait()

    if last:
        for batch, output in enumerate(outputs.reshape(BATCHES, ROWS, WIDTH)):
            expected = inputs[batch]
            for stage in range(comm.size):
                expected = stage_of(expected, weights(stage))
            assert (output == expected).all()
        print(f"{BATCHES} batches went through {comm.size} stages, bit for bit as in one process")
    comm.barrier()
