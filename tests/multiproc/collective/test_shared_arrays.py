"""Shared arrays: the same bits as private ones whatever lies where, and nothing left of them in the end."""

import contextlib
import gc
import os
import re
import resource
import signal
import time

import numpy as np
import pytest
from support.emulation import needs_address_limit
from support.harness import RANKS, report, run_ranks, start_ranks
from support.inputs import NUMPY_DTYPES, same_bits, values
from support.limits import address_space_nbytes, limited
from support.on_ranks import on_ranks
from support.oracle import reduce_model
from support.segments import standing
from support.waits import until_ended

from shmring.collectives.plan.limits import LINE
from shmring.collectives.shared import share
from shmring.core.memory import spelling, syscalls
from shmring.core.memory.sweep import leftovers
from shmring.errors import AbortedError, OutOfSharedMemoryError, PeerLostError, SegmentError

GROUPS = [n for n in RANKS if n > 1]


def nmapped(comm):
    return comm._engine.sharing.nzero_copy


def map_rooted(comm):
    """Let small broadcasts, gathers and scatters go without staging too."""
    comm._engine.sharing.rooted_nbytes = 0


@on_ranks(*GROUPS)
def test_only_the_buffers_that_others_reach_must_be_shared(comm):
    """What others reach must be shared, what only its owner touches need not be."""
    size, rank, count = comm.size, comm.rank, 5000
    x, blocks = comm.array(np.full(count, rank, np.float32)), comm.array(np.full((size, count), rank, np.float32))
    map_rooted(comm)
    everyone = np.repeat(np.arange(size, dtype=np.float32)[:, None], count, 1)
    before = nmapped(comm)
    assert same_bits(comm.all_gather(x), everyone)
    assert same_bits(comm.all_to_all(blocks), everyone)
    assert (comm.reduce_scatter(blocks) == sum(range(size))).all()
    mine = x if rank == 0 else np.ones(count, np.float32)
    assert not comm.broadcast(mine).any()
    out = np.ones(count, np.float32)
    assert not comm.scatter(blocks if rank == 0 else None, out).any()
    gathered = blocks if rank == 0 else None
    comm.gather(np.full(count, rank, np.float32), gathered)
    assert rank or same_bits(blocks, everyone)
    assert nmapped(comm) - before == 6
    # The other way round: what others reach is private.
    comm.broadcast(mine if rank else np.zeros(count, np.float32))
    comm.all_gather(np.zeros(count, np.float32), blocks)
    comm.all_reduce(x, np.zeros(count, np.float32))
    comm.reduce(x, np.zeros(count, np.float32) if rank == 0 else None)
    assert nmapped(comm) - before == 6


@on_ranks(*GROUPS)
def test_ranks_may_use_different_allocations_as_long_as_all_have_them(comm):
    a, b = (comm.empty(3000, np.int32) for _ in range(2))
    map_rooted(comm)
    x = (a, b)[comm.rank % 2]
    x[:] = comm.rank
    comm.all_reduce(x)  # every rank has views of both
    assert (x == sum(range(comm.size))).all()
    assert nmapped(comm) == 1
    del b
    if comm.rank == 0:
        del a
        x = np.zeros(3000, np.int32)
        gc.collect()
        assert len(comm._engine.sharing.registry) == 0
    x[:] = comm.rank
    comm.broadcast(x, root=1)  # rank 0 cannot reach it any more, so no rank tries
    assert (x == 1).all()
    assert nmapped(comm) == 1
    comm.all_reduce(x)
    assert (x == comm.size).all()
    assert nmapped(comm) == 1


def in_other_ways(comm):
    """Persistent plans, calls in the background, functions as operations, bundles."""
    size, rank, count = comm.size, comm.rank, 5000
    x = comm.empty(count, np.float64)
    total = sum(range(size))
    plan = comm.plan("all_reduce", x, op="sum")
    for i in range(3):
        x[:] = rank + i
        plan()
        assert (x == total + i * size).all()
        x[:] = rank
        comm.all_reduce(x, async_op=True).wait()
        assert (x == total).all()
    assert nmapped(comm) == 6
    x[:] = rank
    comm.all_reduce(x, op=np.add)
    assert (x == total).all()
    pieces = [x[i : i + 1000] for i in range(0, count, 1000)]
    x[:] = rank
    comm.all_reduce_many(pieces)
    assert (x == total).all()
    return nmapped(comm)


