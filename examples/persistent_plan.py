"""Check the arguments once, call often. Run me with:  shmring run -n 2 examples/persistent_plan.py

Power iteration: each rank holds some rows of a matrix; every step multiplies, gathers the vector and norms it.
"""

import numpy as np

import shmring

ROWS, STEPS = 32, 200

with shmring.init() as comm:
    n = ROWS * comm.size
    i, j = np.mgrid[:n, :n]
    matrix = 1.0 / (1 + abs(i - j))  # symmetric and positive: one largest eigenvalue
    mine = matrix[comm.rank * ROWS : (comm.rank + 1) * ROWS]

    part, vector = np.empty(ROWS), np.ones((comm.size, ROWS))
    gather = comm.plan("all_gather", part, vector)
    norm = 0.0
    for _ in range(STEPS):
        part[:] = mine @ vector.ravel()
        gather()  # into `vector`, with what `part` holds now
        norm = float(np.linalg.norm(vector))
        vector /= norm

    assert abs(norm - np.linalg.eigvalsh(matrix)[-1]) < 1e-9
    if comm.rank == 0:
        print(gather.describe())
        print(f"the largest eigenvalue is {norm:.6f}, after {STEPS} calls of one plan")
