"""The training of the demo: a small network that several ranks, or one process, train on handwritten digits.

Every rank holds all parameters and computes the gradient of its share of each batch. One all-reduce sums the shares,
and since every rank then takes the same optimizer step, parameters are never sent. All parameters are in one flat
vector, and so is their gradient, so that the ranks all-reduce a single array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import NamedTuple

import numpy as np

NINPUTS, NHIDDEN, NCLASSES, NBATCH = 64, 128, 10, 64
SHAPES = ((NINPUTS, NHIDDEN), (NHIDDEN,), (NHIDDEN, NCLASSES), (NCLASSES,))  # weights and biases of two layers
NPARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
RATE, MOMENTUM = np.float32(0.2), np.float32(0.9)
TEST_EVERY = 5  # images 0, 5, 10, ... (360 of 1797) are for tests only; the split does not depend on the seed


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


def accuracy(parameters: np.ndarray, digits: Digits) -> float:
    """The fraction of the test images of which the network finds the label."""
    return float(np.mean(recognise(parameters, digits.test_images) == digits.test_labels))


# ---- The training ----


def batches(nimages: int, epoch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of every global batch of ``epoch``, in an order that depends on ``seed`` and epoch alone."""
    order = np.random.default_rng((seed, epoch)).permutation(nimages)
    for start in range(0, nimages, NBATCH):
        yield order[start : start + NBATCH]


def share(indices: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The part of a global batch for ``rank``: contiguous, with sizes that differ by at most one."""
    return indices[rank * len(indices) // size : (rank + 1) * len(indices) // size]


def train(
    nepochs: int,
    seed: int,
    size: int,
    ranks: range,
    combine: Callable[[np.ndarray], object],
    on_epoch: Callable[[int, float, float], object] | None = None,
) -> np.ndarray:
    """Train as some of ``size`` ranks; return the parameters.

    ``combine(messages)`` makes the first message the sum of all ranks' messages. A message is the gradient with the
    loss behind it, so that one all-reduce a step carries both. ``on_epoch`` is called with the number of each epoch
    that is over, the loss of its last batch, and the accuracy on the test images.
    """
    digits, parameters = load_digits(), initial(seed)
    velocity = np.zeros_like(parameters)
    messages = np.empty((len(ranks), NPARAMETERS + 1), np.float32)
    for epoch in range(nepochs):
        for batch in batches(len(digits.train_images), epoch, seed):
            for rank, message in zip(ranks, messages, strict=True):
                mine = share(batch, rank, size)
                images, labels = digits.train_images[mine], digits.train_labels[mine]
                message[-1] = gradient(parameters, images, labels, len(batch), out=message[:-1])
            combine(messages)
            velocity *= MOMENTUM  # stochastic gradient descent with momentum
            velocity -= RATE * messages[0, :-1]
            parameters += velocity
        if on_epoch is not None:
            on_epoch(epoch + 1, float(messages[0, -1]), accuracy(parameters, digits))
    return parameters


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