@pytest.mark.parametrize("n", GROUPS)
def test_calls_of_other_kinds_take_shared_arrays_as_well(n):
    counts = run_ranks(n, in_other_ways)
    assert counts == [counts[0]] * n


@on_ranks(2, 3)
def test_views_of_any_layout_are_reduced_in_place(comm):
    matrix = comm.empty((60, 100), np.float64)
    for view in (matrix[:, :50], matrix.T, matrix[::-1], matrix[7:40], matrix.reshape(-1)[11:5000]):
        matrix[...] = 1
        view[...] = values(np.float64, view.shape, comm.rank)
        whole = reduce_model([values(np.float64, view.shape, r) for r in range(comm.size)], "sum")
        comm.all_reduce(view)
        assert (view == whole).all()
        assert np.count_nonzero(matrix == 1) >= matrix.size - view.size


@on_ranks(3)
def test_the_root_of_a_small_broadcast_does_not_wait_though_the_array_is_shared(comm):
    """The others come only after the root has returned: if it waited for them, none would ever come."""
    x, returned = comm.array(np.full((1 << 20) - 1, comm.rank, np.uint8)), comm.shared_result(1, np.uint8)
    while comm.rank and not returned[0]:
        time.sleep(0.001)
    comm.broadcast(x)
    returned[0] = 1
    assert not x.any()
    assert nmapped(comm) == 0


@on_ranks(3)
def test_a_large_broadcast_needs_no_staging(comm):
    x = comm.array(np.full(1 << 20, comm.rank, np.uint8))
    comm.broadcast(x, root=1)
    assert (x == 1).all()
    assert nmapped(comm) == 1


# ---- one result for all ----------------------------------------------------------------------------------------------


