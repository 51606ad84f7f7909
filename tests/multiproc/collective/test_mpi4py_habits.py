"""What programs of mpi4py do: no peer at an edge, numbers, objects, other spellings, and the names of calls."""

import operator

import numpy as np
import pytest
from support.on_ranks import on_ranks

import shmring
from shmring.collectives.calls.mpi_names import HINTS
from shmring.dtypes import OP_ROWS


@on_ranks(2, 3)
def test_a_halo_exchange_at_the_edges_needs_no_cases(comm):
    before = comm.rank - 1 if comm.rank > 0 else None
    after = comm.rank + 1 if comm.rank + 1 < comm.size else None
    u = np.full(4, float(comm.rank))
    left, right = np.full(4, -1.0), np.full(4, -1.0)
    message = comm.sendrecv(u, after, left, before)
    comm.sendrecv(u, before, right, after)
    assert left[0] == comm.rank - 1
    assert right[0] == (comm.rank + 1 if after is not None else -1)
    assert (message is None) == (comm.rank == 0)


@on_ranks(2)
def test_no_peer_means_no_message(comm):
    x = np.ones(3)
    assert comm.send(x, None) is None
    assert comm.recv(x, None) is None
    assert comm.send_object({"a": 1}, None) is None
    assert comm.recv_object(None) is None
    assert comm.sendrecv(x, None, x.copy(), None) is None
    requests = [comm.isend(x, None), comm.irecv(x, None)]
    assert all(request.done() for request in requests)
    assert [request.wait() for request in requests] == [None, None]
    comm.barrier()
    assert comm.iprobe() is None
    assert x.tolist() == [1, 1, 1]


@on_ranks(2, 3)
def test_numbers_are_reduced_as_arrays_without_dimensions(comm):
    total = sum(range(1, comm.size + 1))
    found = comm.all_reduce(comm.rank + 1)
    assert (found.shape, found.dtype, int(found)) == ((), np.int64, total)
    assert float(comm.all_reduce(comm.rank + 1.0, op="max")) == comm.size
    assert comm.all_reduce(np.float32(2)).dtype == np.float32
    assert complex(comm.all_reduce(1j)) == comm.size * 1j
    assert bool(comm.all_reduce(comm.rank == 0, op="lor"))
    assert int(comm.scan(comm.rank + 1)) == sum(range(1, comm.rank + 2))
    assert int(comm.exscan(1)) == (comm.rank or 1)
    on_root = comm.reduce(comm.rank + 1, root=1)
    assert int(on_root) == total if comm.rank == 1 else on_root is None
    assert float(comm.all_reduce(0.5, async_op=True).wait()) == 0.5 * comm.size


@on_ranks(2, 3)
def test_objects_are_combined_in_rank_order(comm):
    assert comm.all_reduce_object([comm.rank]) == list(range(comm.size))
    assert comm.all_reduce_object({comm.rank}, op="bor") == set(range(comm.size))
    assert comm.all_reduce_object((comm.rank, "x"), op="MAX") == (comm.size - 1, "x")
    assert comm.all_reduce_object(str(comm.rank), op=lambda a, b: a + b) == "".join(map(str, range(comm.size)))
    assert comm.all_reduce_object(2, op=sum) == 2 * comm.size
    assert comm.all_reduce_object(comm.rank, op="land") is False
    alone = comm.split(comm.rank)
    for op in (row.name for row in OP_ROWS if row.on_objects and isinstance(row.on_objects(2, 3), bool)):  # of one, too
        assert alone.all_reduce_object(2, op=op) is alone.reduce_object(2, op=op) is True
        assert isinstance(comm.all_reduce_object(2, op=op), bool)
    found = comm.reduce_object(str(comm.rank), root=1)
    assert found == ("".join(map(str, range(comm.size))) if comm.rank == 1 else None)
    with pytest.raises(ValueError, match="'avg' is not defined on objects"):
        comm.all_reduce_object(1, op="avg")


@on_ranks(2)
@pytest.mark.parametrize("op", ["MAX", "max", max, np.maximum])
def test_other_spellings_of_an_operation(comm, op):
    x = np.full(3, comm.rank, np.int32)
    assert comm.all_reduce(x, op=op).tolist() == [1, 1, 1]


@on_ranks(2)
@pytest.mark.parametrize("op", ["SUM", sum, operator.add, "Sum"])
def test_other_spellings_of_a_sum(comm, op):
    assert comm.all_reduce(np.full(3, 2.5), op=op).tolist() == [5, 5, 5]
    with pytest.raises(ValueError, match="unknown op 'median'"):
        comm.all_reduce(np.ones(3), op="median")


@on_ranks(1)
def test_an_unknown_name_of_mpi4py_names_the_call(comm):
    for name in HINTS:
        assert not hasattr(comm, name)
    with pytest.raises(AttributeError, match=r"'Allreduce', a name of mpi4py; here it is comm.all_reduce\(x\)"):
        comm.Allreduce(np.ones(1))
    with pytest.raises(AttributeError, match=r"here it is comm\.rank"):
        comm.Get_rank()


def test_every_hint_names_a_call_that_exists():
    for name, hint in HINTS.items():
        for part in hint._ours.replace(", of numbers, too", "").split("; "):
            called = part.partition("(")[0]
            assert hasattr(shmring.Communicator, called), name


@on_ranks(1)
def test_what_is_no_array_is_referred_to_the_calls_for_objects(comm):
    for call in (lambda: comm.send({"a": 1}, 0), lambda: comm.broadcast(None), lambda: comm.recv()):
        with pytest.raises(TypeError, match="calls for objects: send_object, broadcast_object"):
            call()
