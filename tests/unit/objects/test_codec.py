"""The codec of objects: what goes into the header, what stays out of band, and what loading returns."""

import gc
import pickle
import signal
import sys
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from shmring.core.objects import codec
from shmring.core.objects.codec import (
    OUT_OF_BAND_NBYTES,
    block_of,
    buffer_sizes,
    empty_buffers,
    is_plain,
    load,
    parts_of,
)
from shmring.errors import ObjectError


def dump(*args, **options):
    return codec.dump(*args, refusal=None, **options)


def send(dumped):
    """What a receiver gets: copies in its own memory."""
    header = bytes(dumped.header)
    buffers = empty_buffers(header)
    for place, buffer in zip(buffers, dumped.buffers, strict=True):
        place[:] = np.frombuffer(buffer, np.uint8)
    return load(header, buffers)


@pytest.mark.parametrize(
    "obj", [None, 0, "", "ä" * 5000, b"x" * 3_000_000, [1, [2, (3,)]], {"a": {4}}, 1e300, float("inf"), slice(1, 2)]
)
def test_plain_objects_are_all_header(obj):
    dumped = dump(obj)
    assert dumped.buffers == []
    assert dumped.nbytes == len(dumped.header)
    assert send(dumped) == obj


def test_large_arrays_are_not_copied_and_small_ones_are_in_the_header():
    large, small = np.arange(1_000_000), np.arange(10)
    dumped = dump({"large": large, "small": small, "again": large})
    assert len(dumped.header) < 1000
    (buffer,) = dumped.buffers
    assert np.shares_memory(np.frombuffer(buffer, np.int64), large)
    assert buffer_sizes(dumped.header) == (8_000_000,)
    got = send(dumped)
    assert (got["large"] == large).all()
    assert (got["small"] == small).all()
    assert got["again"] is got["large"]


@pytest.mark.parametrize("nbytes", [0, 1, OUT_OF_BAND_NBYTES - 1, OUT_OF_BAND_NBYTES, OUT_OF_BAND_NBYTES + 1])
def test_arrays_arrive_writable_whatever_their_size(nbytes):
    x = np.arange(nbytes, dtype=np.uint8)
    dumped = dump(x)
    assert len(dumped.buffers) == (nbytes >= OUT_OF_BAND_NBYTES)
    got = send(dumped)
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
    got = send(dump(x))
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    assert (got == x).all()


def test_a_read_only_array_stays_read_only():
    x = np.arange(100_000)
    x.flags.writeable = False
    assert not send(dump(x)).flags.writeable


def test_what_cannot_be_pickled_is_an_object_error_that_names_the_rank():
    for rank, text in ((-1, "^cannot pickle this object: "), (3, "^rank 3 cannot pickle its object: ")):
        with pytest.raises(ObjectError, match=text) as caught:
            dump(lambda: 0, rank)
        assert caught.value.rank == rank
        assert isinstance(caught.value.__cause__, (AttributeError, pickle.PicklingError))


class HandlerError(Exception):
    pass


class Interrupted:
    """Pickling or unpickling it runs the handler of a signal."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGUSR1)
        return Interrupted, ()


def handler(number, frame):
    raise HandlerError


class Handler:
    def method(self, number, frame):
        handler(number, frame)


@pytest.mark.parametrize("handler", [handler, Handler().method, lambda *args: handler(*args), partial(handler)])
def test_what_a_signal_handler_raises_is_no_error_of_the_object(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(HandlerError):
            dump(Interrupted())
        header, buffers = dump(Late())
        with pytest.raises(HandlerError):
            load(header, buffers)
    finally:
        signal.signal(signal.SIGUSR1, before)


def raise_handler_error(*args):
    raise HandlerError


class Late:
    def __reduce__(self):
        return signal.raise_signal, (signal.SIGUSR1,)


class Failing:
    def __reduce__(self):
        return raise_handler_error(7, None)


def test_the_same_error_of_the_object_itself_is_an_object_error():
    with pytest.raises(ObjectError) as caught:
        dump(Failing())
    assert type(caught.value.__cause__) is HandlerError


class Trap:
    def __reduce__(self):
        return int, ("no number",)


def test_what_cannot_be_unpickled_is_an_object_error_that_names_its_sender():
    header, buffers = dump(Trap())
    for rank, text in ((-1, "^cannot unpickle the object received: V"), (3, "^cannot unpickle what rank 3 sent: V")):
        with pytest.raises(ObjectError, match=text) as caught:
            load(header, buffers, rank)
        assert caught.value.rank == rank
        assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("header", [b"", b"1234567", b"\xff" * 8, b"x" * 64, bytes(15) + b"\x40"])
def test_a_malformed_header_is_an_object_error(header):
    with pytest.raises(ObjectError, match="the sender sent a malformed object"):
        buffer_sizes(header)
    with pytest.raises(ObjectError, match="rank 2 sent a malformed object"):
        empty_buffers(header, 2)


def test_the_buffers_of_a_block_lie_on_its_cache_lines():
    sent = {"a": np.arange(1001, dtype="u1"), "b": [np.arange(999.0)], "c": "small"}
    block = block_of(dump(sent, out_of_band_nbytes=500))
    header, buffers = parts_of(block)
    found = load(header, buffers)
    assert [(x.ctypes.data - block.ctypes.data) % 64 for x in (found["a"], found["b"][0])] == [0, 0]
    assert (found["a"] == sent["a"]).all()
    assert (found["b"][0] == sent["b"][0]).all()
    assert found["c"] == "small"


@pytest.mark.parametrize("block", [b"", b"1234567", bytes(8), b"\xff" * 8, b"\xff" * 100, bytes(15) + b"\x40"])
def test_a_malformed_block_is_an_object_error(block):
    with pytest.raises(ObjectError, match="rank 2 sent a malformed object"):
        parts_of(np.frombuffer(bytearray(block), np.uint8), 2)


def test_a_dumped_object_that_is_collected_in_a_cycle_reports_nothing(monkeypatch):
    # CPython 3.13 and later report what the finalizer of a file raises, as it does where a view of its memory is left.
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    cycle = [dump([1, 2])]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert reported == []


class Pair(NamedTuple):
    """A tuple for which a reducer may be registered."""

    a: int
    b: int


@pytest.mark.parametrize(
    ("obj", "plain"),
    [(1, True), ("text", True), (None, True), ((1, 2.5, "x"), True), ((), True), ((1,) * 17, False), (b"x", False),
     ((1, [2]), False), (Pair(1, 2), False), (np.float64(1), False), (IntEnum("Kind", "A").A, False), ([1], False)],
)  # fmt: skip
def test_plain_objects_come_back_as_all_others_do(obj, plain):
    assert is_plain(obj) == plain
    if not isinstance(obj, IntEnum):  # whose class cannot be found by its name
        dumped = dump(obj)
        got = load(*parts_of(block_of(dumped)))
        assert (type(got), got) == (type(obj), obj)
