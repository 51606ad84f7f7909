"""Messages as a peer may have written them: each frame, shape and dtype is checked before it is used."""

import struct

import numpy as np
import pytest

import shmring
from shmring import ObjectError, Receiver, SegmentError
from shmring.channels.queue_locks import format_queue
from shmring.core.arrays import dtype_codec
from shmring.core.ring import spsc

BYTES, ARRAY, OBJECT = 2, 3, 4
FLOAT64, OTHER = 0, 255
LONG = 1 << 56
HUGE = 1 << 62


def frame(kind, payload=b"", code=0, ndim=0, flags=0):
    """The words of one frame."""
    word = len(payload) | kind << 32 | code << 40 | ndim << 48 | flags
    return struct.pack("<Q", word) + payload + bytes(-len(payload) % 8)


def array(extents, content=b"", dtype=None):
    """A frame of an array: of dtypes.DTYPES[0], or with the description of another dtype."""
    meta = struct.pack(f"<{len(extents)}q", *extents)
    if dtype is None:
        return frame(ARRAY, meta + content, FLOAT64, len(extents))
    text = dtype + bytes(-len(dtype) % 8)
    return frame(ARRAY, struct.pack("<q", len(dtype)) + meta + text + content, OTHER, len(extents))


def receiver_of(words):
    """The receiver of a channel into whose ring a peer has written these words."""
    sender, receiver = shmring.channel(1 << 14)
    sender.take()
    memory = memoryview(receiver._channel.mapping)[receiver._channel.ring_offset :]
    memory[spsc.CONTROL_NBYTES : spsc.CONTROL_NBYTES + len(words)] = words
    memory[128:136] = struct.pack("<Q", len(words) // 8)
    memory.release()
    return receiver


CALLS = {
    "recv": lambda receiver: receiver.recv(0),
    "recv_into": lambda receiver: receiver.recv_into(bytearray(4096), 0),
    "peek": lambda receiver: receiver.peek(0).array.sum(),
    "poll": lambda receiver: receiver.poll(0) and receiver.recv(0),
    "recv_many": lambda receiver: receiver.recv_many(timeout=0),
}

IMPOSSIBLE = {
    **{f"{ndim} dimensions": array((1,) * ndim, bytes(8)) for ndim in (65, 80, 200, 255)},
    "255 dimensions of another dtype": array((1,) * 255, bytes(4), b"'>f4'"),
    "a negative extent": array((-1, -1), bytes(8)),
    "too few bytes": array((3, 3), bytes(8)),
    "too many bytes": array((1, 1), bytes(16)),
    "an overflow to the right size": array((1 << 32, 1 << 32)),
    "an overflow beside no elements": array((0, HUGE, 8)),
    "an extent missing": frame(ARRAY, bytes(8), FLOAT64, 2),
    "an unknown dtype code": frame(ARRAY, bytes(8), 77, 1),
    "a description longer than the frame": frame(ARRAY, struct.pack("<q", 100), OTHER, 0),
    "a negative description": frame(ARRAY, struct.pack("<q", -8) + bytes(8), OTHER, 0),
    "strings of no length, which NumPy makes longer": array((HUGE,), b"", b"'|S0'"),
    "a subarray, which NumPy makes more dimensions": array((1,), bytes(16), b"('<f8', (2,))"),
    "Python objects": array((1,), bytes(8), b"'|O'"),
    "Python objects by another name": array((1,), bytes(8), b"ml_dtypes:finfo"),
    "a long message without a length": frame(BYTES, b"", flags=LONG),
    "a long message of an impossible length": frame(BYTES, struct.pack("<Q", 1 << 63), flags=LONG),
    "a long object shorter than its metadata": frame(OBJECT, bytes(16), flags=LONG),
    "a frame of no kind": frame(99),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("words", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_message_that_cannot_be_is_refused(words, call):
    receiver = receiver_of(words)
    with pytest.raises(SegmentError):
        call(receiver)
    receiver.close()


def test_an_object_whose_stream_is_longer_than_it_is_refused():
    for call in (Receiver.recv, Receiver.peek):
        with pytest.raises(SegmentError):
            call(receiver_of(frame(OBJECT, struct.pack("<q", 64) + bytes(8))), 0)


@pytest.mark.parametrize("header", [b"", b"1234567", b"\xff" * 8, struct.pack("<QQ", HUGE, 1)], ids=len)
def test_a_malformed_object_is_refused(header):
    words = frame(OBJECT, struct.pack("<q", len(header)) + header)
    receiver = receiver_of(words)
    with pytest.raises(ObjectError):
        receiver.recv(0)
    receiver = receiver_of(words)
    lease = receiver.peek(0)
    with pytest.raises(ObjectError):
        _ = lease.object
    receiver.release()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("extents", [(), (1,) * 64, (0, 5), (2, 0, 3)])
def test_a_message_that_can_be_is_received(extents, call):
    content = bytes(8 * int(np.prod(extents)))
    call(receiver_of(array(extents, content, b"'<f8'")))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"(" * 1000, b"-" * 10_000 + b"1", b"[('a', '<f8'", b"12", b"'nonsense'", b"[('a', '|O')]", b"'|V-1'"),
        *(b"('<f8', (2, 2))", b"'<U0'", b"ml_dtypes:", b"ml_dtypes:iinfo", b"ml_dtypes:nothing", b"\x00\xff"),
    ],
)
def test_a_description_of_no_plain_dtype_is_refused(text):
    with pytest.raises(SegmentError):
        dtype_codec.dtype_of(text)


