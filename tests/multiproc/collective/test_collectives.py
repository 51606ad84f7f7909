"""Collectives beside the right answer (`test_cases`): mistakes, reuse of slots, and which way was chosen."""

import inspect

import numpy as np
import pytest
from support.collective_checks import moves_opaque_types
from support.harness import RANKS
from support.inputs import NUMPY_DTYPES, values
from support.on_ranks import on_ranks

import shmring
from shmring.dtypes import OPS, is_defined
from shmring.nodes.communicator import NodesCommunicator


@on_ranks(2)
def test_operations_that_a_dtype_has_not_are_refused_by_name(comm):
    for name, dtype in NUMPY_DTYPES.items():
        for op in OPS:
            if not is_defined(op, name):
                with pytest.raises(TypeError, match=f"{op}.*{name}"):
                    comm.all_reduce(values(dtype, 9, comm.rank), op=op)
    comm.barrier()


@on_ranks(1, 2, 3)
def test_scalars_bytes_and_numbers_in_the_other_byte_order_are_reduced_in_place(comm):
    swapped = np.full((6, 4), comm.rank + 1, ">f4")
    comm.all_reduce(swapped)
    assert (swapped == sum(range(comm.size + 1))).all()
    scalar = np.array(2.5)
    comm.all_reduce(scalar)
    assert scalar.shape == ()
    assert scalar == 2.5 * comm.size
    raw = bytearray(b"\x01\x02")
    comm.all_reduce(memoryview(raw), op="max")
    assert raw == b"\x01\x02"


@on_ranks(1, 2, 3)
def test_structures_and_other_plain_types_are_moved_and_not_reduced(comm):
    moves_opaque_types(comm)
    if comm.size == 2:
        x = np.zeros(6, [("a", "u1"), ("b", "u1", (comm.rank + 1,))])  # elements of another size on each rank
        with pytest.raises(shmring.MismatchError):
            comm.all_gather(x)
            comm.barrier()


@on_ranks(1, 3)
def test_bad_arguments_raise_before_anything_is_sent(comm):
    x = np.ones(8, np.float32)
    cases = [
        (TypeError, lambda: comm.all_reduce([1, 2])),
        (TypeError, lambda: comm.all_reduce(np.array(["a"], object))),
        (ValueError, lambda: comm.all_reduce(x, op="median")),
        (TypeError, lambda: comm.all_reduce(x, op="band")),
        (TypeError, lambda: comm.all_reduce(np.ones(3, np.int32), op="avg")),
        (TypeError, lambda: comm.all_reduce(x, np.ones(8))),
        (ValueError, lambda: comm.all_reduce(x, np.ones(7, np.float32))),
        (ValueError, lambda: comm.all_reduce(x[:6], x[2:])),
        (ValueError, lambda: comm.broadcast(x, root=comm.size)),
        (ValueError, lambda: comm.broadcast(x, root=-1)),
        (ValueError, lambda: comm.reduce_scatter(np.ones((comm.size + 1, 2)))),
        (ValueError, lambda: comm.all_gather(x, np.ones((comm.size + 1, 8), np.float32))),
        (ValueError, lambda: comm.all_reduce(x, timeout=-1)),
        (ValueError, lambda: comm.all_to_all(np.ones(()))),
    ]
    masked = np.ma.masked_equal(np.ones(8, np.float32), 1)
    blocks = masked.reshape(1, 8).repeat(comm.size, 0)
    for call in (
        lambda: comm.all_reduce(masked),
        lambda: comm.all_reduce(x, masked),
        lambda: comm.all_reduce_many([x, masked]),
        lambda: comm.reduce(masked),
        lambda: comm.scan(masked),
        lambda: comm.reduce_scatter(blocks),
        lambda: comm.reduce_scatter(blocks, counts=[1] * comm.size),
        lambda: comm.broadcast(masked),
        lambda: comm.all_gather(masked),
        lambda: comm.all_gather(x, blocks),
        lambda: comm.gather(masked),
        lambda: comm.scatter(blocks, masked),
        lambda: comm.all_to_all(blocks),
        lambda: comm.all_to_all(blocks, counts=[1] * comm.size),
        lambda: comm.send(masked, 0),
        lambda: comm.isend(masked, 0),
        lambda: comm.recv(masked),
        lambda: comm.irecv(masked),
        lambda: comm.sendrecv(x, 0, masked),
    ):
        cases.append((TypeError, call))
        with pytest.raises(TypeError, match="masked"):
            call()
    frozen = x.copy()
    frozen.flags.writeable = False
    cases.append(((TypeError, ValueError), lambda: comm.all_reduce(frozen)))
    for error, call in cases:
        with pytest.raises(error):
            call()
        # Nothing was sent: a rank alone in a mistake stays in step with the others.
        if comm.rank == 0:
            with pytest.raises(error):
                call()
    comm.all_reduce(x)
    assert x.tolist() == [comm.size] * 8


@on_ranks(*RANKS)
def test_slots_are_reused_for_ever(comm):
    times = 300
    x = np.zeros(3, np.int64)
    for i in range(times):
        x[:] = i, comm.rank, 1
        comm.all_reduce(x)
        assert x.tolist() == [i * comm.size, comm.size * (comm.size - 1) // 2, comm.size]
        if i % 7 == 0:
            y = np.full(2, i if comm.rank == i % comm.size else -1)
            comm.broadcast(y, root=i % comm.size)
            assert y.tolist() == [i, i]


@on_ranks(2, 3, 4)
def test_a_root_that_runs_ahead_overwrites_nothing(comm):
    # The root runs ahead of the others until the ring is full; no rank may overwrite what was not read.
    for root in range(comm.size):
        for i in range(50):
            for count in (1, 2000):
                x = np.full(count, root * 100 + i if comm.rank == root else -1)
                comm.broadcast(x, root=root)
                assert (x == root * 100 + i).all()


@pytest.mark.parametrize("cls", [shmring.Communicator, NodesCommunicator])
def test_op_and_root_may_be_positional_in_every_call_in_this_order(cls):
    found = set()
    for name in dir(cls):
        if name[0] != "_" and inspect.isroutine(getattr(cls, name)):
            parameters = inspect.signature(getattr(cls, name)).parameters.values()
            given = [parameter for parameter in parameters if parameter.name in ("op", "root")]
            assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in given), name
            assert [parameter.name for parameter in given] in (["op", "root"], ["op"], ["root"], []), name
            found |= {name for _ in given}
    assert {"reduce", "broadcast", "gather", "scatter", "all_reduce", "scan", "broadcast_object"} <= found


@on_ranks(2)
def test_op_and_root_by_position(comm):
    x = np.arange(4.0) + comm.rank
    got = comm.reduce(x, np.empty(4), "max", 1)
    assert got is None if comm.rank != 1 else got.tolist() == [1, 2, 3, 4]
    assert comm.all_reduce(x.copy(), None, "min").tolist() == [0, 1, 2, 3]
    assert comm.broadcast(x, 1).tolist() == [1, 2, 3, 4]
    assert comm.broadcast_object(comm.rank, 1) == 1
