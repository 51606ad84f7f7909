"""Pickling: what goes into the stream, what stays out of band, and what unpickling returns."""

import gc
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

from shmring.objects.pickle5 import OUT_OF_BAND_NBYTES, buffer_sizes, empty_buffers, pack, unpack


def send(pickled):
    """What a receiver gets: copies in its own memory."""
    stream = bytes(pickled.stream)
    buffers = empty_buffers(stream)
    for place, buffer in zip(buffers, pickled.buffers, strict=True):
        place[:] = np.frombuffer(buffer, np.uint8)
    return unpack(stream, buffers)


@pytest.mark.parametrize(
    "obj", [None, 0, "", "ä" * 5000, b"x" * 3_000_000, [1, [2, (3,)]], {"a": {4}}, 1e300, float("inf"), slice(1, 2)]
)
def test_plain_objects_are_all_stream(obj):
    pickled = pack(obj)
    assert pickled.buffers == []
    assert pickled.nbytes == len(pickled.stream)
    assert send(pickled) == obj


def test_large_arrays_are_not_copied_and_small_ones_are_in_the_stream():
    large, small = np.arange(1_000_000), np.arange(10)
    pickled = pack({"large": large, "small": small, "again": large})
    assert len(pickled.stream) < 1000
    (buffer,) = pickled.buffers
    assert np.shares_memory(np.frombuffer(buffer, np.int64), large)
    assert buffer_sizes(pickled.stream) == (8_000_000,)
    got = send(pickled)
    assert (got["large"] == large).all()
    assert (got["small"] == small).all()
    assert got["again"] is got["large"]


@pytest.mark.parametrize("nbytes", [0, 1, OUT_OF_BAND_NBYTES - 1, OUT_OF_BAND_NBYTES, OUT_OF_BAND_NBYTES + 1])
def test_arrays_arrive_writable_whatever_their_size(nbytes):
    x = np.arange(nbytes, dtype=np.uint8)
    pickled = pack(x)
    assert len(pickled.buffers) == (nbytes >= OUT_OF_BAND_NBYTES)
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


def test_a_pickled_object_that_is_collected_in_a_cycle_reports_nothing(monkeypatch):
    # CPython 3.13 and later report what the finalizer of a file raises, as it does where a view of its memory is left.
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    cycle = [pack([1, 2])]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert reported == []
