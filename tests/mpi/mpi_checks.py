"""What the ranks of `test_mpi.py` do: ``mpi_checks.py CHECK LAYOUT``; ranks with one letter are on one node."""

import asyncio
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.collective_checks import moves_opaque_types
from support.drivers import Direct, draw_for, run_cases
from support.oracle import Case, check, draw, reduce_model

import shmring
from shmring.nodes.from_mpi import MpiCommunicator

LOOK = 46  # calls, after which a look at the wire's own collective is over


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
    """The right answer, bit for bit, by the drivers that take any communicator."""
    for name in ("Direct", "Asynchronous", "Plan", "Many"):
        run_cases(comm, name, draw_for(name, 80, seed))


def many(comm):
    """Lists of arrays of several dtypes."""
    found = comm.all_reduce_many([np.ones(3), np.ones(4, np.int32), np.ones(2)])
    assert [x.tolist() for x in found] == [[comm.size] * 3, [comm.size] * 4, [comm.size] * 2]


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
    raises(shmring.ObjectError, lambda: comm.all_gather_object(lambda: 0 if me == 0 else me))
    comm.barrier()


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
    requests = [comm.irecv(np.zeros(40_000), r, tag=1) for r in range(n) if r != me]
    sends = [comm.isend(np.full(40_000, float(me)), r, tag=1) for r in range(n) if r != me]
    for request in requests:
        assert (request.x if hasattr(request, "x") else np.zeros(1)).size
        assert request.wait(60).nbytes == 320_000
    for send in sends:
        send.wait(60)
    found = comm.recv_object(before, 0) if me % 2 else None  # what is long waits for its receiver
    comm.send_object({"big": np.arange(20_000), "from": me}, after)
    comm.send_object("small", after, tag=3)
    found = found or comm.recv_object(before, 0)
    assert found["from"] == before
    assert (found["big"] == np.arange(20_000)).all()
    assert comm.probe(before, 3).is_object
    assert comm.recv_object() == "small"
    assert comm.iprobe() is None
    comm.barrier()
    far = next(r for r in range(n) if r not in comm.nodes[comm.node])
    raises(shmring.MessageTimeoutError, lambda: comm.recv(np.zeros(1), far, timeout=0.05))
    comm.barrier()
    far = comm.nodes[1][0]  # from rank 0
    if me == 0:
        comm.send(np.ones(3), far)
    elif me == far:
        raises(shmring.MessageTooLongError, lambda: comm.recv(np.zeros(2), 0))
        raises(TypeError, lambda: comm.recv(np.zeros(3, np.int64), 0), "can still be received")
        raises(shmring.MessageError, lambda: comm.recv_object(0), "recv()")
        x = np.zeros(3)
        comm.recv(x)
        assert (x == 1).all()
    comm.barrier()
    if me == 0:
        comm.send(np.zeros(1), far, tag=0)
        comm.send(np.ones(100), far, tag=1)
    elif me == far:
        comm.probe(0, tag=1)
        raises(shmring.MessageTooLongError, lambda: comm.recv(np.zeros(1), 0, tag=1))
        assert comm.probe(timeout=60).tag == 0  # what did not fit has kept its place
        comm.recv(np.zeros(1), 0)
        assert comm.recv(np.zeros(100), 0).tag == 1
        assert comm.probe(timeout=0.01) is None
    else:
        comm.send(np.full(2, me), me, tag=5)  # to itself
        x = np.zeros(2, int)
        assert comm.recv(x, me).tag == 5
        assert (x == me).all()
    comm.barrier()
    if me == 0:
        requests = [comm.isend(np.full(1, k), far) for k in range(300)]  # far more than wait for a slow receiver
        assert requests[0].done()
        assert not requests[-1].done()
        raises(shmring.MessageTimeoutError, lambda: requests[-1].wait(0.01))
        comm.barrier()
        assert all(request.result(60) is None for request in requests)
    elif me == far:
        comm.barrier()
        for k in range(300):
            comm.recv(x := np.zeros(1, int), 0)
            assert x[0] == k
    else:
        comm.barrier()
    comm.barrier()
    request = comm.irecv(x := np.zeros(1), before)
    called = []
    request.add_done_callback(called.append)
    comm.send(np.ones(1), after)

    async def received():
        return await request

    assert asyncio.run(received()).source == before
    assert called == [request]
    assert request.exception() is None
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


def merged(comm):
    """Each node adds its ranks first: equal on all ranks and in every run, near the sum in rank order."""
    with shmring.from_mpi(reproducible=False) as loose:
        for count in (5, 1000, 300_000):
            rows = Case("all_reduce", count, "float64").inputs(comm.size)
            wanted = reduce_model([reduce_model([rows[r] for r in ranks], "sum") for ranks in comm.nodes], "sum")
            assert np.array_equal(loose.all_reduce(rows[comm.rank].copy()), wanted)
            for _ in range(LOOK):  # by MPI's own collective, too
                found = loose.all_reduce(rows[comm.rank].copy())
                assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)
                assert all(np.array_equal(found, theirs) for theirs in loose.all_gather(found))
            mean = loose.all_reduce(rows[comm.rank].copy(), op="avg")
            assert np.array_equal(mean, wanted / comm.size)


