"""A neural network with one hidden layer, in NumPy.

All parameters are in one flat float32 vector, and so is their gradient. Layers are views into it, so that the ranks
all-reduce a single array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

NINPUTS, NHIDDEN, NCLASSES = 64, 128, 10
_SHAPES = ((NINPUTS, NHIDDEN), (NHIDDEN,), (NHIDDEN, NCLASSES), (NCLASSES,))
NPARAMETERS = sum(int(np.prod(shape)) for shape in _SHAPES)


class Layers(NamedTuple):
    """Weights and biases, as views into one flat vector."""

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray


def layers(flat: np.ndarray) -> Layers:
    """The layers in ``flat``, as views."""
    views, start = [], 0
    for shape in _SHAPES:
        count = int(np.prod(shape))
        views.append(flat[start : start + count].reshape(shape))
        start += count
    return Layers(*views)


def initial(seed: int) -> np.ndarray:
    """Initial parameters: normal weights of variance 1/inputs (LeCun et al. 1998), biases zero."""
    rng = np.random.default_rng(seed)
    flat = np.zeros(NPARAMETERS, np.float32)
    for weights in (layers(flat).w1, layers(flat).w2):
        weights[:] = rng.standard_normal(weights.shape, np.float32) * np.float32(np.sqrt(1 / len(weights)))
    return flat


def _forward(net: Layers, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # tanh rather than ReLU, because it is smooth. At a kink, a difference in the last bit can change the gradient by
    # the contribution of a whole image, and the demo could not compare two runs.
    hidden = np.tanh(images @ net.w1 + net.b1)
    return hidden, hidden @ net.w2 + net.b2


def gradient(parameters: np.ndarray, images: np.ndarray, labels: np.ndarray, nbatch: int, out: np.ndarray) -> float:
    """Write this share's part of the gradient into ``out`` and return its part of the loss.

    Loss is softmax cross-entropy. Both are divided by ``nbatch``, the size of the *global* batch: the sum over all
    shares is then the mean over the batch, whether or not the shares are equally large.
    """
    net, grad = layers(parameters), layers(out)
    hidden, scores = _forward(net, images)
    scores -= scores.max(axis=1, keepdims=True)  # does not change the softmax; keeps exp() from overflowing
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(np.maximum(chances[rows, labels], 1e-30)).sum()) / nbatch

    chances[rows, labels] -= 1  # softmax and cross-entropy together have this simple derivative
    chances /= np.float32(nbatch)
    np.matmul(hidden.T, chances, out=grad.w2)
    np.sum(chances, axis=0, out=grad.b2)
    back = (chances @ net.w2.T) * (1 - hidden * hidden)
    np.matmul(images.T, back, out=grad.w1)
    np.sum(back, axis=0, out=grad.b1)
    return loss


def recognise(parameters: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The most likely label of each of ``images``."""
    return _forward(layers(parameters), images)[1].argmax(axis=1)


def accuracy(parameters: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of ``images`` with the right label."""
    return float(np.mean(recognise(parameters, images) == labels))


class Momentum:
    """Stochastic gradient descent with momentum; changes ``parameters`` in place."""

    def __init__(self, parameters: np.ndarray, rate: float = 0.2, momentum: float = 0.9) -> None:
        self.parameters = parameters
        self.velocity = np.zeros_like(parameters)
        self.rate, self.momentum = np.float32(rate), np.float32(momentum)

    def step(self, grad: np.ndarray) -> None:
        """Move one step down ``grad``."""
        self.velocity *= self.momentum
        self.velocity -= self.rate * grad
        self.parameters += self.velocity


def batches(nimages: int, nbatch: int, epoch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of every global batch of ``epoch``, in an order that depends on ``seed`` and epoch alone."""
    order = np.random.default_rng((seed, epoch)).permutation(nimages)
    for start in range(0, nimages, nbatch):
        yield order[start : start + nbatch]


def share(indices: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The part of a global batch for ``rank``: contiguous, with sizes that differ by at most one."""
    return indices[rank * len(indices) // size : (rank + 1) * len(indices) // size]
