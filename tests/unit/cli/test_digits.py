"""The data of the demo match their description in digits.txt."""

import hashlib
from importlib.resources import files

import numpy as np

from shmring.cli import _training

SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_the_stored_digits_are_the_ones_that_were_packed():
    with (files("shmring.cli") / "digits.npz").open("rb") as file, np.load(file) as stored:
        images, labels = stored["images"], stored["labels"]
    assert images.shape == (1797, 8, 8)
    assert images.dtype == labels.dtype == np.uint8
    assert images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() == SHA256


def test_the_digits_are_attributed():
    text = (files("shmring.cli") / "digits.txt").read_text()
    for word in ("Alpaydin", "Kaynak", "1998", "UCI", "CC BY 4.0"):
        assert word in text


def test_every_image_is_either_trained_on_or_tested_on():
    digits = _training.load_digits()
    assert digits.train_images.shape == (1437, 64)
    assert digits.test_images.shape == (360, 64)
    assert digits.train_images.dtype == np.float32
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    both = np.bincount(digits.train_labels) + np.bincount(digits.test_labels)
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
