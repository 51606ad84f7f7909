"""The work of the ranks of the demo: train together, check the result, time the all-reduce.

Every rank holds all parameters and computes the gradient of its share of each batch. One all-reduce sums the shares,
and since every rank then takes the same optimizer step, parameters are never sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from . import _digits, _network
from ._pipes import Star

NBATCH = 64
NROUNDS, NCALLS = 25, 10  # timed exchanges: rounds of calls, alternating between shmring and pipes


class Settings(NamedTuple):
    """The parameters of the training, the same on every rank."""

    nepochs: int
    seed: int


class Trained(NamedTuple):
    """The result and the history of a training run."""

    parameters: np.ndarray
    losses: list[float]  # of every batch, before its step
    accuracies: list[float]  # on the test images, after every epoch (rank 0 only)


class Exchange(NamedTuple):
    """Nanoseconds that each all-reduce of ``nbytes`` took on rank 0, and the same over pipes."""

    nbytes: int
    shmring_ns: list[int]
    pipes_ns: list[int]


class Report(NamedTuple):
    """The results of rank 0."""

    trained: Trained
    training_ns: int
    all_reduce_ns: list[int]  # the exchanges of the training itself, waiting for slower ranks included
    digests: list[bytes]  # of the parameters of every rank
    same_as_shares: bool  # bit for bit, against one process that computes all shares and sums them in rank order
    difference: float  # largest, against one process that takes each batch whole
    tolerance: float
    exchanges: list[Exchange]  # empty with one rank


def train(rank: int, size: int, settings: Settings, combine: Callable, on_epoch: Callable | None = None) -> Trained:
    """Train as ``rank`` of ``size``; ``combine(message)`` sums the ranks' messages in place.

    A message is the gradient with the loss behind it, so that one all-reduce a step carries both.
    """
    digits = _digits.load()
    parameters = _network.initial(settings.seed)
    optimizer = _network.Momentum(parameters)
    message = np.empty(_network.NPARAMETERS + 1, np.float32)
    losses: list[float] = []
    accuracies: list[float] = []
    for epoch in range(settings.nepochs):
        for batch in _network.batches(len(digits.train_images), NBATCH, epoch, settings.seed):
            write_message(message, parameters, digits, batch, rank, size)
            combine(message)
            optimizer.step(message[:-1])
            losses.append(float(message[-1]))
        if rank == 0:
            accuracies.append(_network.accuracy(parameters, digits.test_images, digits.test_labels))
            if on_epoch is not None:
                on_epoch(epoch + 1, losses[-1], accuracies[-1])
    return Trained(parameters, losses, accuracies)


def write_message(message, parameters, digits: _digits.Digits, batch: np.ndarray, rank: int, size: int) -> None:
    """Write the gradient and the loss of the share of ``rank`` of one global batch."""
    mine = _network.share(batch, rank, size)
    images, labels = digits.train_images[mine], digits.train_labels[mine]
    message[-1] = _network.gradient(parameters, images, labels, len(batch), out=message[:-1])


def train_by_shares(size: int, settings: Settings) -> np.ndarray:
    """The parameters that ``size`` ranks must end with, computed by one process.

    It computes the share of every rank and sums them as shmring does: in rank order, in float32. So the results must be
    equal to the last bit.
    """
    digits = _digits.load()
    parameters = _network.initial(settings.seed)
    optimizer = _network.Momentum(parameters)
    messages = np.empty((size, _network.NPARAMETERS + 1), np.float32)
    for epoch in range(settings.nepochs):
        for batch in _network.batches(len(digits.train_images), NBATCH, epoch, settings.seed):
            for rank in range(size):
                write_message(messages[rank], parameters, digits, batch, rank, size)
            for message in messages[1:]:
                messages[0] += message
            optimizer.step(messages[0, :-1])
    return parameters


def tolerance(parameters: np.ndarray, nsteps: int) -> float:
    """The largest allowed difference from a run that sums whole batches.

    A sum taken in another order is rounded differently. That changes a parameter by a few units in the last place per
    step (4 are allowed), and a smooth network does not amplify the difference.
    """
    return 4 * nsteps * 2.0**-24 * float(np.abs(parameters).max())


def time_exchange(comm, nbytes: int) -> Exchange:
    """Time sums of ``nbytes`` through shmring and through pipes in turn, under the same conditions."""
    ours, theirs = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    shmring_ns: list[int] = []
    pipes_ns: list[int] = []
    with Star(comm) as star:
        for round in range(NROUNDS + 1):
            for combine, x, times in ((comm.all_reduce, ours, shmring_ns), (star.all_reduce, theirs, pipes_ns)):
                comm.barrier()
                for _ in range(NCALLS):
                    x.fill(comm.rank + 1)
                    start = perf_counter_ns()
                    combine(x)
                    if round:  # the first round is a warm-up
                        times.append(perf_counter_ns() - start)
        if not np.array_equal(ours, theirs):
            raise AssertionError("the sums of shmring and of pipes differ")
    return Exchange(nbytes, shmring_ns, pipes_ns)


def run_rank(comm, settings: Settings, on_epoch: Callable | None) -> Report | None:
    """The work of one rank; rank 0 returns the report, the others None."""
    all_reduce_ns: list[int] = []

    def combine(message: np.ndarray) -> None:
        start = perf_counter_ns()
        comm.all_reduce(message)
        all_reduce_ns.append(perf_counter_ns() - start)

    comm.barrier()
    start = perf_counter_ns()
    trained = train(comm.rank, comm.size, settings, combine, on_epoch)
    training_ns = perf_counter_ns() - start

    digest = np.frombuffer(hashlib.sha256(trained.parameters.data).digest(), np.uint8)
    digests = [row.tobytes() for row in comm.all_gather(digest)]
    message_nbytes = 4 * (_network.NPARAMETERS + 1)
    exchanges = [time_exchange(comm, nbytes) for nbytes in (8, message_nbytes)] if comm.size > 1 else []
    if comm.rank != 0:
        return None

    by_shares = train_by_shares(comm.size, settings)
    whole = train(0, 1, settings, combine=lambda message: None).parameters
    return Report(
        trained,
        training_ns,
        all_reduce_ns,
        digests,
        same_as_shares=trained.parameters.tobytes() == by_shares.tobytes(),
        difference=float(np.abs(trained.parameters - whole).max()),
        tolerance=tolerance(whole, len(trained.losses)),
        exchanges=exchanges,
    )
