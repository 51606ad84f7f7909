"""The C table: every call, from threads without the GIL, gives the bits of the method of the communicator."""

import gc
import sys
import weakref

import numpy as np
import pytest
from support.capi import (
    ANY,
    CLOSE,
    COMPILERS,
    DUP,
    IRECV,
    ISEND,
    KINDS,
    NO_COLOR,
    OPEN,
    PLAN,
    RECV,
    SEND,
    SENDRECV,
    SPLIT,
    TEST,
    WAIT,
    Table,
    build,
    on_table,
)
from support.harness import run_ranks
from support.inputs import same_bits, values
from support.on_ranks import on_ranks

from shmring.dtypes import DTYPE_CODES

SLOTS = {"slot_nbytes": 65536}


@pytest.fixture(scope="module", params=COMPILERS)
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("capi"), request.param)


@on_ranks(1, 3)
def test_ranks_and_barriers(comm, library):
    table = Table(library)
    handle = table.open(comm)
    assert table.rank_of(handle) == comm.rank
    assert table.size_of(handle) == comm.size
    table.call("barrier", handle)
    table.call(PLAN, handle, key=KINDS["barrier"], count=5, times=3)  # what does not apply is ignored
    table.release(handle)


@on_table(4, init=SLOTS)
def test_a_rank_may_use_the_table_and_another_one_the_method(comm, table, handle):
    """Even ranks by the table, odd ones by the method: the same call."""
    for count in (1, 40000):
        x = values("float64", count, comm.rank, count)
        expected = comm.all_reduce(x.copy(), op="max")
        if comm.rank % 2:
            out = comm.all_reduce(x, op="max")
        else:
            out = np.zeros_like(x)
            table.call("all_reduce", handle, x=x, out=out, count=count, op="max")
        assert same_bits(out, expected)


@on_table(2)
def test_shared_arrays_are_not_staged(comm, table, handle):
    x = comm.empty(100000, np.float32)
    x[:] = values("float32", x.shape, comm.rank)
    expected = comm.all_reduce(np.array(x))
    before = comm.stats()["zero_copy_calls"]
    table.call("all_reduce", handle, x=x, out=x, count=x.size)
    assert same_bits(np.array(x), expected)
    assert comm.stats()["zero_copy_calls"] == before + 1


@on_table(2, init={"direct": 1})
def test_large_private_arrays_are_copied_once_where_the_kernel_allows_it(comm, table, handle):
    x, out = np.full(1 << 18, comm.rank, np.float32), np.zeros((comm.size, 1 << 18), np.float32)
    may_read = bool(comm._engine.thresholds.readable)
    table.call("all_gather", handle, x=x, out=out, count=x.size)
    assert (out == np.arange(comm.size)[:, None]).all()
    assert comm.stats().get("zero_copy_calls", 0) == may_read


@on_table(2, init={"threads": 2})
def test_large_calls_use_the_helper_threads(comm, table, handle):
    x = values("float32", 1 << 21, comm.rank)
    expected = comm.all_reduce(x.copy())
    before = comm.stats()["split_calls"]
    out = np.zeros_like(x)
    table.call("all_reduce", handle, x=x, out=out, count=x.size)
    assert same_bits(out, expected)
    comm.broadcast(x[: 1 << 13], root=0)
    stats = comm.stats()
    assert (stats["split_calls"], stats["threads"]) == (before + 1, 2)
    assert {one["kind"]: one["threads"] for one in stats["programs"]} == {"all_reduce": 2, "broadcast": 1}


# ---- groups ----------------------------------------------------------------------------------------------------------


