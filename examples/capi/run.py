"""Heat spreads over the cells of all ranks, in C: build heat.c (setup.py), then ``shmring run -n 2 run.py``."""

import heat
import numpy as np

import shmring

with shmring.init() as comm:
    cells = np.zeros(10 + 2)  # the first and the last are the neighbours'
    cells[1] = 80.0 * (comm.rank == 0)
    total = heat.diffuse(comm, cells, 1000 * comm.size**2)
    assert np.allclose(cells[1:-1], 80 / (10 * comm.size))
    if comm.rank == 0:
        print(f"{total:.6f} of heat in {10 * comm.size} cells of {comm.size} ranks, {cells[1]:.6f} in each")
