"""The network of the demo: its gradient is one, and shares of a batch add up to the batch."""

import numpy as np
import pytest

from shmring.cli import _training


@pytest.fixture
def batch():
    digits = _training.load_digits()
    return digits.train_images[:37].astype(np.float64), digits.train_labels[:37]


def test_the_gradient_is_the_slope_of_the_loss(batch):
    images, labels = batch
    parameters = _training.initial(3).astype(np.float64)
    gradient, unused = np.empty_like(parameters), np.empty_like(parameters)
    _training.gradient(parameters, images, labels, len(labels), gradient)
    for index in np.random.default_rng(3).choice(len(parameters), 60, replace=False):
        step = np.zeros_like(parameters)
        step[index] = 1e-6
        above = _training.gradient(parameters + step, images, labels, len(labels), unused)
        below = _training.gradient(parameters - step, images, labels, len(labels), unused)
        assert (above - below) / 2e-6 == pytest.approx(gradient[index], abs=1e-7)


@pytest.mark.parametrize("size", [2, 3, 7, 40])
def test_gradients_of_shares_add_up_to_that_of_the_batch_even_where_shares_are_empty(batch, size):
    images, labels = batch
    parameters = _training.initial(5).astype(np.float64)
    whole = np.empty_like(parameters)
    loss = _training.gradient(parameters, images, labels, len(labels), whole)
    part, total, total_loss = np.empty_like(parameters), np.zeros_like(parameters), 0.0
    for rank in range(size):
        mine = _training.share(np.arange(len(labels)), rank, size)
        total_loss += _training.gradient(parameters, images[mine], labels[mine], len(labels), part)
        total += part
    assert total_loss == pytest.approx(loss)
    np.testing.assert_allclose(total, whole, atol=1e-12)


def test_every_image_falls_to_exactly_one_rank_of_exactly_one_batch():
    seen = [
        index
        for batch in _training.batches(1437, epoch=4, seed=9)
        for rank in range(5)
        for index in _training.share(batch, rank, 5)
    ]
    assert sorted(seen) == list(range(1437))


def test_batches_depend_on_seed_and_epoch_alone():
    def order(epoch, seed):
        return np.concatenate(list(_training.batches(200, epoch, seed))).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2) != order(1, 3)
