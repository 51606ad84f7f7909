"""Python objects between ranks, large arrays inside them. Run me with:  shmring run -n 4 examples/objects.py"""

from typing import Any

import numpy as np

import shmring

with shmring.init() as comm:
    # The root decides, everybody learns. The array does not pass through the pickle: it goes from memory to memory.
    settings: dict[str, Any] | None
    settings = {"rate": 0.01, "weights": np.linspace(0, 1, 1_000_000)} if comm.rank == 0 else None
    settings = comm.broadcast_object(settings)
    settings["weights"] += comm.rank  # each rank's copy is its own

    # Work of different length for each rank, and what came of it, of any kind and size.
    words = [["the", "quick", "brown", "fox"][: r + 1] for r in range(comm.size)] if comm.rank == 0 else None
    mine = comm.scatter_object(words)
    report = {"rank": comm.rank, "words": len(mine), "last": float(settings["weights"][-1])}
    for line in comm.gather_object(report) or []:
        print(line)

    # An object that cannot be pickled is an error on every rank, and all stay in step.
    try:
        comm.broadcast_object(x for x in "a generator")
    except shmring.ObjectError as error:
        if comm.rank == 0:
            print("refused:", error)
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))
