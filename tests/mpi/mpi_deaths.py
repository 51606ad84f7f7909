"""Ranks that are killed: ``mpi_deaths.py FOLDER LAYOUT VICTIMS MOMENT``, for `test_mpi_deaths.py`.

Launchers end all ranks when one dies, some of the time even if asked not to. So each rank here is the child of a
process that the launcher started, and that ends, without an error, once all ranks have ended.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main(folder, layout, victims, moment):
    pid = os.fork()
    if pid == 0:
        be_rank(Path(folder), layout, [int(r) for r in victims], moment)
        os._exit(1)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    Path(folder, f"ended.{os.getpid()}").write_text(str(os.waitstatus_to_exitcode(status)))
    while len(list(Path(folder).glob("ended.*"))) < len(layout):
        time.sleep(0.05)


def be_rank(folder, layout, victims, moment):
    import numpy as np
    from mpi4py import MPI

    import shmring

    rank = MPI.COMM_WORLD.rank
    os.environ["SHMRING_NODE"] = layout[rank]
    comm = shmring.from_mpi(timeout=5.0)
    comm.all_reduce(np.ones(3))
    MPI.COMM_WORLD.Barrier()
    folder.joinpath(f"here.{rank}").touch()
    if rank in victims:
        while len(list(folder.glob("here.*"))) < len(layout):
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "elsewhere":
        time.sleep(1)
    try:
        while True:
            comm.all_reduce(np.ones(3))
    except shmring.BrokenError as error:
        found = f"{type(error).__name__} {getattr(error, 'rank', -1)}"
    comm.close()
    folder.joinpath(f"survivor.{rank}").write_text(found)
    os._exit(0)  # MPI_Finalize would wait for the dead


if __name__ == "__main__":
    main(*sys.argv[1:])
