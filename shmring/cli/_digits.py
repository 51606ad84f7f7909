"""The handwritten digits that the demo learns to read (their source is in ``digits.txt``)."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np

TEST_EVERY = 5  # images 0, 5, 10, ... (360 of 1797) are for tests only; the split does not depend on the seed


class Digits(NamedTuple):
    """Images as rows of 64 float32 in [0, 1], labels as int64 in [0, 10)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Digits:
    """Read the images and split them."""
    with (files("shmring.cli") / "digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].reshape(-1, 64).astype(np.float32) / np.float32(16)
        labels = stored["labels"].astype(np.int64)
    test = np.arange(len(images)) % TEST_EVERY == 0
    return Digits(images[~test], labels[~test], images[test], labels[test])
