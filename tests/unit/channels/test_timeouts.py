"""Timeouts of channels and queues: one rule for every call, and one deadline for the whole of each call."""

import contextlib
import queue
import time

import numpy as np
import pytest
from support.threads import beside

import shmring
from shmring import EndOfStreamError

CAPACITY = 1 << 10


def sender(is_ready, dtype=None):
    """The sender of a channel that has room, or none."""
    end, other = shmring.channel(CAPACITY, dtype=dtype)
    while not is_ready and end.try_send(b"x" if dtype is None else 1):
        pass
    return end, other


def receiver(is_ready, dtype=None):
    """The receiver of a channel that has a message, or none."""
    other, end = shmring.channel(dtype=dtype)
    if is_ready:
        other.send(b"x" if dtype is None else 1)
    return end, other


def sender_of_records(is_ready):
    return sender(is_ready, "i8")


def receiver_of_records(is_ready):
    return receiver(is_ready, "i8")


def fan_in(is_ready):
    (other,), end = shmring.fan_in(1)
    if is_ready:
        other.send(b"x")
    return end, other


def broadcast(is_ready):
    end, others = shmring.broadcast_channel(1, CAPACITY)
    while not is_ready and end.try_send(b"x"):
        pass
    return end, others


def putter(is_ready):
    end = shmring.Queue(1)
    if not is_ready:
        end.put(1)
    return end, None


def getter(is_ready):
    end = shmring.Queue(1)
    if is_ready:
        end.put(1)
    return end, None


# Calls by the end that they are made of.
CALLS = {
    sender: {
        "send": lambda end, t: end.send(b"x", t),
        "send, an array": lambda end, t: end.send(np.ones(3), t),
        "send_object": lambda end, t: end.send_object([], t),
        "send_many": lambda end, t: end.send_many([b"x"], t),
        "reserve": lambda end, t: end.reserve(8, None, t),
    },
    receiver: {
        "recv": lambda end, t: end.recv(t),
        "recv_many": lambda end, t: end.recv_many(None, t),
        "recv_into": lambda end, t: end.recv_into(bytearray(8), t),
        "peek": lambda end, t: end.peek(t),
        "poll": lambda end, t: end.poll(t),
    },
    sender_of_records: {
        "send": lambda end, t: end.send(1, t),
        "send_many": lambda end, t: end.send_many([1], t),
        "reserve": lambda end, t: end.reserve(1, t),
    },
    receiver_of_records: {
        "recv": lambda end, t: end.recv(t),
        "recv_many": lambda end, t: end.recv_many(None, t),
        "recv_into": lambda end, t: end.recv_into(np.zeros(1, "i8"), t),
        "peek": lambda end, t: end.peek(None, t),
        "poll": lambda end, t: end.poll(t),
    },
    fan_in: {
        "recv": lambda end, t: end.recv(t),
        "recv_from": lambda end, t: end.recv_from(t),
        "next_ready": lambda end, t: end.next_ready(t),
        "poll": lambda end, t: end.poll(t),
    },
    broadcast: {
        "send": lambda end, t: end.send(b"x", t),
        "send_many": lambda end, t: end.send_many([b"x"], t),
        "send_object": lambda end, t: end.send_object({}, t),
        "reserve": lambda end, t: end.reserve(1, timeout=t),
    },
    putter: {"put": lambda end, t: end.put(1, timeout=t) is None},
    getter: {"get": lambda end, t: end.get(timeout=t), "poll": lambda end, t: end.poll(t)},
}
TABLE = [pytest.param(make, call, id=f"{make.__name__}-{name}") for make in CALLS for name, call in CALLS[make].items()]
LONG_IN_A_FULL_RING = pytest.param(sender, lambda end, t: end.send(bytes(9999), t), id="sender-send, a long message")


@pytest.mark.sample(12)
@pytest.mark.parametrize(("make", "call"), TABLE)
def test_every_timeout_means_the_same_to_every_call(make, call):
    for timeout in (None, 0, 0.0, 1e-9, 5, float("inf"), 2**70, 1e300, 10**400, np.float32(1), True):
        end, _other = make(is_ready=True)
        assert call(end, timeout)
    for timeout in (-1, -1e-9, float("-inf"), float("nan"), -(10**400)):
        end, _other = make(is_ready=True)
        if make in (putter, getter) and timeout == timeout:  # as in multiprocessing: 0
            assert call(end, timeout)
            continue
        with pytest.raises(ValueError, match="timeout"):
            call(end, timeout)
        assert call(end, 0)  # nothing was sent, nor taken
    for timeout in ("1", 1j, []):
        end, _other = make(is_ready=True)
        with pytest.raises(TypeError, match="timeout"):
            call(end, timeout)


