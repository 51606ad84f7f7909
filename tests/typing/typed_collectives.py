"""Types of calls on a communicator: checked by mypy and pyright, never run. A line with an ignore must be an error."""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import shmring
from shmring.typing import Array, OpName

F32 = NDArray[np.float32]


def in_place(comm: shmring.Communicator, x: F32, table: NDArray[np.int64]) -> None:
    assert_type(comm.all_reduce(x), F32)
    assert_type(comm.all_reduce(x, op="max"), F32)
    assert_type(comm.scan(table), NDArray[np.int64])
    assert_type(comm.exscan(x, table), NDArray[np.int64])
    assert_type(comm.broadcast(x, 1), F32)
    assert_type(comm.reduce(x, root=1), F32 | None)
    assert_type(comm.all_reduce_many([x, x]), list[F32])
    assert_type(comm.all_reduce(bytearray(8)), bytearray)
    comm.barrier()


def numbers(comm: shmring.Communicator) -> None:
    assert_type(comm.all_reduce(1.5), NDArray[Any])
    assert_type(comm.all_reduce(np.float64(1), op="avg"), NDArray[Any])
    assert_type(comm.reduce(True, op="land"), NDArray[Any] | None)
    assert_type(comm.all_reduce(2, async_op=True), shmring.Work[NDArray[Any]])


def new_arrays(comm: shmring.Communicator, x: F32, out: F32) -> None:
    assert_type(comm.all_gather(x), F32)
    assert_type(comm.all_gather(x, counts=np.arange(comm.size)), F32)
    assert_type(comm.all_gather(array("d"), out), F32)
    assert_type(comm.reduce_scatter(x, op="avg", counts=[1, 2]), F32)
    assert_type(comm.gather(x), F32 | None)
    assert_type(comm.scatter(None, out), F32)
    assert_type(comm.all_to_all(x, counts=[1], out_counts=[1]), F32)
    # An array of another kind is not known here: of torch it would be a tensor, of JAX an ndarray.
    shape_of_any(comm.all_gather(memoryview(b"")))


def shape_of_any(x: NDArray[np.uint8]) -> tuple[Any, ...]:
    return x.shape


def asynchronous(comm: shmring.Communicator, x: F32, later: bool) -> None:
    work = comm.all_reduce(x, async_op=True)
    assert_type(work, shmring.Work[F32])
    assert_type(work.wait(timeout=1), F32)
    assert_type(work.result(), F32)
    work.add_done_callback(lambda work: work.wait().sum())
    assert_type(comm.barrier(async_op=True), shmring.Work[None])
    assert_type(comm.gather(x, async_op=True), shmring.Work[F32 | None])
    assert_type(comm.all_to_all(x, async_op=True).wait(), F32)
    assert_type(comm.all_reduce(x, async_op=False), F32)
    comm.all_reduce(x, async_op=later)
    comm.all_gather(x, async_op=later)


async def awaited(comm: shmring.Communicator, x: F32) -> F32:
    assert_type(await comm.irecv(x, 0), shmring.Message | None)
    return await comm.broadcast(x, async_op=True)


def plans(comm: shmring.Communicator, x: F32, out: F32) -> None:
    plan = comm.plan("all_reduce", x, op="max")
    assert_type(plan, shmring.Plan[F32])
    assert_type(plan(), F32)
    assert_type(plan.start(), shmring.Work[F32])
    assert_type(comm.plan("reduce", x, root=1)(), F32 | None)
    assert_type(comm.plan("barrier")(), None)
    comm.plan("all_gather", x, out)()
    comm.plan("all_reduce_all", x)  # type: ignore[call-overload]
    comm.plan("broadcast", x, roots=1)  # type: ignore[call-overload]


def operations(comm: shmring.Communicator, x: F32, name: str, known: OpName) -> None:
    for op in shmring.dtypes.OPS:
        comm.all_reduce(x, op=op)
    comm.all_reduce(x, op=known)
    comm.all_reduce(x, op="SUM")
    comm.all_reduce(x, op=np.hypot)
    comm.all_reduce(x, op=min)
    comm.all_reduce(x, op=lambda a, b: a + b)
    comm.all_reduce(x, op="sums")  # type: ignore[call-overload]
    comm.all_reduce(x, op=name)  # type: ignore[call-overload]


def messages(comm: shmring.Communicator, x: F32) -> None:
    comm.send(x, 1, tag=3)
    message = comm.recv(x, src=shmring.ANY_SOURCE)
    assert_type(message, shmring.Message | None)
    assert_type(comm.isend(x, None).wait(), shmring.Message | None)
    comm.sendrecv(b"12345678", 1, x, 0)
    print(message.nbytes)  # type: ignore[union-attr]
    comm.send([1.0], 1)  # type: ignore[arg-type]
    comm.send(x, "1")  # type: ignore[arg-type]


def objects(comm: shmring.Communicator, settings: dict[str, int] | None) -> None:
    assert_type(comm.broadcast_object(settings), dict[str, int])
    assert_type(comm.gather_object("a"), list[str] | None)
    assert_type(comm.all_gather_object(1.5), list[float])
    assert_type(comm.all_reduce_object({1}, op="bor"), set[int])
    assert_type(comm.scatter_object([1] if comm.rank == 0 else None), int)
    assert_type(comm.all_to_all_object(["a"]), list[str])


def shared(comm: shmring.Communicator, x: F32) -> None:
    assert_type(comm.empty((2, 3), np.int8), NDArray[np.int8])
    assert_type(comm.empty(3), NDArray[Any])
    assert_type(comm.array(x), F32)
    assert_type(comm.shared_view(x[1:], 0), F32)
    with comm.share(x) as shared:
        assert_type(shared, shmring.Shared)


def groups(comm: shmring.Communicator) -> None:
    assert_type(comm.subgroup([0, 1], slot_nbytes=4096), shmring.Communicator)
    comm.split(0).all_reduce(1)  # type: ignore[union-attr]
    comm.dup(slot_bytes=4096)  # type: ignore[call-arg]


def own_function(comm: shmring.Communicator, x: Array) -> Array:
    return comm.all_reduce(x)


def wrong_arrays(comm: shmring.Communicator, x: F32) -> None:
    comm.all_reduce([1, 2])  # type: ignore[call-overload]
    comm.all_reduce("text")  # type: ignore[call-overload]
    comm.all_reduce(x, root=0)  # type: ignore[call-overload]
    comm.all_reduce(x, async_op=True).sum()  # type: ignore[attr-defined]
    comm.gather(x).sum()  # type: ignore[union-attr]
