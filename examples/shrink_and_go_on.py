"""A rank is killed; the others go on without it. Run me with:  python examples/shrink_and_go_on.py"""

import os
import signal
import sys
from multiprocessing import get_context

import numpy as np

import shmring


def work(rank: int, size: int, session: str) -> None:
    """Add up ones for ever, or until 100 rounds are done after a rank was lost."""
    comm = shmring.init(rank=rank, size=size, session=session)
    rounds = 0
    while rounds < 200:
        try:
            x = np.ones(100_000)
            comm.all_reduce(x)
            assert (x == comm.size).all()
            rounds += 1
            if rounds == 100 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)  # out of memory, a crash, a power button
        except shmring.PeerLostError as error:
            broken, comm = comm, comm.shrink()
            broken.close()
            rounds = int(comm.all_gather(np.array([rounds])).min())  # some had one more round behind them
            if comm.rank == 0:
                print(f"rank {error.rank} died in round {rounds}; now there are {comm.size}", flush=True)
    if comm.rank == 0:
        print(f"{comm.size} ranks went on to round {rounds}")
    comm.close()


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    # Plain processes: `shmring run` and `shmring.spawn` end all ranks when one fails, as most programs want.
    session, start = f"shrink-{os.getpid()}", get_context("spawn").Process
    processes = [start(target=work, args=(rank, size, session)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * (size - 1) + [-signal.SIGKILL]