@pytest.mark.parametrize("timeout", [0, 1e-6, 0.02])
@pytest.mark.parametrize(("make", "call"), [*TABLE, LONG_IN_A_FULL_RING])
def test_a_call_waits_as_long_as_its_timeout(make, call, timeout):
    end, _other = make(is_ready=False)
    begin = time.monotonic()
    try:
        assert not call(end, timeout)  # poll, send_many
    except (queue.Full, queue.Empty):
        pass
    except ValueError:
        if timeout:  # else it is a long message, which is not streamed then
            raise
    assert time.monotonic() - begin >= timeout


@pytest.mark.parametrize("timeout", [None, float("inf"), 2**70, 1e300])
def test_a_queue_is_waited_for_without_a_limit(timeout):
    items = shmring.Queue(1)
    with beside(lambda: (time.sleep(0.01), items.put(1))):
        assert items.get(timeout=timeout) == 1


# Of so many bytes no copy takes so little time; and a ring that holds a sixteenth of them is filled so few times that
# ends which share a busy processor are soon done.
LONG, SHORT_S, RING_NBYTES = bytes(16 << 20), 1e-4, 1 << 20
INTO = bytearray(len(LONG))


def ready(end):
    """A receiver that has these calls, if need be."""
    return end.next_ready(SHORT_S) if isinstance(end, shmring.FanInReceiver) else end


RECEIVES = {
    "poll": lambda end: end.poll(SHORT_S),
    "recv": lambda end: end.recv(SHORT_S),
    "recv_many": lambda end: ready(end).recv_many(None, SHORT_S),
    "recv_into": lambda end: ready(end).recv_into(INTO, SHORT_S),
    "peek": lambda end: ready(end).peek(SHORT_S),
}


@pytest.mark.parametrize("call", RECEIVES.values(), ids=RECEIVES)
@pytest.mark.parametrize("make", ["channel", "fan_in", "broadcast_channel"])
def test_a_timeout_bounds_a_call_that_takes_a_long_message_in_pieces(make, call):
    """Most of the time there is a piece to take; all of them take longer than the timeout."""
    ends = shmring.channel(RING_NBYTES) if make == "channel" else getattr(shmring, make)(1, RING_NBYTES)
    one, other = (end[0] if isinstance(end, (list, tuple)) else end for end in ends)
    with beside(one.send, LONG):
        time.sleep(0.01)  # until pieces are there
        with contextlib.suppress(queue.Empty):
            assert not call(other)
        assert other.recv() == LONG
    for end in (one, other):
        end.close()


CALLS_OF_BOTH = {
    "poll": lambda end, t: end.poll(t),
    "recv": lambda end, t: end.recv(t),
    "recv_many": lambda end, t: getattr(end, "next_ready", lambda t: end)(t).recv_many(None, t),
}


@pytest.mark.parametrize("call", CALLS_OF_BOTH.values(), ids=CALLS_OF_BOTH)
@pytest.mark.parametrize("make", ["channel", "fan_in", "broadcast_channel"])
def test_a_long_message_of_a_sender_that_has_closed_is_not_lost_to_timeouts_that_are_too_short(make, call):
    """Each such call takes one of its pieces: there is more, and the end of the stream has not come."""
    ends = shmring.channel(RING_NBYTES) if make == "channel" else getattr(shmring, make)(1, RING_NBYTES)
    one, other = (end[0] if isinstance(end, (list, tuple)) else end for end in ends)
    content = np.random.default_rng(1).integers(0, 256, RING_NBYTES * 7 // 8, np.uint8).tobytes()
    other.take()
    one.send(content)
    one.close()
    for _ in range(2):
        with contextlib.suppress(queue.Empty):
            assert not call(other, 1e-9)
    assert other.recv() == content
    with pytest.raises(EndOfStreamError):
        other.recv()
