"""Communicators of some of the ranks. Run me with:  shmring run -n 4 examples/groups.py"""

import threading

import numpy as np

import shmring

with shmring.init() as comm:
    # Every rank gives a colour; those with the same one become a group, numbered by rank.
    group = comm.split(color=comm.rank % 2)
    assert group is not None  # as it is for a rank without a colour
    x = np.array([comm.rank])
    group.all_reduce(x)  # the sum over even ranks on even ranks, over odd ranks on odd ones
    sums = comm.all_gather(x)[:, 0]
    if comm.rank == 0:
        print(f"even ranks: {sums[0]}, odd ranks: {sums[1]}")

    # Only the ranks in the list call. Groups may overlap, and be used by different threads at the same time.
    pairs = [(r, (r + 1) % comm.size) for r in range(comm.size)] if comm.size > 2 else [(0, 1)]
    mine = [comm.subgroup(sorted(pair), slot_nbytes=16384) for pair in sorted(pairs, key=sorted) if comm.rank in pair]

    def work(pair: shmring.Communicator) -> None:
        for _ in range(100):
            y = np.array([comm.rank])
            pair.all_reduce(y)
            assert y[0] == sum(pair.parent_ranks or ())

    threads = [threading.Thread(target=work, args=(pair,)) for pair in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    comm.barrier()
