"""What the ranks of `test_mpi.py` do: ``mpi_checks.py CHECK LAYOUT``; ranks with one letter are on one node."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.collective_checks import moves_opaque_types
from support.drivers import DRIVERS, run_cases
from support.oracle import Case, draw, reduce_model

import shmring
from shmring.nodes import collectives
from shmring.nodes.from_mpi import MpiCommunicator


def raises(kind, call, text=""):
    """What ``call()`` raises; the interpreters of the ranks may have no pytest."""
    raised = None
    try:
        call()
    except kind as error:
        raised = error
    assert raised is not None, f"no {kind}"
    assert text in str(raised), raised
    return raised


def cases(comm, seed):
    """The right answer, bit for bit, in every way, by the drivers that take any communicator."""
    kept = collectives.NRUNS, collectives.RUN
    collectives.NRUNS, collectives.RUN = 1 << 30, 1  # the ways take turns for ever
    for name in ("Direct", "Asynchronous", "Plan", "Many"):
        for fixed in ({}, {"fill": "small"}):
            drawn = [case for case in draw(60, f"{seed} {name}", DRIVERS[name].takes, **fixed) if case.is_exact]
            run_cases(comm, name, [case for case in drawn for _ in range(3 if name == "Direct" else 1)])
    collectives.NRUNS, collectives.RUN = kept


def choices(comm):
    """All ranks choose alike, and go on with what they have chosen."""
    for count in (1, 100, 5000, 100_000):
        x = np.full(count, comm.rank, np.float32)
        for _ in range(6 * collectives.NRUNS * collectives.RUN):
            comm.all_reduce(np.ones(count))
            comm.broadcast(x, root=1)
            comm.all_gather(x)
            comm.reduce_scatter(np.ones((comm.size, count)))
            comm.reduce(x, root=comm.size - 1)
            comm.barrier()
    ways = [(one["call"], one["most_nbytes"], one["way"]) for one in comm.stats()["ways"]]
    assert {"all_reduce", "broadcast", "all_gather", "barrier"} <= {one[0] for one in ways}, ways
    assert all(theirs == ways for theirs in comm.all_gather_object(ways))


def bits(comm):
    """Sums of floats are equal on all ranks, also with infinities and NaNs; near the sum in rank order otherwise."""
    for dtype in ("float32", "float64", "float16", "complex64"):
        for op in ("sum", "prod", "avg", "max", "min"):
            for count in (5, 4000, 300_000):
                if dtype == "complex64" and op in ("max", "min"):
                    continue
                for fill in ("usual", "special"):
                    rows = Case("all_reduce", count, dtype, fill=fill).inputs(comm.size)
                    found = comm.all_reduce(rows[comm.rank].copy(), op=op)
                    plain = np.nan_to_num(found.view(found.real.dtype), nan=7.0)  # a NaN may be any
                    assert all(np.array_equal(plain, theirs) for theirs in comm.all_gather(plain)), (dtype, op, count)
                    if fill == "usual":
                        wanted = reduce_model(rows, op)
                        tolerance = 1e-2 if dtype == "float16" else 1e-4
                        assert np.allclose(found, wanted, tolerance, tolerance), (dtype, op, count)


def messages(comm):
    n, me = comm.size, comm.rank
    after, before = (me + 1) % n, (me - 1) % n
    for count in (0, 1, 1000, 300_000):
        out = np.zeros(count)
        message = comm.sendrecv(np.full(count, float(me)), after, out, before, tag=7)
        assert (message.source, message.tag, message.nbytes) == (before, 7, 8 * count)
        assert (out == before).all()
    if me == 0:
        seen = []
        x = np.zeros(2, np.int64)
        for _ in range(50 * (n - 1)):
            source = comm.recv(x).source
            assert source == x[0]
            seen.append(tuple(x))
        for r in range(1, n):
            assert [k for source, k in seen if source == r] == list(range(50))
    else:
        for k in range(50):
            comm.send(np.array([me, k]), 0, tag=k)
    comm.barrier()
    arrays = {r: np.zeros(40_000) for r in range(n) if r != me}
    requests = [comm.irecv(x, r, tag=1) for r, x in arrays.items()]
    sends = [comm.isend(np.full(40_000, float(me)), r, tag=1) for r in range(n) if r != me]
    assert [request.wait(60).nbytes for request in requests] == [320_000] * (n - 1)
    assert all((x == r).all() for r, x in arrays.items())
    for send in sends:
        send.wait(60)
    if me == 0:
        comm.send_object("small", 1, tag=3)
        comm.send_object({"big": np.arange(200_000), "from": me}, 1)
    elif me == 1:
        assert comm.probe(0, 3, timeout=60).is_object
        assert comm.recv_object(0, 3) == "small"
        found = comm.recv_object()
        assert (found["big"] == np.arange(200_000)).all()
        assert comm.iprobe() is None
    comm.barrier()
    far = comm.nodes[1][0]  # from rank 0
    if me == 0:
        raises(shmring.MessageTimeoutError, lambda: comm.recv(np.zeros(1), far, timeout=0.05), "no message arrived")
        raises(shmring.MessageTimeoutError, lambda: comm.recv_object(far, timeout=0.05), "no message arrived")
    comm.barrier()
    if me == 0:
        comm.send(np.ones(3), far)
    elif me == far:
        raises(shmring.MessageTooLongError, lambda: comm.recv(np.zeros(2), 0))
        assert comm.recv(np.zeros(3), 0).nbytes == 24  # it is still there
    comm.barrier()
    if me not in (0, far):
        comm.send(np.full(2, me), me, tag=5)  # to itself
        x = np.zeros(2, int)
        assert comm.recv(x, me).tag == 5
        assert (x == me).all()
    comm.barrier()
    raises(TypeError, lambda: comm.irecv(np.zeros(1)), "needs a source")
    raises(ValueError, lambda: comm.recv(np.zeros((4, 4))[:, 1], before), "contiguous")
    request = comm.irecv(x := np.zeros(1), before)
    comm.send(np.ones((2, 2))[:1, 0], after)  # not contiguous

    async def received():
        return await request

    assert asyncio.run(received()).source == before
    assert request.exception() is None
    assert request.wait().nbytes == 8
    assert x == 1
    comm.barrier()


def many(comm):
    """Lists of arrays of several dtypes."""
    found = comm.all_reduce_many([np.ones(3), np.ones(4, np.int32), np.ones(2)])
    assert [x.tolist() for x in found] == [[comm.size] * 3, [comm.size] * 4, [comm.size] * 2]


def empty(comm):
    """A block without elements at the address of the input."""
    counts = [2, 0] + [2] * (comm.size - 2)
    x = np.ones(sum(counts))
    out = x[:0] if comm.rank == 1 else np.zeros(2)
    assert (comm.reduce_scatter(x, out, counts=counts) == comm.size).all()


def opaque(comm):
    moves_opaque_types(comm)


def objects(comm):
    n, me = comm.size, comm.rank
    big = np.arange(100_000) + me
    assert comm.broadcast_object({"from": me}, root=1) == {"from": 1}
    assert np.array_equal(comm.broadcast_object(big, root=n - 1), np.arange(100_000) + n - 1)
    assert comm.all_gather_object(("rank", me)) == [("rank", r) for r in range(n)]
    assert [x[0] for x in comm.all_gather_object(big)] == list(range(n))
    assert comm.gather_object(me, root=1) == (list(range(n)) if me == 1 else None)
    assert comm.scatter_object([str(r) for r in range(n)] if me == 0 else None) == str(me)
    assert comm.all_to_all_object([(me, r) for r in range(n)]) == [(r, me) for r in range(n)]
    assert comm.all_reduce_object(me + 1, op="land") is True
    assert comm.all_reduce_object([me], op="sum") == list(range(n))
    raises(shmring.ObjectError, lambda: comm.all_gather_object(lambda: 0 if me == 0 else me))
    comm.barrier()


def background(comm):
    n = comm.size
    work = [comm.all_reduce(np.full(k, 1.0), async_op=True) for k in (1, 1000, 200_000)]
    synchronous = comm.all_reduce(np.ones(2))
    assert (synchronous == n).all()
    assert [w.wait(60)[0] for w in work] == [n] * 3
    assert (comm.all_gather(np.array([comm.rank]), async_op=True).wait().reshape(-1) == np.arange(n)).all()

    async def both():
        return await asyncio.gather(*[_awaited(comm.all_reduce(np.ones(3), async_op=True)) for _ in range(3)])

    assert all((x == n).all() for x in asyncio.run(both()))
    called = []
    comm.barrier(async_op=True).add_done_callback(lambda w: called.append(comm.all_reduce(np.ones(1))[0]))
    comm.barrier()
    assert called == [n]
    raises(TypeError, lambda: comm.all_reduce("text", async_op=True))
    x = np.ones(1000)
    plan = comm.plan("all_reduce", x, op="max")
    for k in range(5):
        x[:] = comm.rank + k
        assert plan() is x
        assert (x == n - 1 + k).all()
    x[:] = comm.rank
    assert (plan.start().wait() == n - 1).all()
    assert "nodes" in plan.describe()
    raises(ValueError, lambda: comm.plan("send", x), "no plan for 'send'")


async def _awaited(work):
    return await work


def groups(comm):
    n, me = comm.size, comm.rank
    half = comm.split(me % 2, key=-me)
    members = sorted((r for r in range(n) if r % 2 == me % 2), reverse=True)
    assert half.parent_ranks == tuple(members) or half.size == len(members)
    assert half.rank == members.index(me)
    assert half.all_reduce(np.array([me]))[0] == sum(members)
    half.close()
    assert comm.split(None if me == 0 else 5) is None or me
    if me in (0, n - 1):
        pair = comm.subgroup([n - 1, 0])
        assert pair.rank == (0 if me == n - 1 else 1)
        assert pair.all_gather_object(me) == [n - 1, 0]
        pair.close()
    again = comm.dup(timeout=30.0)
    assert again.config.timeout == 30
    assert again.all_reduce(np.ones(1))[0] == n
    again.close()
    raises(ValueError, lambda: comm.subgroup([me, me]), "only once")
    raises(ValueError, lambda: comm.subgroup([(me + 1) % n]), "not among them")
    comm.barrier()


def refusals(comm):
    assert isinstance(comm, MpiCommunicator)
    here = ("empty", "array", "share", "shared_view", "shared_result", "explain", "trace", "shrink")
    for name in here:
        raises(TypeError, lambda name=name: getattr(comm, name)(3), "comm.local")
    raises(AttributeError, lambda: comm.nothing)
    raises(TypeError, lambda: comm.all_reduce([1, 2]))
    raises(TypeError, lambda: comm.all_reduce(np.ones(2, bool), op="avg"), "not defined")
    raises(ValueError, lambda: comm.all_reduce(np.ones(2), op="xyz"), "unknown op")
    raises(ValueError, lambda: comm.broadcast(np.ones(2), root=99), "must be a rank")
    raises(ValueError, lambda: comm.all_reduce(np.ones(2), timeout=-1))
    raises(ValueError, lambda: comm.all_reduce(np.ones(2), np.ones(3)), "must have 2")
    raises(TypeError, lambda: comm.all_reduce(np.ones(2), np.ones(2, np.int64)), "must be equal")
    whole = np.ones(5)
    raises(ValueError, lambda: comm.all_reduce(whole[:4], whole[1:]), "overlap")
    raises(ValueError, lambda: comm.all_gather(np.ones(2), counts=[1]), "numbers for")
    raises(ValueError, lambda: comm.send(np.ones(1), 0, tag=-1), "tag=-1")
    raises(ValueError, lambda: comm.send(np.ones(1), comm.size), "must be from 0")
    raises(TypeError, comm.__reduce__, "neither copied nor pickled")
    raises(TypeError, lambda: shmring.from_mpi(3), "intracommunicator")
    raises(TypeError, lambda: shmring.from_mpi(nonsense=3), "unknown setting")
    assert (comm.all_reduce(np.ones(2)) == comm.size).all()
    comm.close()
    raises(shmring.ClosedError, comm.barrier, "is closed")


def threads(comm):
    """Two threads receive from any source: one gets the message, and the other keeps its timeout."""
    received = []

    def receive():
        x = np.zeros(1)
        try:
            comm.recv(x, timeout=2.0)
        except shmring.MessageTimeoutError:
            x[0] = -1
        received.append(x[0])

    if comm.rank == 0:
        both = [threading.Thread(target=receive) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert sorted(received) == [-1, 7], received
    elif comm.rank == 1:
        comm.send(np.full(1, 7.0), 0)
    comm.barrier()


def closed(comm):
    """Calls of other threads that wait when the communicator is closed raise; so does what is waited for later."""
    group, before = comm.dup(), (comm.rank - 1) % comm.size
    errors = []

    def caught(call):
        try:
            call()
        except shmring.ShmringError as error:
            errors.append(type(error))

    request = group.irecv(np.zeros(1), before, tag=1)
    waits = (
        request.wait,
        group.isend(np.zeros(100_000), before, tag=2).wait,
        lambda: group.recv(np.zeros(1), before, tag=3),
        lambda: group.recv(np.zeros(1), tag=3),
        lambda: group.probe(tag=4),
    )
    threads = [threading.Thread(target=caught, args=(wait,), daemon=True) for wait in waits]
    for thread in threads:
        thread.start()
    comm.barrier()
    group.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == len(waits), errors
    assert set(errors) <= {shmring.ClosedError, shmring.PeerLostError}, errors  # a peer may close first
    raises((shmring.ClosedError, shmring.PeerLostError), request.wait)
    comm.barrier()
    for _ in range(3):  # closed as soon as it is made
        comm.dup().close()
    assert comm.all_reduce(np.ones(1))[0] == comm.size


def closed_often(comm):
    """Whatever is duplicated for a communicator is given back: MPICH has some two thousand identifiers."""
    for k in range(600):
        with shmring.from_mpi() if k % 2 else comm.dup() as group:
            if k % 100 == 0:
                assert group.all_reduce(np.ones(1))[0] == comm.size


def finalized(comm, order):
    """MPI.Finalize() closes what is open."""
    group, loose = comm.dup(), shmring.from_mpi()
    work = comm.all_reduce(np.ones(1000), async_op=True)
    group.sendrecv(np.ones(1), (comm.rank + 1) % comm.size, np.zeros(1))
    loose.send(np.ones(1), (comm.rank + 1) % comm.size)  # which no rank receives
    if order == "close first":
        for one in (comm, group, loose):
            one.close()
    rank = comm.rank
    MPI.Finalize()
    assert work.wait(60)[0] == comm.size
    for one in (comm, group, loose):
        assert one.closed
        raises(shmring.ClosedError, lambda one=one: one.all_reduce(np.ones(1)))
        raises(shmring.ClosedError, lambda one=one: one.recv(np.ones(1)))
        raises(shmring.ClosedError, one.dup, "closed")
        one.close()
    raises(RuntimeError, shmring.from_mpi, "ended already")
    print(f"rank {rank} is done", flush=True)
    sys.exit()


def failures(comm):
    """A rank that fails alone while the ranks are connected: it raises its error, and no other rank waits for it."""
    from shmring.nodes import discovery

    def fail(*args, **kwargs):
        raise shmring.OutOfSharedMemoryError("no room in this test")

    odd = comm.size - 1
    for module, name in ((discovery, "create"), (discovery, "try_attach"), (discovery, "connect")):
        original = getattr(module, name)
        if comm.rank == odd:
            setattr(module, name, fail)
        kind = shmring.OutOfSharedMemoryError if comm.rank == odd else shmring.ShmringError
        raises(kind, lambda: shmring.from_mpi(rendezvous_timeout=2))
        setattr(module, name, original)
        comm.barrier()
    with shmring.from_mpi(allow_pickle=False) as again:
        assert again.all_reduce(np.ones(1))[0] == comm.size


def disagreement(comm):
    """Ranks of a node that disagree: an error where they meet in shared memory next."""
    group = comm.dup()
    group.all_reduce(np.ones(100, np.float32), op="min" if comm.rank == comm.nodes[0][1] else "max")

    def call():
        for _ in range(2 * collectives.RUN):
            group.all_reduce(np.ones(100, np.float32))

    error = raises(shmring.BrokenError, call, "disagree")
    assert comm.rank not in comm.nodes[0] or isinstance(error, shmring.MismatchError), error
    raises(shmring.BrokenError, group.barrier)
    assert group.is_broken
    group.close()


def abort(comm):
    group = comm.dup()
    if comm.rank == 1:
        time.sleep(0.2)
        group.abort("enough")
    else:
        error = raises(shmring.AbortedError, lambda: group.all_reduce(np.ones(3)), "rank 1 aborted: enough")
        assert error.rank == 1, error
    group.close()
    group = comm.dup()

    def leave_with_an_exception():
        with group:
            if comm.rank == 0:
                raise KeyError("oops")
            group.barrier()

    raises(KeyError if comm.rank == 0 else shmring.AbortedError, leave_with_an_exception, "oops")


def late(comm):
    """A rank that does not come is an error on all others, which names the call."""
    group = comm.dup(timeout=2.0)
    tardy = comm.size - 1
    comm.barrier()
    if comm.rank != tardy:
        kinds = (shmring.CollectiveTimeoutError, shmring.AbortedError)  # the second where it was told by another rank
        raises(kinds, lambda: group.all_reduce(np.ones(3)), "all_reduce(sum, float64 x 3)")
        raises(kinds, lambda: group.all_reduce(np.ones(3)))
        raises(kinds, lambda: group.recv(np.ones(3)))
    comm.barrier()
    group.close()


def leaves(comm):
    """A rank that closes while others need it: those of its node notice, and tell the others."""
    for kept in (4 * collectives.RUN * collectives.NRUNS, 0):  # by the way that is settled; in trials
        group = comm.dup(timeout=20.0)
        for _ in range(kept + 1):
            group.all_reduce(np.ones(3))
        gone = comm.nodes[0][1]
        if comm.rank == gone:
            group.close()
        else:
            kind = shmring.PeerLostError if comm.rank in comm.nodes[0] else shmring.AbortedError
            error = raises(kind, lambda group=group: [group.all_reduce(np.ones(3)) for _ in range(10)])
            assert error.rank == gone or comm.rank not in comm.nodes[0], error
        comm.barrier()
        group.close()


def main(check, layout, *more):
    os.environ["SHMRING_NODE"] = layout[MPI.COMM_WORLD.rank]
    comm = shmring.from_mpi(timeout=60.0)
    assert comm.nodes == [[r for r, one in enumerate(layout) if one == node] for node in dict.fromkeys(layout)]
    globals()[check](comm, *more)
    comm.close()
    print(f"rank {MPI.COMM_WORLD.rank} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
