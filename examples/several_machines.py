"""The same program on one process, on several of one machine, and on several machines: only the launcher differs.

python several_machines.py; shmring run -n 4 several_machines.py; mpiexec -n 4 python several_machines.py
"""

import os

import numpy as np

import shmring


def connect() -> shmring.Communicator:
    """The communicator of all ranks that the launcher started."""
    if "PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        return shmring.from_mpi()  # shared memory inside each machine, MPI between
    if "WORLD_SIZE" in os.environ:
        return shmring.init()
    return shmring.init(rank=0, size=1)


def mean_and_spread(comm: shmring.Communicator, count: int = 100_000) -> tuple[float, float]:
    """Statistics of numbers that all ranks have a part of."""
    own = np.array_split(np.sin(np.arange(count, dtype=np.float64)), comm.size)[comm.rank]
    total = comm.all_reduce(np.array([own.sum(), len(own)]))
    mean = total[0] / total[1]
    squares = comm.all_reduce(np.array([((own - mean) ** 2).sum()]))
    return mean, np.sqrt(squares[0] / total[1])


if __name__ == "__main__":
    with connect() as comm:
        mean, spread = mean_and_spread(comm)
        parts = comm.gather_object(f"rank {comm.rank}")
        if comm.rank == 0:
            print(f"mean {mean:.9f}, spread {spread:.9f}")
            assert len(parts or ()) == comm.size
