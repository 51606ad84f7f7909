"""What the ranks of the demo do: train a network on handwritten digits, check the result, time the all-reduce.

Every rank holds all parameters and computes the gradient of its share of each batch. One all-reduce sums the shares,
and since every rank then takes the same optimizer step, parameters are never sent. All parameters are in one flat
vector, and so is their gradient, so that the ranks all-reduce a single array.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from multiprocessing.connection import Client, Listener
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

NINPUTS, NHIDDEN, NCLASSES, NBATCH = 64, 128, 10, 64
SHAPES = ((NINPUTS, NHIDDEN), (NHIDDEN,), (NHIDDEN, NCLASSES), (NCLASSES,))  # weights and biases of two layers
NPARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
RATE, MOMENTUM = np.float32(0.2), np.float32(0.9)
TEST_EVERY = 5  # images 0, 5, 10, ... (360 of 1797) are for tests only; the split does not depend on the seed
NROUNDS, NCALLS = 25, 10  # timed exchanges: rounds of calls, alternating between shmring and pipes


class Digits(NamedTuple):
    """Images as rows of 64 float32 in [0, 1], labels as int64 in [0, 10); their source is in ``digits.txt``."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits() -> Digits:
    """Read the images and split them."""
    with (files("shmring.cli") / "digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].reshape(-1, NINPUTS).astype(np.float32) / np.float32(16)
        labels = stored["labels"].astype(np.int64)
    test = np.arange(len(images)) % TEST_EVERY == 0
    return Digits(images[~test], labels[~test], images[test], labels[test])


# ---- The network ----


def layers(flat: np.ndarray) -> list[np.ndarray]:
    """The weights and biases in ``flat``, as views."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), SHAPES, strict=True)]


def initial(seed: int) -> np.ndarray:
    """Initial parameters: normal weights of variance 1/inputs (LeCun et al. 1998), biases zero."""
    rng = np.random.default_rng(seed)
    flat = np.zeros(NPARAMETERS, np.float32)
    for weights in layers(flat)[::2]:
        weights[:] = rng.standard_normal(weights.shape, np.float32) * np.float32(np.sqrt(1 / len(weights)))
    return flat


def forward(parameters: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of the hidden layer, and the scores of each label."""
    # tanh rather than ReLU, because it is smooth. At a kink, a difference in the last bit can change the gradient by
    # the contribution of a whole image, and the demo could not compare two runs.
    w1, b1, w2, b2 = layers(parameters)
    hidden = np.tanh(images @ w1 + b1)
    return hidden, hidden @ w2 + b2


def gradient(parameters: np.ndarray, images: np.ndarray, labels: np.ndarray, nbatch: int, out: np.ndarray) -> float:
    """Write this share's part of the gradient into ``out`` and return its part of the loss.

    Loss is softmax cross-entropy. Both are divided by ``nbatch``, the size of the *global* batch: the sum over all
    shares is then the mean over the batch, whether or not the shares are equally large.
    """
    hidden, scores = forward(parameters, images)
    scores -= scores.max(axis=1, keepdims=True)  # does not change the softmax; keeps exp() from overflowing
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(np.maximum(chances[rows, labels], 1e-30)).sum()) / nbatch

    chances[rows, labels] -= 1  # softmax and cross-entropy together have this simple derivative
    chances /= np.float32(nbatch)
    w1, b1, w2, b2 = layers(out)
    np.matmul(hidden.T, chances, out=w2)
    np.sum(chances, axis=0, out=b2)
    back = (chances @ layers(parameters)[2].T) * (1 - hidden * hidden)
    np.matmul(images.T, back, out=w1)
    np.sum(back, axis=0, out=b1)
    return loss


