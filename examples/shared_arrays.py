"""Sum arrays in shared memory, without copying them. Run me with:  shmring run -n 4 examples/shared_arrays.py"""

import numpy as np

import shmring

with shmring.init() as comm:
    # Every rank gets its own array; all of them are mapped by all, so the reduction reads and writes them in place.
    gradients = comm.empty(1_000_000, np.float32)
    gradients += comm.rank + 1
    comm.all_reduce(gradients)
    total = comm.size * (comm.size + 1) / 2
    assert (gradients == total).all()

    # A slice is as good as the whole; and a peer's array can be looked at, after something that both have called.
    gradients[:1000] = comm.rank
    comm.barrier()
    right = (comm.rank + 1) % comm.size
    assert (comm.shared_view(gradients[:1000], right) == right).all()

    # One result for all to read: less to write than a result for each.
    mean = comm.shared_result(gradients.shape, gradients.dtype)
    comm.all_reduce(gradients[1000:], mean[1000:], op="avg")
    assert (mean[1000:] == total).all()
    if comm.rank == 0:
        print(f"{comm.size} ranks summed {gradients.nbytes} bytes each: {gradients[-1]:g} everywhere")