@on_table(4)
def test_communicators_are_duplicated_and_split(comm, table, handle):
    twin = table.call(DUP, handle).made
    part = table.call(SPLIT, handle, color=comm.rank % 2, key=-comm.rank).made
    none = table.call(SPLIT, handle, color=NO_COLOR if comm.rank else 7, key=0).made
    members = [rank for rank in reversed(range(comm.size)) if rank % 2 == comm.rank % 2]
    total = np.zeros(1)
    table.call("all_reduce", part, x=np.array([float(comm.rank)]), out=total, count=1)
    assert total[0] == sum(members)
    assert table.rank_of(part) == members.index(comm.rank)
    table.call("all_reduce", twin, x=np.array([float(comm.rank)]), out=total, count=1)
    assert total[0] == sum(range(comm.size))
    assert bool(none) == (comm.rank == 0)
    comm.barrier()
    for made in filter(None, (twin, part, none)):
        table.call(CLOSE, made)
        table.release(made)


# ---- messages --------------------------------------------------------------------------------------------------------


def around(comm, path):
    """Messages of all lengths around the ring of ranks, by each pair of calls."""
    table = Table(path)
    handle = table.open(comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 1, 5, 1000, 200000):
        x = values("float32", count, comm.rank, count)
        wanted = values("float32", count, before, count)
        out = np.zeros_like(x)
        code = DTYPE_CODES["float32"]
        done = table.call(
            SENDRECV,
            handle,
            x=x,
            count=count,
            peer=after,
            tag=3,
            out=out,
            out_count=count,
            out_dtype=code,
            source=before,
            out_tag=ANY,
        )
        assert same_bits(out, wanted)
        found = done.message
        assert (found.source, found.tag, found.nbytes, found.dtype) == (before, 3, x.nbytes, code)

        out[:] = 0
        request = table.call(IRECV, handle, out=out, count=count, peer=ANY, tag=9)
        table.call(SEND, handle, x=x, count=count, peer=after, tag=9)
        finished = table.call(WAIT, request=request.request)
        assert same_bits(out, wanted)
        assert (finished.message.source, finished.message.tag, finished.request) == (before, 9, None)

        out[:] = 0
        sending = table.call(ISEND, handle, x=x, count=count, peer=after, tag=1)
        table.call(RECV, handle, out=out, count=count, peer=before, tag=1)
        while sending.request:
            sending.what = TEST
            table.run_here(sending)
        assert sending.is_over
        assert same_bits(out, wanted)
    table.release(handle)


def test_messages_of_all_lengths(library):
    run_ranks(3, around, library)


def test_a_rank_sends_to_itself(c_library):
    run_ranks(1, around, c_library)


@on_table(2)
def test_messages_between_the_table_and_the_methods(comm, table, handle):
    """The table at one end and the methods at the other, with tags out of order."""
    x = values("int32", 100, 5)
    out = np.zeros_like(x)
    if comm.rank == 0:
        table.call(SEND, handle, x=x, count=100, peer=1, tag=1)
        comm.send(x + 1, 1, tag=2)
        comm.recv(out, 1)
        assert (out == x + 2).all()
    else:
        table.call(RECV, handle, out=out, count=100, peer=0, tag=2)
        assert (out == x + 1).all()
        message = comm.recv(out, 0, 1)
        assert message.dtype == "int32"
        assert same_bits(out, x)
        table.call(SEND, handle, x=x + 2, count=100, peer=0, tag=0)


@on_ranks(2)
def test_a_handle_keeps_its_communicator_alive(comm, c_library):
    """The handle and a plan keep the communicator alive; the last of them frees it."""
    table = Table(c_library)
    twin = comm.dup()
    before = sys.getrefcount(twin)
    handle = table.call(OPEN, object=id(twin)).made
    second = table.open(twin)
    assert sys.getrefcount(twin) == before + 2
    table.release(second)
    assert sys.getrefcount(twin) == before + 1
    watch = weakref.ref(twin)
    del twin
    gc.collect()
    x = np.ones(3)
    table.call("all_reduce", handle, x=x, out=x, count=3)
    assert watch() is not None
    assert (x == comm.size).all()
    comm.barrier()
    table.release(handle)
    assert watch() is None
