"""What one or several test modules check of a communicator."""

import numpy as np

SMALL = {"slot_nbytes": 4096, "nslots": 4, "pair_queue_nbytes": 4096}


def works(comm):
    """Whether a collective gives the exact answer."""
    x = np.arange(5000)
    return np.array_equal(comm.all_reduce(x + comm.rank), comm.size * x + sum(range(comm.size)))


def moves_opaque_types(comm):
    """Every collective that moves data takes structures and other plain types; what reduces refuses them."""
    n, me = comm.size, comm.rank
    for dtype in (np.dtype([("a", "i4"), ("b", "f8")]), np.dtype(np.longdouble), np.dtype("V5"), np.dtype("V70000")):
        raw = np.random.default_rng(7).integers(0, 256, (n, n, 3, dtype.itemsize), np.uint8)
        rows = np.ascontiguousarray(raw.reshape(n, -1)).view(dtype).reshape(n, n, 3)  # rank, block, element
        counts = [r % 3 for r in range(n)]
        ends = np.cumsum(counts)
        column = np.concatenate([rows[r, me, : counts[me]] for r in range(n)])
        row = np.concatenate([rows[me, r, : counts[r]] for r in range(n)])
        parts = np.split(rows[0].reshape(-1)[: sum(counts)], ends[:-1])
        root_only = rows[0] if me == 0 else None
        found = {
            "broadcast": (comm.broadcast(rows[me].copy(), root=n - 1), rows[n - 1]),
            "all_gather": (comm.all_gather(rows[me, 0]), rows[:, 0]),
            "all_gather with counts": (comm.all_gather(parts[me], counts=counts), np.concatenate(parts)),
            "gather": (comm.gather(rows[me, 0], root=n - 1), rows[:, 0] if me == n - 1 else None),
            "scatter": (comm.scatter(root_only, np.empty(3, dtype), root=0), rows[0, me]),
            "all_to_all": (comm.all_to_all(rows[me]), rows[:, me]),
            "all_to_all with counts": (comm.all_to_all(row, counts=counts), column),
        }
        for name, (got, wanted) in found.items():
            assert (got is None) == (wanted is None), (name, dtype)
            assert got is None or (got.dtype == dtype and got.tobytes() == wanted.tobytes()), (name, dtype)
        for call in (
            lambda x=rows: comm.all_reduce(x.copy()),
            lambda x=rows: comm.reduce(x[0, 0]),
            lambda x=rows: comm.reduce_scatter(x[0]),
            lambda x=rows: comm.all_reduce(x.copy(), op=np.add),
            lambda x=rows: comm.all_reduce_many([x.copy()]),
            lambda x=rows: comm.all_gather(x[0, 0], np.empty((n, 3, 2 * x.itemsize), np.uint8)),
        ):
            try:
                call()
            except TypeError:
                continue
            raise AssertionError(f"{dtype} was not refused")
    comm.barrier()
