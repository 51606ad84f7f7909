"""Ranks between which the network fails: ``mpi_cut.py FOLDER``, for `test_mpi_machines.py`."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import shmring


def main(folder):
    comm = shmring.from_mpi(timeout=5.0)
    rank, size = comm.rank, comm.size
    comm.all_reduce(np.ones(3))
    Path(folder, f"ready.{rank}").write_text("")
    try:
        while True:
            comm.all_reduce(np.ones(3))
    except shmring.BrokenError as error:
        named, kind = getattr(error, "rank", -1), type(error).__name__
    comm.close()
    part = Path(folder, f"part.{rank}")
    part.write_text(f"{kind} {named}")
    part.rename(Path(folder, f"named.{rank}"))
    while len(list(Path(folder).glob("named.*"))) < size:  # once a rank has ended, its launcher ends the others
        time.sleep(0.05)
    os._exit(0)  # MPI_Finalize would wait for the other side


if __name__ == "__main__":
    main(*sys.argv[1:])