def recognise(parameters: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The most likely label of each of ``images``."""
    return forward(parameters, images)[1].argmax(axis=1)


# ---- The training ----


class Settings(NamedTuple):
    """The parameters of the training, the same on every rank."""

    nepochs: int
    seed: int


class Trained(NamedTuple):
    """The result and the history of a training run."""

    parameters: np.ndarray
    losses: list[float]  # of every batch, before its step
    accuracies: list[float]  # on the test images, after every epoch, if wanted


def batches(nimages: int, epoch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of every global batch of ``epoch``, in an order that depends on ``seed`` and epoch alone."""
    order = np.random.default_rng((seed, epoch)).permutation(nimages)
    for start in range(0, nimages, NBATCH):
        yield order[start : start + NBATCH]


def share(indices: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The part of a global batch for ``rank``: contiguous, with sizes that differ by at most one."""
    return indices[rank * len(indices) // size : (rank + 1) * len(indices) // size]


def train(settings: Settings, size: int, ranks: range, combine: Callable, on_epoch: Callable | None = None) -> Trained:
    """Train as some of ``size`` ranks; ``combine(messages)`` makes the first message the sum of all ranks' messages.

    A message is the gradient with the loss behind it, so that one all-reduce a step carries both.
    """
    digits, parameters = load_digits(), initial(settings.seed)
    velocity = np.zeros_like(parameters)
    messages = np.empty((len(ranks), NPARAMETERS + 1), np.float32)
    trained = Trained(parameters, [], [])
    for epoch in range(settings.nepochs):
        for batch in batches(len(digits.train_images), epoch, settings.seed):
            for rank, message in zip(ranks, messages, strict=True):
                mine = share(batch, rank, size)
                images, labels = digits.train_images[mine], digits.train_labels[mine]
                message[-1] = gradient(parameters, images, labels, len(batch), out=message[:-1])
            combine(messages)
            velocity *= MOMENTUM  # stochastic gradient descent with momentum
            velocity -= RATE * messages[0, :-1]
            parameters += velocity
            trained.losses.append(float(messages[0, -1]))
        if on_epoch is not None:
            trained.accuracies.append(float(np.mean(recognise(parameters, digits.test_images) == digits.test_labels)))
            on_epoch(epoch + 1, trained.losses[-1], trained.accuracies[-1])
    return trained


def add_in_order(messages: np.ndarray) -> None:
    """Sum as shmring does, in rank order, in float32: one process that has all shares must get equal bits."""
    for message in messages[1:]:
        messages[0] += message


def tolerance(parameters: np.ndarray, nsteps: int) -> float:
    """The largest allowed difference from a run that sums whole batches.

    A sum taken in another order is rounded differently. That changes a parameter by a few units in the last place per
    step (4 are allowed), and a smooth network does not amplify the difference.
    """
    return 4 * nsteps * 2.0**-24 * float(np.abs(parameters).max())


# ---- A rank ----


class Report(NamedTuple):
    """The results of rank 0."""

    trained: Trained
    training_ns: int
    all_reduce_ns: list[int]  # the exchanges of the training itself, waiting for slower ranks included
    digests: list[str]  # of the parameters of every rank
    same_as_shares: bool  # bit for bit, against one process that computes all shares and sums them in rank order
    difference: float  # largest, against one process that takes each batch whole
    tolerance: float
    exchanges: dict[int, dict[str, list[int]]]  # bytes -> nanoseconds of each sum by shmring, and by pipes


def run_rank(comm, settings: Settings, on_epoch: Callable | None) -> Report | None:
    """The work of one rank; rank 0 returns the report, the others None."""
    all_reduce_ns: list[int] = []

    def combine(messages: np.ndarray) -> None:
        start = perf_counter_ns()
        comm.all_reduce(messages[0])
        all_reduce_ns.append(perf_counter_ns() - start)

    comm.barrier()
    start = perf_counter_ns()
    ranks = range(comm.rank, comm.rank + 1)
    shown = (on_epoch or (lambda *_: None)) if comm.rank == 0 else None
    trained = train(settings, comm.size, ranks, combine, shown)
    training_ns = perf_counter_ns() - start
    digests = comm.all_gather_object(hashlib.sha256(trained.parameters.data).hexdigest())
    exchanges = {nbytes: time_exchange(comm, nbytes) for nbytes in ((8, 4 * NPARAMETERS + 4) if comm.size > 1 else ())}
    if comm.rank != 0:
        return None
    by_shares = train(settings, comm.size, range(comm.size), add_in_order).parameters
    whole = train(settings, 1, range(1), add_in_order).parameters
    is_same = trained.parameters.tobytes() == by_shares.tobytes()
    difference = float(np.abs(trained.parameters - whole).max())
    most = tolerance(whole, len(trained.losses))
    return Report(trained, training_ns, all_reduce_ns, digests, is_same, difference, most, exchanges)


@contextmanager
def pipes(comm) -> Iterator[Callable[[np.ndarray], None]]:
    """A sum over all ranks by pipes of multiprocessing: rank 0 receives all arrays, adds them, and sends the sum."""
    with ExitStack() as stack:
        if comm.rank == 0:
            key = secrets.token_bytes(16)
            with Listener(family="AF_UNIX", backlog=comm.size, authkey=key) as listener:
                comm.broadcast_object((listener.address, key))
                peers = [stack.enter_context(listener.accept()) for _ in range(comm.size - 1)]
        else:
            address, key = comm.broadcast_object(None)
            peers = [stack.enter_context(Client(address, authkey=key))]

        def all_reduce(x: np.ndarray) -> None:
            theirs = np.empty_like(x)
            for peer in peers if comm.rank == 0 else ():
                peer.recv_bytes_into(theirs)
                x += theirs
            for peer in peers:
                peer.send_bytes(x.data)
            if comm.rank:
                peers[0].recv_bytes_into(x)

        yield all_reduce


def time_exchange(comm, nbytes: int) -> dict[str, list[int]]:
    """Nanoseconds of sums of ``nbytes`` through shmring and through pipes in turn, under the same conditions."""
    with pipes(comm) as by_pipes:
        ways = {"shmring": comm.all_reduce, "pipes": by_pipes}
        arrays = {way: np.ones(nbytes // 4, np.float32) for way in ways}
        found: dict[str, list[int]] = {way: [] for way in ways}
        for way in [*ways] * (NROUNDS + 1):
            comm.barrier()
            for _ in range(NCALLS):
                arrays[way].fill(comm.rank + 1)
                start = perf_counter_ns()
                ways[way](arrays[way])
                found[way].append(perf_counter_ns() - start)
    if not np.array_equal(arrays["shmring"], arrays["pipes"]):
        raise AssertionError("the sums of shmring and of pipes differ")
    return {way: times[NCALLS:] for way, times in found.items()}  # the first round is a warm-up
