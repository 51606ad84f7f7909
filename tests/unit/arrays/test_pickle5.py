"""Packing: what goes into the letter, what stays beside it, and what comes out again."""

import pickle

import ml_dtypes
import numpy as np
import pytest

from shmring.arrays.pickle5 import ENCLOSED_NBYTES, empty_enclosures, enclosed_sizes, pack, unpack


def send(pickled):
    """What a receiver would have of it: copies in memory of its own."""
    letter = bytes(pickled.letter)
    enclosures = empty_enclosures(letter)
    for place, enclosure in zip(enclosures, pickled.enclosures, strict=True):
        place[:] = np.frombuffer(enclosure, np.uint8)
    return unpack(letter, enclosures)


@pytest.mark.parametrize(
    "obj", [None, 0, "", "ä" * 5000, b"x" * 3_000_000, [1, [2, (3,)]], {"a": {4}}, 1e300, float("inf"), slice(1, 2)]
)
def test_plain_objects_are_all_letter(obj):
    pickled = pack(obj)
    assert pickled.enclosures == []
    assert pickled.nbytes == len(pickled.letter)
    assert send(pickled) == obj


def test_large_arrays_are_not_copied_and_small_ones_are_in_the_letter():
    large, small = np.arange(1_000_000), np.arange(10)
    pickled = pack({"large": large, "small": small, "again": large})
    assert len(pickled.letter) < 1000
    (enclosure,) = pickled.enclosures
    assert np.shares_memory(np.frombuffer(enclosure, np.int64), large)
    assert enclosed_sizes(pickled.letter) == (8_000_000,)
    got = send(pickled)
    assert (got["large"] == large).all()
    assert (got["small"] == small).all()
    assert got["again"] is got["large"]


@pytest.mark.parametrize("nbytes", [0, 1, ENCLOSED_NBYTES - 1, ENCLOSED_NBYTES, ENCLOSED_NBYTES + 1])
def test_arrays_arrive_writable_whatever_their_size(nbytes):
    x = np.arange(nbytes, dtype=np.uint8)
    pickled = pack(x)
    assert len(pickled.enclosures) == (nbytes >= ENCLOSED_NBYTES)
    got = send(pickled)
    assert got.tobytes() == x.tobytes()
    got[:] = 7
    assert nbytes == 0 or x[0] == 0


@pytest.mark.parametrize(
    "x",
    [
        np.asfortranarray(np.arange(90_000.0).reshape(300, 300)),
        np.arange(90_000.0).reshape(300, 300)[::2, ::3],
        np.arange(90_000).astype("datetime64[s]"),
        np.arange(90_000).astype(ml_dtypes.bfloat16),
        np.zeros(9000, [("a", "i4"), ("b", "f8", (2,))]),
        np.array([{"a": 1}, None] * 9000, object),
        np.array(["ä", "bc"] * 40_000),
    ],
    ids=["fortran", "strided", "datetime", "bfloat16", "struct", "objects", "strings"],
)
def test_arrays_of_every_kind_come_out_equal(x):
    got = send(pack(x))
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    assert (got == x).all()


def test_a_read_only_array_stays_read_only():
    x = np.arange(100_000)
    x.flags.writeable = False
    assert not send(pack(x)).flags.writeable


def test_what_cannot_be_pickled_raises_what_pickle_raises():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pack(lambda: 0)