# ---- what a caller sends ----


@pytest.mark.parametrize("dtype", [None, "f8", ">i2"])
def test_an_impossible_shape_is_refused_and_nothing_is_sent(dtype):
    sender, receiver = shmring.channel(1 << 14)
    shapes = [(1,) * 65, (1,) * 200, (1,) * 256, (-1,), (3, -1), (1 << 32, 1 << 32), (0, HUGE, HUGE), 1 << 70]
    for shape in [*shapes, (1.5,), 2.5, "ab", None]:
        with pytest.raises((ValueError, TypeError)):
            sender.reserve(shape, dtype)
    for shape in ((1.5,), 2.5, "ab", None, [None]):
        with pytest.raises(TypeError, match=r"^shape=.*: must be an int, or a sequence of ints$"):
            sender.reserve(shape, dtype)
    for shape in (np.int64(2), [1, 2], (0, 5), (), (1,) * 64):
        nbytes = sender.reserve(shape, dtype).nbytes
        sender.commit()
        assert receiver.peek(0).nbytes == nbytes
        receiver.release()


def test_dtypes_that_no_array_has_are_refused():
    sender, receiver = shmring.channel()
    for dtype in ("S0", "U0", str, ("f8", (2,)), object):
        with pytest.raises(TypeError):
            sender.reserve(1, dtype)
        with pytest.raises(TypeError):
            shmring.channel(dtype=dtype)
    with pytest.raises(TypeError):
        sender.send(np.zeros(3, [("a", "S0")])["a"])
    assert not receiver.poll(0)


MASKED = np.ma.masked_array([1.0, 2.0], [True, False])


def test_the_mask_of_an_array_is_not_lost():
    sender, receiver = shmring.channel()
    for call in (sender.send, sender.try_send, lambda x: sender.send_many([x])):
        with pytest.raises(TypeError, match="masked"):
            call(MASKED)
    assert not receiver.poll(0)
    sender.send_object(MASKED)
    assert receiver.recv().mask.tolist() == [True, False]
    records, _ = shmring.channel(dtype="f8")
    for call in (records.send, records.try_send):
        with pytest.raises(TypeError, match="masked"):
            call(MASKED[0])
    with pytest.raises(TypeError, match="masked"):
        records.send_many(MASKED)
    assert len(records) == 0


@pytest.mark.parametrize(
    ("dtype", "record", "others"),
    [("i4", 7, [[1, 2, 3], [], [[1, 2]]]), ("i4,f8", (1, 2.0), [[1, 2], [(1, 2), (3, 4)]])],
)
@pytest.mark.parametrize("make", ["channel", "broadcast_channel"])
def test_one_record_is_one(make, dtype, record, others):
    sender, receiver = shmring.channel(dtype=dtype) if make == "channel" else shmring.broadcast_channel(1, dtype=dtype)
    receiver = receiver if make == "channel" else receiver[0]
    for several in others:
        for call in (sender.send, sender.try_send):
            with pytest.raises((ValueError, TypeError)):
                call(several)
    assert not receiver.poll(0)
    assert sender.send(record)
    assert receiver.recv(0).tolist() == record


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**64, -(2**80)])
def test_a_number_without_room_in_its_dtype_is_a_value_error(value):
    sender, receiver = shmring.channel(dtype="i4")
    pairs, _receiver = shmring.channel(dtype="i4,f8")
    for call in (sender.send, sender.try_send, shmring.Latest(dtype="i4").write):
        with pytest.raises(ValueError, match="not of int32: Python int"):
            call(value)
    for call, given in ((sender.send_many, [1, value]), (pairs.send, (value, 1.0)), (pairs.send, value)):
        with pytest.raises(ValueError, match="not of "):
            call(given)
    assert not receiver.poll(0)


def test_a_buffer_without_room_is_not_written():
    buffer = bytearray(16)
    with pytest.raises(ValueError, match="needed"):
        format_queue(buffer)
    assert buffer == bytes(16)
