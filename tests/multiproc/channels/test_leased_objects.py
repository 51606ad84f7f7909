"""Objects that are read in place: their arrays lie in the ring until the lease ends, and no array outlives it."""

import os
import random
import signal
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.harness import PATIENCE

import shmring
from shmring import ObjectError, PeerLostError


@dataclass
class Frame:
    number: int
    image: np.ndarray
    rest: dict


def frame(number, extent=2000):
    """An object with arrays in it: two that are lent, and one that is too small."""
    image = np.arange(number, number + extent, dtype=np.float32).reshape(2, -1)
    wide = np.arange(extent).astype(np.complex128)
    return Frame(number, image, {"wide": [wide, np.arange(number)], "text": str(number)})


def arrays_of(obj):
    return [obj.image, obj.rest["wide"][0]]


def assert_same(found, wanted):
    assert (type(found), found.number, found.rest["text"]) == (Frame, wanted.number, wanted.rest["text"])
    assert found.rest["wide"][1].tolist() == wanted.rest["wide"][1].tolist()
    for one, other in zip(arrays_of(found), arrays_of(wanted), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def lies_in(receiver, array):
    """Whether the elements of an array lie in the memory of a channel."""
    memory = np.frombuffer(memoryview(receiver._channel.mapping), np.uint8)
    return 0 <= array.ctypes.data - memory.ctypes.data <= memory.nbytes - array.nbytes


def send_frames(sender, count):
    with sender:
        for number in range(count):
            sender.send_object(frame(number))


def one_channel():
    sender, receiver = shmring.channel(1 << 19)
    return sender, lambda: receiver


def fan_in():
    (sender,), receiver = shmring.fan_in(1, 1 << 19)
    return sender, receiver.next_ready


def broadcast():
    sender, (receiver,) = shmring.broadcast_channel(1, 1 << 19)
    return sender, lambda: receiver


@pytest.mark.parametrize("make", [one_channel, fan_in, broadcast])
def test_arrays_of_an_object_from_another_process_lie_in_the_ring(make):
    sender, next_receiver = make()
    pid = in_child(send_frames, sender, 20)
    for number in range(20):  # more than once around the ring: no frame wraps
        end = next_receiver()
        lease = end.peek(60 * PATIENCE)
        found = lease.object
        assert_same(found, frame(number))
        for array in arrays_of(found):
            assert lies_in(end, array)
            assert array.ctypes.data % 64 == 0
            assert not array.flags.writeable
        assert not lies_in(end, found.rest["wide"][1])
        assert found.rest["wide"][1].flags.writeable
        del found, array
        end.release()
        assert lease.over
    assert status_of(pid) == 0


def test_a_lease_of_an_object_ends_only_without_its_arrays():
    sender, receiver = shmring.channel(1 << 19)
    sender.send_object(frame(1))
    sender.send_object(frame(2))
    lease = receiver.peek(0)
    assert (lease.dtype, lease.shape) == (np.dtype(object), ())
    assert "object" in repr(lease)
    found, again = lease.object, lease.object
    assert again is not found
    assert np.shares_memory(again.image, found.image)
    assert_same(again, found)
    del again
    part = found.image[1:, ::2]
    view = memoryview(found.rest["wide"][0])
    keepers = [found, part, view]
    del found, part, view
    while keepers:
        for end in (receiver.release, receiver.close):
            with pytest.raises(BufferError, match="alive"):
                end()
        with pytest.raises(ValueError, match="still open"):
            receiver.recv(0)
        keepers.pop(0)
    receiver.release()
    for use in (lambda: lease.object, lambda: lease.array):
        with pytest.raises(ValueError, match="over"):
            use()
    assert_same(receiver.recv(0), frame(2))
    with pytest.raises(ValueError, match="nothing is peeked"):
        receiver.release()


def test_a_leased_object_is_no_array_and_a_leased_array_is_an_object():
    sender, receiver = shmring.channel()
    sender.send_object(frame(1))
    lease = receiver.peek(0)
    for use in (lambda: lease.array, lambda: lease[0], lambda: memoryview(lease), lambda: np.asarray(lease)):
        with pytest.raises(TypeError, match="use lease"):
            use()
    with pytest.raises(TypeError):
        len(lease)
    assert lease.nbytes > 20_000
    with pytest.raises(TypeError, match="object"):
        sender.reserve(3, object)
    receiver.release()
    sender.send(np.arange(5))
    assert receiver.peek(0).object.tolist() == [0, 1, 2, 3, 4]
    receiver.release()


def test_an_object_that_came_in_pieces_is_leased_from_private_memory():
    sender, receiver = shmring.channel(1 << 14)
    pid = in_child(send_frames, sender, 3)
    for number in range(3):
        lease = receiver.peek(60 * PATIENCE)
        found = lease.object
        assert_same(found, frame(number))
        for array in arrays_of(found):
            assert not lies_in(receiver, array)
            assert not array.flags.writeable
        with pytest.raises(BufferError):
            receiver.release()
        del found, array
        receiver.release()
        assert lease.over
    assert status_of(pid) == 0


def test_an_object_that_may_not_go_in_pieces_is_lent_up_to_half_of_the_ring():
    sender, receiver = shmring.channel(1 << 21)
    wanted = frame(7, 20_000)
    for timeout, is_lent in ((0, True), (None, False)):
        sender.send_object(wanted, timeout)
        found = receiver.peek(0).object
        assert_same(found, wanted)
        assert [lies_in(receiver, array) for array in arrays_of(found)] == [is_lent] * 2
        del found
        receiver.release()


class Unreadable:
    def __init__(self):
        self.content = np.arange(9999)

    def __setstate__(self, state):
        raise RuntimeError("not here")


def test_an_object_that_cannot_be_unpickled_is_released_where_its_error_is_handled():
    sender, receiver = shmring.channel()
    sender.send_object(Unreadable())
    sender.send(b"next")
    lease = receiver.peek(0)
    with pytest.raises(ObjectError, match="not here") as caught:
        _ = lease.object
    assert isinstance(caught.value.__cause__, RuntimeError)
    receiver.release()  # although the error, with its frames, is alive
    assert receiver.recv(0) == b"next"


def test_a_process_that_does_not_unpickle_leases_no_objects():
    name = f"leased-{os.getpid()}-{random.random()}"
    with (
        shmring.open_channel(name, "sender") as sender,
        shmring.open_channel(name, "receiver", allow_pickle=False) as receiver,
    ):
        sender.send_object(frame(1))
        lease = receiver.peek(0)
        with pytest.raises(ObjectError, match="allow_pickle is False"):
            _ = lease.object
        receiver.release()
        assert receiver.try_recv() is None


def test_arrays_of_a_lease_outlive_the_receiver_that_was_dropped():
    sender, receiver = shmring.channel()
    sender.send_object(frame(3))
    image = receiver.peek(0).object.image
    del sender, receiver
    assert (image == frame(3).image).all()


def lease_and_die(name):
    receiver = shmring.open_channel(name, "receiver")
    found = receiver.peek(60 * PATIENCE).object
    assert_same(found, frame(0))
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_receiver_after_one_that_was_killed_with_a_lease_gets_the_object():
    name = f"leased-{os.getpid()}-{random.random()}"
    with shmring.open_channel(name, "sender") as sender:
        for number in range(3):
            sender.send_object(frame(number))
        assert status_of(in_child(lease_and_die, name)) == -signal.SIGKILL
        with shmring.open_channel(name, "receiver") as receiver:
            for number in range(3):
                found = receiver.peek(0).object
                assert_same(found, frame(number))
                del found
                receiver.release()


def test_a_sender_notices_a_receiver_that_was_killed_with_a_lease():
    sender, receiver = shmring.channel(1 << 19)
    ready, is_held = shmring.channel()

    def hold():
        found = receiver.peek(60 * PATIENCE).object
        ready.send(b"")
        signal.pause()
        assert found

    pid = in_child(hold)
    sender.send_object(frame(0))
    is_held.recv(60 * PATIENCE)
    kill(pid)
    with pytest.raises(PeerLostError):
        while True:
            sender.send_object(frame(1))


class Made:
    """Pickles as a call."""

    def __init__(self, call, *args):
        self.made = call, args

    def __reduce__(self):
        return self.made


def fail_in_a_circle(attribute):
    first, second = ValueError("first"), ValueError("second")
    setattr(first, attribute, second)
    setattr(second, attribute, first)
    raise first


@pytest.mark.parametrize("attribute", ["__cause__", "__context__"])
def test_an_error_with_a_circle_in_its_causes_is_raised(attribute):
    sender, receiver = shmring.channel()
    sender.send_object(Made(fail_in_a_circle, attribute))
    with pytest.raises(ObjectError, match="first"):
        receiver.peek(60 * PATIENCE).object  # noqa: B018
    receiver.release()


def numbers_and_an_error():
    yield 1
    try:
        raise ValueError("of a generator")
    except ValueError as error:
        yield error
    yield "alive"


suspended: list = []


def fail_by_generator():
    generator = numbers_and_an_error()
    suspended.append(generator)
    next(generator)
    raise next(generator)


def test_generators_in_the_traceback_of_an_error_go_on():
    sender, receiver = shmring.channel()
    sender.send_object(Made(fail_by_generator))
    with pytest.raises(ObjectError, match="of a generator"):
        receiver.peek(60 * PATIENCE).object  # noqa: B018
    receiver.release()
    assert next(suspended.pop()) == "alive"


def fail_with(x, deep):
    """Raise an error whose frames, at every place in its causes, have a view of an array."""
    kept = x[1:]  # noqa: F841
    try:
        try:
            raise ValueError("deepest")
        except ValueError as error:
            raise KeyError("cause") from error
    except KeyError as error:
        if deep:
            raise ExceptionGroup("several", [error, ValueError(2)]) from None  # noqa: F821
        raise


@pytest.mark.parametrize(
    "deep", [False, pytest.param(True, marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="3.11"))]
)
def test_an_error_keeps_no_view_of_the_message(deep):
    sender, receiver = shmring.channel()
    sender.send_object(Made(fail_with, np.arange(5000.0), deep))
    with pytest.raises(ObjectError) as caught:
        receiver.peek(60 * PATIENCE).object  # noqa: B018
    receiver.release()  # BufferError if there were one
    assert caught.value.__cause__ is not None
