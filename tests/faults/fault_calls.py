"""Every call in which a rank may fail: what the fault grid interrupts.

Each is a generator over one communicator. What it does before its ``yield`` is preparation, after it comes the call,
whose result it checks. So a rank that fails *before* the call stops at the ``yield``, one that fails *after* it runs to
the end. What else it yields are errors after which it tries again. ``n`` is a number of elements: `SMALL` is eager,
`LARGE` takes more rounds than the outboxes of the grid (`SETTINGS`) have slots.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from support.drivers import Direct
from support.oracle import KINDS, Case, attempt

from shmring.errors import AbortedError, BrokenError, CollectiveTimeoutError, PeerLostError, RendezvousError

SETTINGS = {"slot_nbytes": 16_384, "nslots": 4, "pair_queue_nbytes": 16_384}
SMALL, LARGE = 3, 40_000

CALLS = {}
"""name -> generator function of a communicator"""


def call(*sizes):
    """Put a generator function into `CALLS`, once for each size."""

    def enter(function):
        for name, n in (("small", SMALL), ("large", LARGE)):
            if n in sizes:
                CALLS[f"{function.__name__} {name}"] = partial(function, n=n)
        if not sizes:
            CALLS[function.__name__] = function
        return function

    return enter


def ones(comm, *shape):
    """An array of this rank's number plus one."""
    return np.full(shape, comm.rank + 1, np.int64)


def total(comm):
    """The sum of such numbers."""
    return comm.size * (comm.size + 1) // 2


# ---- collectives -----------------------------------------------------------------------------------------------------


@call()
def barrier(comm):
    yield
    comm.barrier()


def collective(comm, kind, n, **more):
    """A case of the oracle, with the result checked."""
    yield from attempt(Direct(comm), Case(kind, n, "int64", place="new" if KINDS[kind].has_blocks else "in", **more))


for _kind in KINDS:
    for _size, _n in (("small", SMALL), ("large", LARGE)):
        _root = {"root": -1} if _kind in ("reduce", "scatter") else {}
        CALLS[f"{_kind} {_size}"] = partial(collective, kind=_kind, n=_n, **_root)
        CALLS[f"all_gather_counts {_size}"] = partial(collective, kind="all_gather", n=_n, counts="ascending")


@call(LARGE)
def all_reduce_exchange(comm, n):
    """With results in the contributors' slots: `descent.descend` makes the communicator so."""
    yield from collective(comm, "all_reduce", n)


@call(SMALL, LARGE)
def all_reduce_by_function(comm, n):
    x = ones(comm, n)
    yield
    comm.all_reduce(x, op=lambda a, b: a + b)
    assert (x == total(comm)).all()