def is_of_the_wire(case):
    """Whether MPI's own collective can make such a call, with the same result in any order; ``small`` inputs."""
    return not case.counts and case.count <= 1025 and case.op in ("sum", "prod") and case.dtype != "float16"


def wire(comm, seed):
    """The calls that MPI's own collectives can make, in both ways, and what all ranks choose."""
    with shmring.from_mpi(reproducible=False) as loose:
        driver = Direct(loose)
        drawn = draw(40, seed, is_of_the_wire, fill="small")
        drawn += draw(10, seed, is_of_the_wire, dtype="int64")
        # Sums that wrap around: Open MPI's own of 8 and 16 bits do not.
        drawn += [Case("all_reduce", 100, dtype) for dtype in ("uint8", "int8", "uint16", "int16", "uint32")]
        for case in drawn:
            for _ in range(LOOK):
                check(driver, case)
        for k in range(LOOK):  # in place on some ranks
            x = np.full(3, loose.rank % 2 == 0)
            assert loose.all_reduce(x, np.empty_like(x) if loose.rank == k % 2 else None, op="lor").all()
        calls = loose.stats()["wire_calls"]
        assert len(calls) > 20
        assert sum(call["us"]["wire"] is not None for call in calls) > 20
        ways = [(call["call"], call["way"]) for call in calls]
        assert all(theirs == ways for theirs in loose.all_gather_object(ways))
    names = [call["call"].partition("(")[0] for call in comm.stats()["wire_calls"]]
    assert "all_reduce" not in names  # of floats, in rank order
    comm.broadcast(np.ones(3))
    assert any(call["call"].startswith("broadcast(float64 x 3") for call in comm.stats()["wire_calls"])


def by_wire(comm, calls):
    """Have these calls made by MPI's own collectives from now on."""
    for call in calls:
        call()
    for trials in comm.engine.executor.trials.values():
        trials.pin("wire")
    return comm


def wire_failures(comm):
    """What breaks a group ends the collectives of MPI, too."""
    n, me = comm.size, comm.rank
    x = np.ones(1000)

    def move(group):
        return group.broadcast(x, root=0)

    def other_move(group):
        return group.all_gather(x)

    def made(**settings):
        group = comm.dup(**settings)
        by_wire(group, [lambda: move(group), lambda: other_move(group)])
        comm.barrier()
        return group

    group = made(timeout=2.0)
    if me != 0:
        error = raises(shmring.CollectiveTimeoutError, lambda: move(group))
        assert 0 in error.late, error
    comm.barrier()
    group.close()
    group = made()
    if me == n - 1:
        group.abort("enough")
    else:
        raises(shmring.AbortedError, lambda: other_move(group), "enough")
    comm.barrier()
    group.close()
    group = made()
    if me == n - 1:
        group.close()
    else:
        error = raises(shmring.PeerLostError, lambda: other_move(group))
        assert error.rank == n - 1, error
    comm.barrier()
    group.close()
    for odd in (0, n - 1):
        group = made()

        def disagree(group=group, odd=odd):
            (other_move if me == odd else move)(group)
            for _ in range(200):  # found at the latest when the ranks announce where they are
                other_move(group)
                time.sleep(0.01)

        raises(shmring.MismatchError, disagree, "disagree")
        raises(shmring.MismatchError, group.barrier)
        comm.barrier()
        group.close()


def rails(comm):
    """Slices travel on all rails, and a rank that has its own waits in shared memory while its messages leave."""
    with shmring.from_mpi(reproducible=False, timeout=60.0) as loose:
        random = np.random.default_rng(comm.rank)
        for _ in range(100):
            x = np.ones(int(comm.broadcast_object(int(random.integers(20_000, 300_000)))))
            time.sleep(random.choice([0, 0, 1e-4, 3e-3]))
            assert (loose.all_reduce(x) == comm.size).all()
            assert (loose.all_gather(x) == comm.size).all()


def refusals(comm):
    assert isinstance(comm, MpiCommunicator)
    here = ("empty", "zeros", "array", "share", "shared_view", "shared_result", "explain", "trace", "placement")
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
    raises(TypeError, comm.__reduce__, "neither copied nor pickled")
    raises(TypeError, lambda: shmring.from_mpi(3), "intracommunicator")
    raises(TypeError, lambda: shmring.from_mpi(nonsense=3), "unknown setting")
    assert (comm.all_reduce(np.ones(2)) == comm.size).all()
    comm.close()
    raises(shmring.ClosedError, comm.barrier, "is closed")


