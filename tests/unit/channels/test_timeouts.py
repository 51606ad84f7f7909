"""Timeouts of channels: one rule for every call, and one deadline for the whole of each call."""

import contextlib
import queue
import threading
import time

import numpy as np
import pytest

import shmring

FULL = 1 << 10


def filled(dtype=None):
    """A channel that is full."""
    sender, receiver = shmring.channel(FULL, dtype=dtype)
    while sender.try_send(b"x" if dtype is None else 1):
        pass
    return sender, receiver


# By call: one that has to wait, and one that need not.
WAITS = {
    "send": lambda t: filled()[0].send(b"x", t),
    "send, an array": lambda t: filled()[0].send(np.ones(3), t),
    "send, a long message": lambda t: filled()[0].send(bytes(9999), t),
    "send_object": lambda t: filled()[0].send_object([], t),
    "send_many": lambda t: filled()[0].send_many([b"x"], t),
    "reserve": lambda t: filled()[0].reserve(8, None, t),
    "recv": lambda t: shmring.channel()[1].recv(t),
    "recv_many": lambda t: shmring.channel()[1].recv_many(None, t),
    "recv_into": lambda t: shmring.channel()[1].recv_into(bytearray(8), t),
    "peek": lambda t: shmring.channel()[1].peek(t),
    "poll": lambda t: shmring.channel()[1].poll(t),
    "send, a record": lambda t: filled("i8")[0].send(1, t),
    "send_many, records": lambda t: filled("i8")[0].send_many([1], t),
    "reserve, records": lambda t: filled("i8")[0].reserve(1, t),
    "recv, a record": lambda t: shmring.channel(dtype="i8")[1].recv(t),
    "recv_many, records": lambda t: shmring.channel(dtype="i8")[1].recv_many(None, t),
    "recv_into, records": lambda t: shmring.channel(dtype="i8")[1].recv_into(np.zeros(1, "i8"), t),
    "peek, records": lambda t: shmring.channel(dtype="i8")[1].peek(None, t),
    "poll, records": lambda t: shmring.channel(dtype="i8")[1].poll(t),
}


def with_a_message(dtype):
    sender, receiver = shmring.channel(dtype=dtype)
    sender.send(b"x" if dtype is None else 1)
    return receiver


READY = {
    "send": lambda t: shmring.channel()[0].send(b"x", t),
    "send, an array": lambda t: shmring.channel()[0].send(np.ones(3), t),
    "send_object": lambda t: shmring.channel()[0].send_object([], t),
    "send_many": lambda t: shmring.channel()[0].send_many([b"x"], t),
    "reserve": lambda t: shmring.channel()[0].reserve(8, None, t),
    "recv": lambda t: with_a_message(None).recv(t),
    "recv_many": lambda t: with_a_message(None).recv_many(None, t),
    "recv_into": lambda t: with_a_message(None).recv_into(bytearray(8), t),
    "peek": lambda t: with_a_message(None).peek(t),
    "poll": lambda t: with_a_message(None).poll(t),
    "send, a record": lambda t: shmring.channel(dtype="i8")[0].send(1, t),
    "send_many, records": lambda t: shmring.channel(dtype="i8")[0].send_many([1], t),
    "reserve, records": lambda t: shmring.channel(dtype="i8")[0].reserve(1, t),
    "recv, a record": lambda t: with_a_message("i8").recv(t),
    "recv_many, records": lambda t: with_a_message("i8").recv_many(None, t),
    "recv_into, records": lambda t: with_a_message("i8").recv_into(np.zeros(1, "i8"), t),
    "peek, records": lambda t: with_a_message("i8").peek(None, t),
    "poll, records": lambda t: with_a_message("i8").poll(t),
}


@pytest.mark.parametrize("call", READY.values(), ids=READY)
def test_every_timeout_means_the_same_to_every_call(call):
    for timeout in (None, 0, 0.0, 1e-9, 5, float("inf"), 1e300, 10**400, np.float32(1), True):
        assert call(timeout)
    for timeout in (-1, -1e-9, float("-inf"), float("nan"), -(10**400)):
        with pytest.raises(ValueError, match="timeout"):
            call(timeout)
    for timeout in ("1", 1j, []):
        with pytest.raises(TypeError, match="timeout"):
            call(timeout)


@pytest.mark.parametrize("timeout", [0, 1e-6, 0.02])
@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_a_call_waits_as_long_as_its_timeout(call, timeout):
    begin = time.monotonic()
    try:
        assert not call(timeout)  # poll, send_many
    except (queue.Full, queue.Empty):
        pass
    except ValueError:
        if timeout:  # else it is a long message, which is not streamed then
            raise
    assert time.monotonic() - begin >= timeout


LONG = bytes(16 << 20)
RECEIVES = {
    "poll": lambda receiver: receiver.poll(0.001),
    "recv": lambda receiver: receiver.recv(0.001),
    "recv_many": lambda receiver: ready(receiver).recv_many(None, 0.001),
    "recv_into": lambda receiver: ready(receiver).recv_into(INTO, 0.001),
    "peek": lambda receiver: ready(receiver).peek(0.001),
}
INTO = bytearray(len(LONG))


def ready(receiver):
    """A receiver that has these calls, if need be."""
    return receiver.next_ready(0.001) if isinstance(receiver, shmring.FanInReceiver) else receiver


@pytest.mark.parametrize("call", RECEIVES.values(), ids=RECEIVES)
@pytest.mark.parametrize("make", ["channel", "fan_in", "broadcast_channel"])
def test_a_timeout_bounds_a_call_that_takes_a_long_message_in_pieces(make, call):
    """Most of the time there is a piece to take; all of them take longer than the timeout."""
    ends = shmring.channel(1 << 10) if make == "channel" else getattr(shmring, make)(1, 1 << 10)
    sender, receiver = (end[0] if isinstance(end, (list, tuple)) else end for end in ends)
    thread = threading.Thread(target=sender.send, args=(LONG,))
    thread.start()
    time.sleep(0.01)  # until pieces are there
    with contextlib.suppress(queue.Empty):
        assert not call(receiver)
    assert receiver.recv() == LONG
    thread.join()
    for end in (sender, receiver):
        end.close()
