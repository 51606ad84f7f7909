"""Python code that runs within a call of an end (generators, pickling, buffers) and uses, closes or interrupts it."""

import itertools
import os
import pickle
import signal
import sys
from typing import ClassVar

import numpy as np
import pytest
from support.children import status_of
from support.interrupts import interrupt_at_line

import shmring
from shmring import ClosedError, EndOfStreamError, ObjectError
from shmring.core.arrays import dtype_codec

LONG = bytes(5000)


def received(receiver):
    got = []
    while (message := receiver.try_recv()) is not None:
        got.append(message)
    return got


# ---- while messages are sent ----


def test_a_lease_opened_by_the_messages_of_send_many_is_not_announced():
    sender, receiver = shmring.channel(1 << 12)
    leases = []

    def messages():
        yield b"a"
        yield b"b"
        leases.append(sender.reserve(100))
        yield b"c"

    with pytest.raises(ValueError, match="lease"):
        sender.send_many(messages())
    assert received(receiver) == [b"a", b"b"]
    leases[0][...] = 7
    sender.commit()
    sender.send(b"d")
    assert received(receiver) == [bytes([7]) * 100, b"d"]
    assert sender.sent_count == receiver.received_count == 4


@pytest.mark.parametrize("message", [b"x", np.ones(3)])
def test_a_signal_ends_send_many_of_messages_without_end(message):
    sender, receiver = shmring.channel(1 << 12, when_full="drop_newest")

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            sender.send_many(itertools.repeat(message))
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert received(receiver)
    sender.send(b"after")
    assert received(receiver) == [b"after"]


@pytest.mark.parametrize("kind", ["unnamed", "named"])
def test_an_interrupt_at_any_line_of_the_first_use_leaves_the_end_usable(kind):
    for nth in itertools.count(2):
        if kind == "unnamed":
            sender, receiver = shmring.channel(1 << 12)
        else:
            name = f"interrupted-{os.getpid()}-{nth}"
            sender, receiver = (shmring.open_channel(name, role, 1 << 12) for role in ("sender", "receiver"))
        came = interrupt_at_line(lambda send=sender.send: send(b"first"), nth)
        sender.send(b"after")
        assert received(receiver)[-1] == b"after"
        sender.close()
        receiver.close()
        if not came:
            break


