"""Sum ten million numbers in four processes, without a launcher. Run me with:  python examples/spawn_sum.py"""

import numpy as np

import shmring


def partial_sum(comm: shmring.Communicator, count: int) -> int:
    """Each rank sums every size-th number; one all-reduce of 8 bytes makes it the whole sum."""
    mine = np.arange(comm.rank, count, comm.size, dtype=np.int64)
    total = np.array([mine.sum()])
    comm.all_reduce(total)
    return int(total[0])


if __name__ == "__main__":  # the processes import this file; without this line they would spawn again
    count = 10_000_000
    sums = shmring.spawn(partial_sum, 4, args=(count,))
    assert sums == [count * (count - 1) // 2] * 4, sums
    print(f"0 + 1 + ... + {count - 1} = {sums[0]} on each of {len(sums)} ranks")
