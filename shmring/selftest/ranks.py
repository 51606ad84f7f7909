"""The calls of a check's ranks, with results that NumPy computes as well."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shmring.channels.receiver import Receiver
from shmring.channels.sender import Sender
from shmring.communicator import Communicator
from shmring.dtypes import OPS, is_defined
from shmring.errors import PeerLostError

# Elements: one line of an eager message, several lines, more than one slot of the outbox.
COUNTS = (1, 1000, 100_003)
DTYPES = ("float64", "float32", "float16", "int32", "uint8", "complex64")
# Reductions by kernels that are compared with each other.
REDUCED = ("float64", "float32", "float16", "int64", "int8", "uint16", "bool", "complex128")
REDUCED_COUNT = 1003
DEATH_CALL_NBYTES = 1 << 20
MOST_TIMED_NS = 500_000_000
WAIT_S = 60.0


class WrongResultError(Exception):
    """A call returned something else than NumPy computes."""


def draw(seed: int, rank: int, count: int, dtype: str) -> np.ndarray:
    """The input of one rank: whole numbers from -8 to 7 (unsigned: 0 to 7); every dtype holds their sums."""
    low = 0 if np.dtype(dtype).kind == "u" else -8
    return np.random.default_rng((seed, rank, count)).integers(low, 8, count).astype(dtype)


def expect(found: Any, wanted: np.ndarray, what: str) -> None:
    """Compare bits."""
    found = np.asarray(found)
    if found.shape != wanted.shape or found.dtype != wanted.dtype or found.tobytes() != wanted.tobytes():
        raise WrongResultError(f"{what}: {found.dtype}{list(found.shape)} differs from what NumPy computes")


def collectives(comm: Communicator, seed: int) -> int:
    """Every collective on private arrays; returns how many results were compared."""
    compared = 0
    for dtype in DTYPES:
        for count in COUNTS:
            inputs = [draw(seed, rank, count, dtype) for rank in range(comm.size)]
            tables = [
                draw(seed + 1, rank, count * comm.size, dtype).reshape(comm.size, count) for rank in range(comm.size)
            ]
            for name, found, wanted in _results(comm, inputs, tables):
                if wanted is None:
                    continue
                expect(found, wanted, f"{name} of {count} x {dtype} on {comm.size} ranks")
                compared += 1
    comm.barrier()
    return compared


def _results(comm: Communicator, inputs: list[np.ndarray], tables: list[np.ndarray]):
    """Of each collective: its name, the result of this rank, and what NumPy computes (None: no result here)."""
    rank, last = comm.rank, comm.size - 1
    mine, table = inputs[rank], tables[rank]
    total, everything = sum(inputs[1:], inputs[0]), np.stack(inputs)
    yield "all_reduce", comm.all_reduce(mine.copy()), total
    yield "reduce", comm.reduce(mine.copy(), np.empty_like(mine), root=last), total if rank == last else None
    yield (
        "broadcast",
        comm.broadcast(inputs[last].copy() if rank == last else np.empty_like(mine), root=last),
        inputs[last],
    )
    yield "all_gather", comm.all_gather(mine), everything
    yield "gather", comm.gather(mine, root=0), everything if rank == 0 else None
    yield "scatter", comm.scatter(tables[0] if rank == 0 else None, np.empty_like(mine), root=0), tables[0][rank]
    yield "reduce_scatter", comm.reduce_scatter(table), sum(tables[1:], tables[0])[rank]
    yield "all_to_all", comm.all_to_all(table), np.stack([other[rank] for other in tables])
    yield "scan", comm.scan(mine.copy()), sum(inputs[1 : rank + 1], inputs[0])


def reductions(comm: Communicator, seed: int) -> dict[str, np.ndarray]:
    """The results of every reduction, by its name."""
    found = {}
    for dtype in REDUCED:
        mine = np.random.default_rng((seed, comm.rank)).integers(0, 100, REDUCED_COUNT).astype(dtype)
        for op in (op for op in OPS if is_defined(op, dtype)):
            found[f"{op} of {dtype}"] = comm.all_reduce(mine.copy(), op=op)
    return found


def messages(comm: Communicator, seed: int) -> int:
    """Messages around the ring of ranks, arrays and objects; returns how many were compared."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in COUNTS:
        out = np.empty(count)
        comm.sendrecv(draw(seed, comm.rank, count, "float64"), after, out, before)
        expect(out, draw(seed, before, count, "float64"), f"sendrecv of {count} x float64 from rank {before}")
    objects = comm.all_gather_object({"rank": comm.rank, "pid": os.getpid()})
    if [one["rank"] for one in objects] != list(range(comm.size)):
        raise WrongResultError(f"all_gather_object returned {objects!r}")
    return len(COUNTS) + 1


def shared_arrays(comm: Communicator, seed: int) -> int:
    """A sum of arrays in shared memory, which no rank stages; returns how many were compared."""
    count = COUNTS[-1]
    x = comm.empty(count, "float32")
    x[:] = draw(seed, comm.rank, count, "float32")
    comm.all_reduce(x)
    inputs = [draw(seed, rank, count, "float32") for rank in range(comm.size)]
    expect(x, sum(inputs[1:], inputs[0]), f"all_reduce of {count} x float32 in shared arrays")
    if comm.size > 1 and not comm.stats()["zero_copy_calls"]:
        raise WrongResultError("all_reduce of shared arrays was staged")
    return 1


def everything(comm: Communicator, seed: int) -> tuple[int, float]:
    """All of the above; returns how many results were compared, and the microseconds of an all_reduce of 8 bytes."""
    calls: tuple[Callable[[Communicator, int], int], ...] = (collectives, messages, shared_arrays)
    compared = sum(call(comm, seed) for call in calls)
    x = np.zeros(1)
    slices: list[float] = []
    elapsed_ns = np.zeros(1, np.int64)
    while len(slices) < 30 and elapsed_ns[0] < MOST_TIMED_NS:  # fewer where the processors are busy
        comm.barrier()
        start = time.perf_counter_ns()
        for _ in range(100):
            comm.all_reduce(x)
        slices.append((time.perf_counter_ns() - start) / 100e3)
        elapsed_ns[0] += time.perf_counter_ns() - start
        comm.broadcast(elapsed_ns)  # all ranks end after the same slice
    return compared, statistics.median(slices)


def echo(receiver: Receiver, sender: Sender) -> None:
    """Send back all that comes, until the other end closes."""
    with receiver, sender:
        for message in receiver:
            sender.send(message, timeout=WAIT_S)


def lose_a_rank(comm: Communicator, victim: int, reports: list[Sender]) -> None:
    """Rank ``victim`` is killed in the middle of calls; the others report which rank they lost, and after how long."""
    x = np.ones(DEATH_CALL_NBYTES // 8)
    killed_at = np.zeros(1, np.int64)
    for _ in range(3):
        comm.all_reduce(x)
    killed_at[0] = time.monotonic_ns()
    comm.broadcast(killed_at, root=victim)
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with reports[comm.rank] as report:
        try:
            while True:
                comm.all_reduce(x)
        except PeerLostError as error:
            ms = (time.monotonic_ns() - int(killed_at[0])) / 1e6
            report.send_object((comm.rank, error.rank, ms), timeout=WAIT_S)