@pytest.mark.parametrize("make", [shmring.channel, shmring.Queue])
def test_an_interrupt_at_any_line_as_it_is_dropped_is_not_lost(make, monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    made = [make()]
    for nth in itertools.count(1):
        if not interrupt_at_line(made.clear, nth):
            break
        made.append(make())
    assert lost == []


@pytest.mark.parametrize("size", [1, 300, 5000])
def test_messages_sent_while_send_many_asks_for_more_go_in_order(size):
    sender, receiver = shmring.channel(1 << 15)

    def messages():
        for i in range(4):
            yield bytes([i]) * size
            sender.send(b"between")
            sender.reserve(8)[...] = i
            sender.commit() if i % 2 else sender.abort()
            sender.send_many([b"two", b"three"])

    assert sender.send_many(messages()) == 4
    expected = []
    for i in range(4):
        leased = [bytes([i]) * 8] if i % 2 else []
        expected += [bytes([i]) * size, b"between", *leased, b"two", b"three"]
    assert received(receiver) == expected
    assert sender.sent_count == receiver.received_count == len(expected)


def test_an_end_closed_by_the_messages_of_send_many_has_sent_those_before():
    sender, receiver = shmring.channel()

    def messages():
        yield b"a"
        yield b"b"
        sender.close()
        yield b"c"

    with pytest.raises(ClosedError):
        sender.send_many(messages())
    assert list(receiver) == [b"a", b"b"]
    assert receiver.received_count == 2


def test_a_child_forked_by_the_messages_of_send_many_announces_nothing():
    sender, receiver = shmring.channel()
    children = []

    def messages():
        yield b"a"
        children.append(os.fork())
        yield b"b"

    status = 1
    try:
        count = sender.send_many(messages())
    except ClosedError:
        status = 0
    finally:
        if children == [0]:
            os._exit(status)
    assert count == 2
    assert status_of(children[0]) == 0
    assert received(receiver) == [b"a", b"b"]
    assert sender.sent_count == 2


class Meddler:
    """Runs code when it is pickled, converted to an array, or exported."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        self.code()
        return int, ()

    def __array__(self, dtype=None, copy=None):
        self.code()
        return np.zeros(1, dtype or "i8")


def test_a_lease_opened_while_an_object_is_pickled_keeps_its_memory():
    sender, receiver = shmring.channel()
    with pytest.raises(ValueError, match="lease"):
        sender.send_object(Meddler(lambda: sender.reserve(8)))
    sender.abort()
    sender.send(b"next")
    assert received(receiver) == [b"next"]


def test_a_lease_opened_while_records_are_converted_keeps_its_memory():
    for call in ("send", "try_send", "send_many"):
        sender, receiver = shmring.channel(dtype="i8")
        with pytest.raises(ValueError, match="lease"):
            getattr(sender, call)(Meddler(lambda sender=sender: sender.reserve(1)))
        sender.abort()
        with pytest.raises(ClosedError):
            getattr(sender, call)(Meddler(sender.close))
        assert not receiver.poll(0) or receiver.ended


# ---- while a lease ends ----


class Count:
    """A count that runs a function when it is made an int."""

    def __init__(self, value, run):
        self.value, self.run = value, run

    def __index__(self):
        self.run()
        return self.value


def of_bytes():
    return shmring.channel(1 << 12)


def of_records():
    return shmring.channel(1 << 12, dtype="i8")


def to_several(**options):
    sender, receivers = shmring.broadcast_channel(1, 1 << 12, **options)
    return sender, receivers[0]


def to_several_records():
    return to_several(dtype="i8")


@pytest.mark.parametrize("make", [of_bytes, of_records, to_several, to_several_records])
def test_a_count_that_closes_its_sender_commits_nothing(make):
    sender, receiver = make()
    sender.take()
    receiver.take()
    sender.reserve(3)
    with pytest.raises(ClosedError):
        sender.commit(Count(1, sender.close))
    with pytest.raises(EndOfStreamError):
        receiver.recv()


@pytest.mark.parametrize("make", [of_bytes, of_records, to_several, to_several_records])
def test_a_count_that_reserves_anew_is_one_of_the_new_lease(make):
    sender, receiver = make()
    sender.reserve(3)[...] = 1

    def reserve_less():
        sender.abort()
        sender.reserve(2)[...] = 2

    with pytest.raises(ValueError, match="from 0 to 2"):
        sender.commit(Count(3, reserve_less))
    sender.commit()
    sender.reserve(3)[...] = 1
    sender.commit(Count(1, reserve_less))
    assert sum(np.sum(list(m) if isinstance(m, bytes) else m) for m in received(receiver)) == 3 * 2


def test_a_count_that_closes_its_receiver_releases_nothing():
    sender, receiver = of_records()
    sender.send_many(np.arange(5))
    receiver.peek(3)
    with pytest.raises(ClosedError):
        receiver.release(Count(1, receiver.close))
    assert len(sender) == 5


# ---- while messages are received ----


class Unpickled:
    """Unpickling raises the exception it was made with, as many times as its list in `failures` has items."""

    failures: ClassVar[list] = []

    def __reduce__(self):
        return Unpickled.make, ()

    @staticmethod
    def make():
        if Unpickled.failures:
            raise Unpickled.failures.pop(0)
        return "made"


@pytest.fixture
def failures():
    Unpickled.failures.clear()
    yield Unpickled.failures
    Unpickled.failures.clear()


# An object in one piece, and one that is streamed.
@pytest.mark.parametrize("content", [b"", LONG * 10])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_recv_many_loses_nothing(error, content, failures):
    sender, receiver = shmring.channel(1 << 17)
    sender.send_many([b"a", b"b"])
    sender.send_object((Unpickled(), content))
    sender.send(b"c")
    failures.append(error())
    with pytest.raises(error):
        receiver.recv_many()
    assert receiver.poll(0)
    assert receiver.recv() == b"a"
    assert receiver.recv_many(2) == [b"b", ("made", content)]
    assert receiver.recv_many() == [b"c"]
    assert receiver.received_count == 4


def test_an_interrupted_recv_loses_nothing(failures):
    sender, receiver = shmring.channel()
    sender.send_object(Unpickled())
    failures += [KeyboardInterrupt(), KeyboardInterrupt()]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            receiver.recv()
    with pytest.raises(TypeError, match="object"):
        receiver.recv_into(bytearray(8))
    assert receiver.recv() == "made"


def test_an_object_that_was_interrupted_is_leased(failures):
    sender, receiver = shmring.channel()
    sender.send_object("first")
    sender.send_object(Unpickled())
    failures += [KeyboardInterrupt(), KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        receiver.recv_many()
    with pytest.raises(TypeError, match="object"):
        receiver.peek()  # it is unpickled already
    assert receiver.recv() == "first"
    lease = receiver.peek()
    with pytest.raises(KeyboardInterrupt):
        _ = lease.object
    assert lease.object == "made"
    receiver.release()
    assert receiver.try_recv() is None


def test_a_lease_does_not_end_while_its_object_is_unpickled(monkeypatch):
    sender, receiver = shmring.channel()
    sender.send_object(Unpickled())
    lease = receiver.peek()

    def end():
        for call in (receiver.release, receiver.close):
            with pytest.raises(BufferError, match="alive"):
                call()
        with pytest.raises(ValueError, match="still open"):
            receiver.recv(0)
        return "ended nothing"

    monkeypatch.setattr(Unpickled, "make", staticmethod(end))
    assert lease.object == "ended nothing"
    receiver.release()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, pickle.UnpicklingError])
def test_what_came_before_a_message_that_cannot_be_made_is_returned_first(error, failures):
    sender, receiver = shmring.channel()
    sender.send(b"a")
    sender.send_object(Unpickled())
    sender.send(b"b")
    failures.append(error())
    assert receiver.recv_many() == [b"a"]
    with pytest.raises(ObjectError):
        receiver.recv_many()
    assert receiver.recv_many() == [b"b"]


@pytest.mark.parametrize("nbytes", [20, 100_000])
def test_an_array_whose_dtype_needs_a_missing_package_is_reported_once(nbytes, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    sender, receiver = shmring.channel(1 << 18)
    sender.send_many([b"a", np.zeros(nbytes, ml_dtypes.float8_e5m2), b"b"])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtype_codec.dtype_of.cache_clear()
    assert receiver.recv_many() == [b"a"]
    assert receiver.poll(0)
    with pytest.raises(TypeError, match="ml_dtypes"):
        receiver.recv_many()
    assert receiver.recv_many() == [b"b"]
    assert receiver.received_count == 3