@call(SMALL, LARGE)
def all_reduce_many(comm, n):
    xs = [ones(comm, n), ones(comm, 2), ones(comm, n // 2)]
    yield
    comm.all_reduce_many(xs)
    assert all((x == total(comm)).all() for x in xs)


@call(SMALL, LARGE)
def plan(comm, n):
    x = ones(comm, n)
    prepared = comm.plan("all_reduce", x)
    yield
    prepared()
    assert (x == total(comm)).all()


@call(SMALL, LARGE)
def work(comm, n):
    xs = [ones(comm, n) for _ in range(3)]
    yield
    works = [comm.all_reduce(x, async_op=True) for x in xs]
    for one in works:
        one.wait()
    assert all((x == total(comm)).all() for x in xs)


# ---- objects and messages --------------------------------------------------------------------------------------------


@call(SMALL, LARGE)
def all_gather_object(comm, n):
    own = {"rank": comm.rank, "x": ones(comm, n)}
    yield
    found = comm.all_gather_object(own)
    assert [one["rank"] for one in found] == list(range(comm.size))
    assert [one["x"].sum() for one in found] == [n * (r + 1) for r in range(comm.size)]


@call(SMALL, LARGE)
def ring(comm, n):
    x, out, rank, size = ones(comm, n), np.empty(n, np.int64), comm.rank, comm.size
    yield
    if rank == 0:  # round the ring, hand to hand
        comm.send(x, 1)
        comm.recv(out, size - 1)
    else:
        comm.recv(out, rank - 1)
        comm.send(x, (rank + 1) % size)
    assert (out == (rank - 1) % size + 1).all()


@call(SMALL, LARGE)
def sendrecv(comm, n):
    x, out, rank, size = ones(comm, n), np.empty(n, np.int64), comm.rank, comm.size
    yield
    comm.sendrecv(x, (rank + 1) % size, out, (rank - 1) % size)
    assert (out == (rank - 1) % size + 1).all()


@call(SMALL, LARGE)
def requests(comm, n):
    x = ones(comm, n)
    outs = [np.zeros(n, np.int64) for _ in range(comm.size)]
    others = [r for r in range(comm.size) if r != comm.rank]
    yield
    pending = [comm.irecv(outs[r], r) for r in others] + [comm.isend(x, r) for r in others]
    for request in pending:
        request.wait(comm.config.timeout)
    assert all((outs[r] == r + 1).all() for r in others)


# ---- what makes memory -----------------------------------------------------------------------------------------------


def use(group):
    """Try a new group. Its errors name its own ranks; they are passed on with those of its parent."""
    x = ones(group, SMALL)
    try:
        group.all_reduce(x)
    except BrokenError as error:
        numbers = group.parent_ranks
        if isinstance(error, CollectiveTimeoutError):
            error.late = tuple(numbers[r] for r in error.late)
        elif isinstance(error, (AbortedError, PeerLostError)):
            error.rank = numbers[error.rank]
            error.args = (f"rank {error.rank}, in a new group: {error}",)
        raise
    assert (x == total(group)).all()


@call()
def split(comm):
    yield
    with comm.split(0, -comm.rank, rendezvous_timeout=comm.config.timeout) as group:
        assert group.parent_ranks == tuple(reversed(range(comm.size)))
        use(group)


@call()
def subgroup(comm):
    yield
    with comm.subgroup(range(comm.size), rendezvous_timeout=comm.config.timeout) as group:
        use(group)


@call()
def close(comm):
    with comm.dup() as group:
        use(group)
        yield


@call()
def shrink(comm):
    yield
    while True:
        try:
            group = comm.shrink(rendezvous_timeout=comm.config.timeout)
            break
        except RendezvousError as error:  # one gave up, or did not come: all try again, or the next call does
            yield error
    with group:
        use(group)
        # Only a rank that failed in the call may be missing.
        assert set(range(comm.size)) - set(group.parent_ranks) <= set(comm._engine.gone_ranks())


@call()
def empty(comm):
    yield
    x = comm.empty(SMALL, np.int64)
    x[:] = comm.rank + 1
    comm.barrier()
    assert comm.shared_view(x, comm.size - 1).tolist() == [comm.size] * SMALL


@call()
def shared_result(comm):
    x = ones(comm, LARGE)
    yield
    out = comm.shared_result(LARGE, np.int64)
    comm.all_reduce(x, out)
    assert (out == total(comm)).all()


@call()
def share(comm):
    x = ones(comm, LARGE)
    yield
    with comm.share(x):
        comm.all_reduce(x)
    assert (x == total(comm)).all()


@call()
def all_reduce_shared(comm):
    x = comm.empty(LARGE, np.int64)
    x[:] = comm.rank + 1
    yield
    comm.all_reduce(x)
    assert (x == total(comm)).all()


@call()
def all_to_all_private(comm):
    """The kernel copies, if it lets ranks read each other's memory: `descent.descend` makes the communicator so."""
    if comm._engine.sharing is not None:
        comm._engine.sharing.private_nbytes = 0
    x = ones(comm, comm.size, LARGE)
    yield
    out = comm.all_to_all(x)
    assert (out == np.arange(1, comm.size + 1)[:, None]).all()
