"""Ranks with different numbers of rows.  Run me with:  shmring run -n 4 examples/variable_counts.py"""

import numpy as np

import shmring

with shmring.init() as comm:
    # Rank r has r + 1 rows of three numbers; each rank gets all of them, in rank order.
    counts = [r + 1 for r in range(comm.size)]
    mine = np.full((counts[comm.rank], 3), comm.rank, np.float32)
    everything = comm.all_gather(mine, counts=counts)
    assert everything.shape == (sum(counts), 3)

    # A share of the sum for each, as large as what it gave.
    share = comm.reduce_scatter(everything, counts=counts)
    assert (share == comm.size * comm.rank).all()

    # Words to the ranks they belong to: no rank knows in advance how many it receives.
    words = np.sort(np.random.default_rng(comm.rank).integers(0, comm.size, 10))
    came = comm.all_to_all(words, counts=np.bincount(words, minlength=comm.size))
    assert (came == comm.rank).all()

    total = comm.all_reduce(np.array([came.size]))
    if comm.rank == 0:
        print(f"rows from each rank: {[int((everything[:, 0] == r).sum()) for r in range(comm.size)]}")
        print(f"{total[0]} words came to where they belong")