def repeats(comm, seed):
    """Calls that agree with an earlier one take a shorter way; what does not agree must not."""
    n, me = comm.size, comm.rank
    # More than programs are kept.
    run_cases(comm, "Direct", [Case("all_reduce", count, place="in") for count in range(1, 100) for _ in range(2)])
    for count in (1, 50, 1, 20_000, 300_000):
        some = draw_for("Direct", 20, seed, count=count)
        run_cases(comm, "Direct", [*some, *some, *some[::-1]])
        x, whole = np.full(count, me, np.int32), np.zeros((n, count), np.int32)
        x.flags.writeable = me != 1  # the root only reads
        assert comm.broadcast(x, root=1) is x
        assert (x == 1).all()
        locked = np.zeros(count, np.int32)
        locked.flags.writeable = False
        memory = np.zeros(2 * count + 1, np.int32)
        for kind, call in (
            (TypeError, partial(comm.all_reduce, x, locked)),
            (TypeError, partial(comm.all_reduce, x, "text")),
            (TypeError, partial(comm.all_reduce, x, np.zeros(count, np.float32))),
            (ValueError, partial(comm.all_gather, x, np.zeros((n, count + 1), np.int32))),
            (ValueError, partial(comm.all_gather, whole.reshape(-1)[1 : count + 1], whole)),
            (ValueError, partial(comm.all_reduce, x, timeout=-1)),
            (ValueError, partial(comm.all_reduce, memory[:count], memory[count // 2 + 1 :][:count])),
        )[: 7 if count > 1 else 4]:  # one element overlaps with nothing
            raises(kind, call)
    for _ in range(2):
        x = np.ones(7)
        work = comm.all_reduce(x, async_op=True)
        y = comm.all_reduce(np.ones(7))
        assert work.wait() is x
        assert (x == n).all()
        assert (y == n).all()
    calls = [partial(comm.all_gather, np.zeros(3), np.zeros((n, 3))), partial(comm.all_reduce, np.zeros(3))]
    for call in calls:
        call()
    raises(shmring.MismatchError, calls[me > 0], "disagree")
    raises(shmring.MismatchError, lambda: comm.all_reduce(np.zeros(3)))
    comm.close()
    raises(shmring.ClosedError, lambda: comm.all_reduce(np.zeros(3)))


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
        raises(shmring.ClosedError, one.shrink, "finalized")
        one.close()
    raises(RuntimeError, shmring.from_mpi, "ended already")
    print(f"rank {rank} is done", flush=True)
    sys.exit()


def failures(comm):
    """A rank that fails alone while the ranks are connected: it raises its error, and no other rank waits for it."""
    from shmring.nodes import discovery, group, mpi_wire

    def fail(*args, **kwargs):
        raise shmring.OutOfSharedMemoryError("no room in this test")

    odd = comm.size - 1
    places = [(discovery, "create"), (discovery, "try_attach"), (group, "init"), (mpi_wire, "MpiTransfers")]
    for module, name in places:
        original = getattr(module, name)
        if comm.rank == odd:
            setattr(module, name, fail)
        if comm.rank == odd:
            raises(shmring.OutOfSharedMemoryError, lambda: shmring.from_mpi(rendezvous_timeout=2))
        else:
            raises(shmring.ShmringError, lambda: shmring.from_mpi(rendezvous_timeout=2))
        setattr(module, name, original)
        comm.barrier()
    with shmring.from_mpi(allow_pickle=False) as again:
        assert again.all_reduce(np.ones(1))[0] == comm.size
        if comm.rank == 0:
            again.abort("without pickle")
        raises(shmring.AbortedError, lambda: again.all_reduce(np.ones(1)), "without pickle")


def disagreement(comm):
    for odd in (comm.size - 1, 0):
        group = comm.dup()

        def call(group=group, odd=odd):
            group.all_reduce(np.ones(100_000), op="max" if comm.rank == odd else "sum")
            group.barrier()

        error = raises(shmring.MismatchError, call, "disagree")
        assert "all_reduce" in str(error)
        raises(shmring.MismatchError, group.barrier)
        assert group.is_broken
        again = group.shrink()  # no rank died
        assert again.all_reduce(np.ones(1))[0] == comm.size
        again.close()
        group.close()


def abort(comm):
    group = comm.dup()
    if comm.rank == 1:
        time.sleep(0.2)
        group.abort("enough")
    else:
        error = raises(shmring.AbortedError, lambda: group.all_reduce(np.ones(3)), "rank 1 aborted: enough")
        assert error.rank == 1
    group.close()
    group = comm.dup()

    def leave_with_an_exception():
        with group:
            if comm.rank == 0:
                raise KeyError("oops")
            group.barrier()

    raises(KeyError if comm.rank == 0 else shmring.AbortedError, leave_with_an_exception, "oops")


def late(comm):
    group = comm.dup(timeout=2.0)
    tardy = comm.size - 1
    comm.barrier()  # ranks that are late by more than that are named, too
    if comm.rank != tardy:
        error = raises(shmring.CollectiveTimeoutError, lambda: group.all_reduce(np.ones(3)))
        assert error.late == (tardy,), error
    comm.barrier()
    group.close()


def leaves(comm):
    group = comm.dup()
    group.all_reduce(np.ones(3))
    if comm.rank == comm.size - 1:
        group.close()
    else:
        error = raises(shmring.PeerLostError, group.barrier)
        assert error.rank == comm.size - 1, error
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