def into_results(comm, dtype, count):
    size, rank = comm.size, comm.rank
    x, result, gathered = comm.empty(count, dtype), comm.shared_result(count, dtype), None
    gathered = comm.shared_result((size, count), dtype, root=size - 1)
    map_rooted(comm)
    for key in range(10):
        xs = [values(dtype, count, r, key) for r in range(size)]
        x[:] = xs[rank]
        for source in (x, xs[rank]):
            assert comm.all_reduce(source, result) is result
            assert same_bits(result, reduce_model(xs, "sum"))
            comm.all_gather(source, gathered)
            assert same_bits(gathered, np.stack(xs))
        # No rank writes a result before all ranks are in that call: the array read here must not change before.
        if rank == key % size:
            time.sleep(0.002)
        assert same_bits(result, reduce_model(xs, "sum"))
        assert same_bits(gathered, np.stack(xs))
    root = size - 1
    comm.reduce(x, result if rank == root else None, root=root)
    comm.gather(x, gathered if rank == root else None, root=root)
    comm.barrier()
    assert same_bits(result, reduce_model(xs, "sum"))
    assert same_bits(gathered, np.stack(xs))
    with pytest.raises(ValueError, match="shared result"):
        comm.all_reduce(result)
    comm.barrier()
    return result.ctypes.data != gathered.ctypes.data, nmapped(comm)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("count", "mapped"), [(5, 0), (4096 // 4 + 1, 32), (100_003, 32)])
@pytest.mark.parametrize("n", GROUPS)
def test_one_result_serves_all_ranks(n, count, mapped):
    limit_passed = mapped if 4 * count > 4096 else 0
    assert run_ranks(n, into_results, np.float32, count) == [(True, limit_passed)] * n


# ---- what they are ---------------------------------------------------------------------------------------------------


@on_ranks(*RANKS)
def test_a_shared_view_sees_what_its_owner_wrote_and_writes_it(comm):
    size, rank = comm.size, comm.rank
    matrix = comm.empty((4, 6), np.int64)
    matrix[1:3, ::2] = rank + 1
    comm.barrier()
    for r in range(size):
        for part in (matrix, matrix[1:3, ::2], matrix[::-1], matrix.T, matrix[2, 1:], matrix[3]):
            view = comm.shared_view(part, r)
            assert view.shape == part.shape
            assert view.strides == part.strides
            assert view.dtype == part.dtype
            assert (view == (part != 0) * (r + 1)).all()
    assert np.shares_memory(comm.shared_view(matrix, rank), matrix) or size > 1
    comm.barrier()
    right = comm.shared_view(matrix, (rank + 1) % size)
    right[0] = rank  # written into the neighbour's
    comm.shared_view(right, rank)[3] = rank + 10  # back again: what corresponds to the neighbour's is one's own
    comm.barrier()
    assert (matrix[0] == (rank - 1) % size).all()
    assert (matrix[3] == rank + 10).all()
    frozen = matrix.view()
    frozen.flags.writeable = False
    assert not comm.shared_view(frozen, 0).flags.writeable


@on_ranks(2)
def test_empty_and_array_make_plain_arrays_of_any_shape_and_dtype(comm):
    assert comm.size == 2
    x = comm.empty((3, 4), "float32")
    assert (type(x), x.shape, x.dtype, x.flags.c_contiguous, x.flags.writeable) == (
        np.ndarray,
        (3, 4),
        np.dtype("f4"),
        True,
        True,
    )
    assert x.ctypes.data % 4096 == 0
    assert comm.empty(3).dtype == np.float64
    assert not comm.empty((1 << 16,), np.uint8).any()
    y = comm.array([[1, 2], [3, 4]])
    assert y.tolist() == [[1, 2], [3, 4]]
    assert comm.array(np.float32(2.5)).shape == ()
    assert comm.array(NUMPY_DTYPES["bfloat16"].type(1.5)).dtype == NUMPY_DTYPES["bfloat16"]
    assert comm.empty((0, 3)).shape == (0, 3)
    structured = comm.empty(2, [("a", "i4"), ("b", "f8")])
    structured["b"] = 1
    assert comm.broadcast(np.arange(3)).tolist() == [0, 1, 2]


@on_ranks(1, 3)
def test_bad_arguments_raise_before_anything_is_sent(comm):
    x = comm.empty(10)
    cases = [
        (TypeError, lambda: comm.empty(3, object)),
        (TypeError, lambda: comm.empty(2.5)),
        (ValueError, lambda: comm.empty((3, -1))),
        (ValueError, lambda: comm.empty(1 << 60)),
        (ValueError, lambda: comm.empty((1 << 40, 1 << 40))),
        (ValueError, lambda: comm.empty((0, 1 << 70))),
        (ValueError, lambda: comm.empty((1,) * 100)),
        (ValueError, lambda: comm.shared_result(1 << 70, root=0)),
        (ValueError, lambda: comm.shared_result((1,) * 100)),
        (TypeError, lambda: comm.array(np.ma.masked_equal([1, 2], 2))),
        (TypeError, lambda: comm.shared_view(x.view(np.ma.MaskedArray), 0)),
        (TypeError, lambda: comm.empty(3, "no such dtype")),
        (ValueError, lambda: comm.shared_result(3, root=comm.size)),
        (ValueError, lambda: comm.shared_view(x, comm.size)),
        (ValueError, lambda: comm.shared_view(x, -1)),
        (ValueError, lambda: comm.shared_view(np.empty(10), 0)),
        (TypeError, lambda: comm.shared_view([1], 0)),
        (TypeError, lambda: comm.shared_view(x, 0.5)),
    ]
    for error, call in cases[: None if comm.rank else 12]:
        with pytest.raises(error):
            call()
    assert comm.empty(3).shape == (3,)


@on_ranks(2)
def test_ranks_that_ask_for_different_arrays_all_raise_and_go_on(comm):
    for shape, dtype in [(3 + comm.rank, "f4"), ((2, 6) if comm.rank else (6, 2), "f4"), (3, f"f{4 + 4 * comm.rank}")]:
        with pytest.raises(ValueError, match=r"rank 0: .*; rank 1: "):
            comm.empty(shape, dtype)
    with pytest.raises(ValueError, match="different"):
        comm.shared_result(3) if comm.rank else comm.empty(3)
    assert (comm.empty(3) == 0).all()
    comm.barrier()
    assert standing(comm.name) == []


# ---- how they go -----------------------------------------------------------------------------------------------------


def mappings(comm):
    """Segments of this session mapped in this process: their names are gone, so the kernel calls them deleted."""
    with open("/proc/self/maps") as file:
        return sum(spelling.session_prefix(comm.name) in line and "(deleted)" in line for line in file)


def held(comm):
    return mappings(comm), len(os.listdir("/proc/self/fd")), len(comm._engine.sharing.registry)


@pytest.mark.sample(1)
@on_ranks(1, 2, 4)
def test_hundreds_of_arrays_made_and_dropped_leak_nothing(comm):
    x = comm.empty(1000)
    x[:] = 1
    comm.all_reduce(x)
    before = held(comm)
    for i in range(200):
        x = comm.empty(1000 + i)
        x[:] = comm.rank
        y = comm.shared_result(10)
        comm.all_reduce(x)
        assert x[i] == sum(range(comm.size))
    del y
    assert held(comm) == before
    view = x[3:5].view(np.int64)[1:]
    peers = comm.shared_view(x, 0)[:2]
    del x
    assert mappings(comm) == before[0]  # held by the views
    del view
    assert mappings(comm) == before[0]
    comm.barrier()
    assert peers[0] == sum(range(comm.size))
    del peers
    assert mappings(comm) == before[0] - comm.size


@on_ranks(3)
def test_an_array_that_its_owner_dropped_stays_for_ranks_with_a_view(comm):
    x = comm.array(np.full(5000, comm.rank))
    theirs = comm.shared_view(x, 0)
    if comm.rank == 0:
        x[:] = 77
        del x, theirs
    comm.barrier()
    if comm.rank:
        assert (theirs == 77).all()  # the memory stays as long as a view refers to it
    comm.barrier()


@on_ranks(2)
def test_arrays_outlive_their_communicator(comm):
    x = comm.array(np.arange(5000))
    comm.barrier()
    comm.close()
    assert x.sum() == 5000 * 4999 // 2
    x[:] = 0
    del x
    gc.collect()
    assert mappings(comm) == 0

    # That nothing is left of it in /dev/shm is seen around every test (conftest.py).


def die_while_making(comm, call):
    comm.barrier()
    if comm.rank == 1:
        syscalls.fault = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == call else None
    with pytest.raises(PeerLostError) as caught:
        comm.empty(1 << 16)
    assert caught.value.rank == 1
    until_ended(comm._engine.segments[1].header.pid)
    comm.close()  # a rank that has noticed the death before it made anything unlinks the name here
    return [name for name in standing(comm.name) if name.endswith(("-r1", f"-r{comm.rank}"))]


@pytest.mark.parametrize("call", ["shm_open", "posix_fallocate", "madvise", "lstat", "fstat"])
def test_a_rank_killed_while_it_makes_an_array_leaves_no_name(call):
    outcomes = start_ranks(3, die_while_making, call).outcomes()
    assert outcomes[1].signal == signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, outcome
        assert outcome.result == []


def run_out(comm, what, room):
    """One rank has no room, in the file system or in its address space; all ranks raise and go on."""
    size, rank, nbytes = comm.size, comm.rank, 64 << 20
    x = comm.empty(2000)
    limit = room * nbytes // 2 + (address_space_nbytes() if what == resource.RLIMIT_AS else 0)
    with limited(what, int(limit)) if rank == size - 1 else contextlib.nullcontext():
        with pytest.raises(OutOfSharedMemoryError) as caught:
            comm.empty(nbytes, np.uint8)
    assert caught.value.needed >= nbytes
    if rank != size - 1:
        assert re.search(f"no rank has the shared array, because rank {size - 1} failed: cannot", str(caught.value))
    comm.barrier()
    assert standing(comm.name) == []
    x[:] = rank
    comm.all_reduce(x)
    assert (x == sum(range(size))).all()
    y = comm.empty(nbytes, np.uint8)
    assert mappings(comm) >= 2 * size
    del y
    return mappings(comm)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_rank_without_room_to_make_its_array_is_an_error_for_all_and_the_communicator_stays_usable(n):
    assert len(set(run_ranks(n, run_out, resource.RLIMIT_FSIZE, 1))) == 1


@needs_address_limit
@pytest.mark.parametrize("room", [1, 3])
def test_a_rank_without_address_space_is_an_error_for_all(room):
    # Room for none, or for the own array but not for a peer's.
    assert len(set(run_ranks(2, run_out, resource.RLIMIT_AS, room))) == 1


@on_ranks(3)
def test_any_other_refusal_on_one_rank_is_an_error_for_all(comm):
    if comm.rank == 0:

        def refuse(name):
            if name == "posix_fallocate":
                raise PermissionError(1, "no, by the test")

        syscalls.fault = refuse
    with pytest.raises(SegmentError, match="no, by the test"):
        comm.empty(1000)
    syscalls.fault = None
    assert not comm.empty(1000).any()


def lend_to_torch(comm):
    import torch

    x = comm.empty(50_000, np.float32)
    tensor = torch.from_numpy(x)
    tensor.fill_(comm.rank + 1)
    assert (x == comm.rank + 1).all()
    before = nmapped(comm)
    comm.all_reduce(tensor)
    comm.all_reduce(torch.from_dlpack(x)[:20_000])
    assert nmapped(comm) - before == 2
    total = comm.size * (comm.size + 1) // 2
    assert x[-1] == tensor[-1] == total
    assert x[0] == total * comm.size
    assert tensor.data_ptr() % LINE == 0
    del x
    gc.collect()
    assert tensor[-1] == total  # the tensor keeps the memory


@pytest.mark.torch
def test_torch_sees_shared_arrays_without_a_copy():
    pytest.importorskip("torch")
    run_ranks(2, lend_to_torch)


def attach_when_one_has_sent_its_outcome_and_died(comm):
    from shmring.collectives.shared import shared_arrays as sharedarrays

    if comm.rank == 1:
        attach_others = sharedarrays._attach_others

        def attach_late(*args):
            while not comm._engine.gone_ranks():
                time.sleep(0.001)
            until_ended(comm._engine.segments[2].header.pid)  # the lock of its name goes a moment after its life
            return attach_others(*args)

        sharedarrays._attach_others = attach_late
    if comm.rank == 2:
        exchange = sharedarrays.exchange_outcome

        def exchange_and_report(comm, failure, what, nonce=b""):
            if not nonce:
                report("exchanging")
            return exchange(comm, failure, what, nonce)

        sharedarrays.exchange_outcome = exchange_and_report
    with pytest.raises(PeerLostError) as caught:
        comm.empty(5)
    assert caught.value.rank == 2
    assert [left for left in leftovers(comm.name) if left.status == "stale"] == []


def test_a_rank_that_dies_while_a_slower_one_attaches_is_named_and_leaves_nothing():
    gang = start_ranks(3, attach_when_one_has_sent_its_outcome_and_died)
    gang.wait_for("exchanging", [2])
    time.sleep(0.2)
    for outcome in gang.survivors_of(2):
        assert outcome.ok, outcome


def attach_when_one_has_sent_its_outcome_and_left_by(comm, kind):
    from shmring.collectives.shared import shared_arrays as sharedarrays

    if comm.rank == 1:
        attach_others = sharedarrays._attach_others

        def attach_late(segments, session, *rest):
            while sharedarrays._exists(spelling.segment_name(session, "r2")):
                time.sleep(0.001)
            return attach_others(segments, session, *rest)

        sharedarrays._attach_others = attach_late
    if comm.rank == 2:
        exchange = sharedarrays.exchange_outcome

        def handler(signum, frame):
            raise kind("by a signal")

        def exchange_and_leave(comm, failure, what, nonce=b""):
            if not nonce:
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            return exchange(comm, failure, what, nonce)

        sharedarrays.exchange_outcome = exchange_and_leave
    with pytest.raises(kind if comm.rank == 2 else AbortedError) as caught:
        comm.empty(5)
    assert comm.rank == 2 or caught.value.rank == 2
    assert comm.is_broken


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_rank_whose_handler_raises_while_a_slower_one_attaches_is_named(kind):
    run_ranks(3, attach_when_one_has_sent_its_outcome_and_left_by, kind)


def die_over_a_group_of_oneself(comm):
    if comm.rank == 1:

        def die(call):
            if call == "ftruncate":
                os.kill(os.getpid(), signal.SIGKILL)

        syscalls.fault = die
        comm.subgroup([1])
    with pytest.raises(PeerLostError):
        comm.barrier()
    until_ended(comm._engine.segments[1].header.pid)
    comm.close()
    assert leftovers(comm.name) == []


def test_survivors_that_close_take_away_what_the_dead_made_alone():
    gang = start_ranks(2, die_over_a_group_of_oneself)
    outcomes = gang.outcomes()
    assert outcomes[1].signal == signal.SIGKILL
    assert outcomes[0].ok, outcomes[0]


@on_ranks(2)
def test_a_memory_error_without_a_text_reaches_the_other_ranks_by_its_name(comm):
    if comm.rank == 1:

        def refuse(*_):
            raise MemoryError

        share.memory_of = refuse
    raised = (MemoryError, "") if comm.rank == 1 else (ValueError, "rank 1 failed: MemoryError")
    with pytest.raises(raised[0], match=raised[1]):
        comm.share(np.zeros(1 << 16))
