"""Train a network on digits with JAX: data-parallel, tensor-parallel, and both, with the losses of one process.

    pip install '.[jax]'
    shmring run --jax -n 4 examples/jax_train.py

Nothing here is shmring's: arrays are spread over the processes by JAX's shardings, and the compiler inserts the
collectives, which run over shared memory.
"""

from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

Weights: TypeAlias = dict[str, jax.Array]
STEPS, BATCH, WIDTH, RATE = 60, 256, 128, 0.2


def digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """1797 digits of 8 x 8 pixels and their numbers; the set comes with shmring."""
    with (files("shmring") / "cli" / "digits.npz").open("rb") as file, np.load(file) as data:
        images, labels = data["images"], data["labels"]
    return (images.reshape(len(images), -1) / np.float32(16)).astype(np.float32), labels.astype(np.int32)


def start() -> dict[str, NDArray[np.float32]]:
    """The same weights in every process."""
    draw = np.random.default_rng(0).standard_normal
    shapes = {"first": (64, WIDTH), "second": (WIDTH, WIDTH), "last": (WIDTH, 10)}
    return {name: (draw(shape) / np.sqrt(shape[0])).astype(np.float32) for name, shape in shapes.items()}


def loss(weights: Weights, x: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of a batch."""
    x = jax.nn.relu(x @ weights["first"])
    x = jax.nn.relu(x @ weights["second"])
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ weights["last"]), labels[:, None], 1).mean()


@jax.jit
def step(weights: Weights, x: jax.Array, labels: jax.Array) -> tuple[Weights, jax.Array]:
    """One step of gradient descent, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(weights, x, labels)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), value


def spread(array: NDArray[Any], sharding: NamedSharding) -> jax.Array:
    """An array of which every process has the whole, as one whose parts lie where ``sharding`` has them."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def train(
    place_weights: Callable[[str, NDArray[Any]], Any], place_batch: Callable[[NDArray[Any]], Any]
) -> NDArray[np.float64]:
    """The losses of all steps."""
    images, labels = digits()
    weights = {name: place_weights(name, array) for name, array in start().items()}
    order = np.random.default_rng(1)
    losses: list[float] = []
    for _ in range(STEPS):
        chosen = order.integers(0, len(images), BATCH)
        weights, value = step(weights, place_batch(images[chosen]), place_batch(labels[chosen]))
        losses.append(float(value))
    return np.array(losses)


def train_on(mesh: Mesh) -> NDArray[np.float64]:
    """Batches are spread over the axis "data"; of each layer the columns, then the rows, over "model"."""
    parts = {"first": P(None, "model"), "second": P("model", None), "last": P()}
    return train(
        lambda name, array: spread(array, NamedSharding(mesh, parts[name])),
        lambda array: spread(array, NamedSharding(mesh, P("data"))),
    )


jax.distributed.initialize()
devices = np.array(jax.devices())
n = len(devices)
alone = train(lambda name, array: array, lambda array: array)
shapes = {"data-parallel": (n, 1), "tensor-parallel": (1, n)}
if n >= 4 and n % 2 == 0:
    shapes["both"] = (n // 2, 2)
for name, shape in shapes.items():
    losses = train_on(Mesh(devices.reshape(shape), ("data", "model")))
    np.testing.assert_allclose(losses, alone, rtol=1e-3, atol=1e-4)
    if jax.process_index() == 0:
        print(f"{name} over {shape}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, in one process {alone[-1]:.4f}")
