"""Channels in one process: what goes in comes out, once, in order; views end; what is wrong is refused."""

import os
import pickle
import queue
from collections import deque
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.harness import PATIENCE
from support.interrupts import interrupted_by_ctrl_c
from support.threads import beside

import shmring
from shmring import (
    ClosedError,
    EndOfStreamError,
    MessageTooLongError,
    ObjectError,
    PeerLostError,
    RoleTakenError,
    SegmentError,
)
from shmring.core.ring.spsc import CONTROL_NBYTES

RECORD = np.dtype([("number", "i8"), ("half", "f4")])


def same(got, sent):
    """Whether what was received is what was sent: type, dtype, shape, content."""
    if isinstance(sent, np.ndarray):
        return (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
    return type(got) is bytes and got == bytes(sent)


# ---- what goes in comes out ----

CONTENTS = [
    b"",
    b"x",
    b"hello, world",
    bytearray(b"abc"),
    memoryview(b"abcdef")[::2],
    np.arange(5.0),
    np.ones((2, 3), np.int8),
    np.array(7),
    np.zeros((0, 4)),
    np.zeros(0, np.int16),
    np.arange(10)[::2],
    np.arange(10)[::-1],
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.arange(3, dtype=">i4"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array([(1, 2.0)], RECORD),
    np.zeros(3, np.dtype([("a", "i1"), ("b", "f8", (2,))], align=True)),
    np.array(["abc", "d"]),
    np.array([b"ab"]),
    np.array(["2020-01-01"], "M8[D]"),
    np.longdouble([1, 2]),
    np.arange(4).astype(ml_dtypes.bfloat16),
    np.arange(4).astype(ml_dtypes.bfloat16).reshape(2, 2),
    np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    np.arange(4).astype(ml_dtypes.float8_e4m3fnuz),
    np.zeros((1,) * 32, np.uint8),
]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')}")
@pytest.mark.parametrize("capacity", [2048, 1 << 20])
def test_a_message_arrives_as_it_was_sent(content, capacity):
    sender, receiver = shmring.channel(capacity)
    for way in (sender.send, sender.try_send):
        assert way(content) is True
        assert same(receiver.recv(), content)
    assert (len(sender), len(receiver), receiver.poll()) == (0, 0, False)


def test_arrays_of_other_kinds_arrive_as_ndarrays():
    sender, receiver = shmring.channel()
    for content in (memoryview(np.arange(6.0).reshape(2, 3)), memoryview(np.arange(3))):
        sender.send(content)
        assert same(receiver.recv(), np.asarray(content))


def test_what_was_received_owns_its_memory_and_is_writable():
    sender, receiver = shmring.channel()
    sender.send(np.arange(4))
    got = receiver.recv()
    sender.send(np.zeros(4, np.int64))
    got += 1
    assert got.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("bad", ["text", [1, 2], None, 3, np.array([object()])])
def test_what_is_neither_bytes_nor_an_array_is_refused_and_nothing_is_sent(bad):
    sender, receiver = shmring.channel()
    with pytest.raises(TypeError):
        sender.send(bad)
    assert not receiver.poll()
    sender.send(b"fine")
    assert receiver.recv() == b"fine"


def test_objects_arrive_with_their_arrays():
    sender, receiver = shmring.channel(1 << 20)
    for obj in (None, {"a": [1, 2]}, ("x", np.arange(3)), [np.arange(10000), np.arange(20001, dtype=np.int8)[1:]]):
        sender.send_object(obj)
        got = receiver.recv()
        assert repr(got) == repr(obj)
    got[0][0] = 5  # writable


def test_objects_need_allow_pickle():
    sender, receiver = shmring.channel(allow_pickle=False)
    with pytest.raises(ValueError, match="allow_pickle"):
        sender.send_object(1)
    assert not receiver.poll()


class Sour:
    """Pickles, and cannot be made again."""

    def __reduce__(self):
        return int, ("sour",)


class Forbidden:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_a_receiver_that_does_not_allow_pickle_unpickles_nothing(first, monkeypatch):
    for is_setting in (False, True):
        ends = {}
        for role in ("sender", "receiver") if first == "sender" else ("receiver", "sender"):
            if is_setting:
                monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "1" if role == "sender" else "0")
            allowed = None if is_setting else role == "sender"
            ends[role] = shmring.open_channel(f"pickle-{os.getpid()}-{first}", role, allow_pickle=allowed)
        if first == "sender":
            ends["sender"].send_object(Forbidden())
            with pytest.raises(ObjectError, match="allow_pickle"):
                ends["receiver"].recv(0)
        else:
            with pytest.raises(ValueError, match="allow_pickle"):
                ends["sender"].send_object(Forbidden())
        ends["sender"].send(b"bytes")
        assert ends["receiver"].recv(0) == b"bytes"
        for end in ends.values():
            end.close()


@pytest.mark.leaks  # multiprocessing keeps a thread that hands over descriptors
def test_an_end_from_another_process_asks_the_setting_of_this_one(monkeypatch):
    (fan_sender,), fan_receiver = shmring.fan_in(1, allow_pickle=True)
    broadcaster, (member,) = shmring.broadcast_channel(1, allow_pickle=True)
    shared = shmring.Queue()
    ends = [pickle.dumps(end) for end in (fan_receiver, member, shared)]
    for sender in (fan_sender, broadcaster):
        sender.send_object(Forbidden())
    shared.put(Forbidden())
    monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "0")
    for end in map(pickle.loads, ends):
        with pytest.raises(ObjectError, match="allow_pickle"):
            end.get(timeout=0) if hasattr(end, "get") else end.recv(0)
        end.close()
    with pytest.raises(ValueError, match="allow_pickle"):
        shmring.Queue().put([])


def test_an_object_that_cannot_be_made_is_received_all_the_same():
    sender, receiver = shmring.channel()
    sender.send(b"1")
    sender.send_object(Sour())
    sender.send(b"2")
    assert receiver.recv_many() == [b"1"]
    with pytest.raises(ObjectError, match="sour"):
        receiver.recv()
    assert receiver.recv() == b"2"
    with pytest.raises(ObjectError, match="cannot pickle"):
        sender.send_object(lambda: 0)


# ---- the ring is full, or empty ----


def test_timeouts_are_those_of_the_standard_library():
    sender, receiver = shmring.channel(64)
    with pytest.raises(queue.Empty):
        receiver.recv(0)
    with pytest.raises(queue.Empty):
        receiver.recv(0.01)
    assert receiver.try_recv() is None
    assert receiver.try_recv(b"default") == b"default"
    while sender.try_send(b"12345678"):
        pass
    with pytest.raises(queue.Full):
        sender.send(b"12345678", 0)
    with pytest.raises(queue.Full):
        sender.send(b"12345678", 0.01)
    assert len(receiver) == 4
    assert receiver.recv_many() == [b"12345678"] * 4


def test_a_message_longer_than_the_ring_is_refused_where_it_may_not_wait():
    sender, receiver = shmring.channel(64)
    assert sender.longest_nbytes == 24
    for call in (lambda: sender.try_send(bytes(25)), lambda: sender.send(bytes(25), 0), lambda: sender.reserve(25)):
        with pytest.raises(ValueError, match="24"):
            call()
    assert sender.try_send(bytes(24))
    assert receiver.recv() == bytes(24)


@pytest.mark.parametrize("capacity", [64, 256, 1 << 12, 1 << 18])
def test_long_messages_stream_through(capacity):
    sender, receiver = shmring.channel(capacity)
    generator = np.random.default_rng(1)
    sent = [generator.integers(0, 256, n, np.uint8).tobytes() for n in (25, 1000, 3 * capacity, 3 * capacity + 1)]

    sent += [np.frombuffer(sent[-2], np.int64), np.frombuffer(sent[-2], np.uint8), b"end"]
    with beside(list, receiver) as reading, sender:
        for message in sent:
            sender.send(message)
    assert all(same(*pair) for pair in zip(reading.result, sent, strict=True))


def test_a_long_message_that_runs_out_of_time_on_its_way_in_is_never_seen():
    sender, receiver = shmring.channel(256)
    with pytest.raises(queue.Full):
        sender.send(bytes(1000), 0.01)
    with pytest.raises(queue.Empty):
        receiver.recv(0.01)
    sender.send(b"next")
    assert receiver.recv() == b"next"
    with pytest.raises(queue.Full):
        sender.send(bytes(1000), 0.01)
    sender.close()
    with pytest.raises((EndOfStreamError, queue.Empty)):
        receiver.recv(0)
    with pytest.raises(EndOfStreamError):
        receiver.recv()


def test_a_long_message_that_runs_out_of_time_on_its_way_out_is_taken_up_again():
    sender, receiver = shmring.channel(256)
    content = bytes(range(250)) * 4
    got = None
    with beside(sender.send, content):
        while got is None:
            got = receiver.try_recv()
    assert got == content


# ---- into memory of one's own, several, in place ----


def test_recv_into_fills_from_the_beginning():
    sender, receiver = shmring.channel()
    out = bytearray(b"-" * 8)
    sender.send(b"abc")
    assert receiver.recv_into(out) == 3
    assert out == b"abc-----"
    array = np.zeros((2, 2), np.float32)
    sender.send(np.arange(4, dtype=np.float32).reshape(2, 2))
    assert receiver.recv_into(array) == 16
    assert array.tolist() == [[0, 1], [2, 3]]


def test_long_messages_go_straight_into_memory_of_ones_own():
    sender, receiver = shmring.channel(1 << 12)
    content = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    with beside(lambda: [sender.send(x) for x in (content, content.tobytes(), content)]):
        with pytest.raises(MessageTooLongError, match="100000 bytes"):
            receiver.recv_into(bytearray(99_999))
        for out in (np.zeros(100_001, np.uint8), bytearray(100_001)):
            assert receiver.recv_into(out) == 100_000
            assert (np.frombuffer(out, np.uint8)[:100_000] == content).all()
            assert out[100_000] == 0
        assert (receiver.recv() == content).all()


def test_a_long_message_whose_receiver_ran_out_of_time_goes_on_in_other_memory():
    sender, receiver = shmring.channel(1 << 12)
    content = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    nbytes = None
    with beside(sender.send, content):
        while nbytes is None:
            out = bytearray(100_000)
            try:
                nbytes = receiver.recv_into(out, 0)
            except queue.Empty:
                out[:] = b""  # it may be resized: it has no exports any more
    assert (nbytes, out) == (100_000, content.tobytes())


def test_what_does_not_fit_or_is_an_object_stays_receivable():
    sender, receiver = shmring.channel(1 << 12)
    sender.send(b"123456789")
    with pytest.raises(MessageTooLongError, match="9 bytes") as caught:
        receiver.recv_into(bytearray(8))
    assert caught.value.nbytes == 9
    with pytest.raises((BufferError, TypeError)):
        receiver.recv_into(b"readonly-")
    assert receiver.recv() == b"123456789"
    sender.send_object(1)
    with pytest.raises(TypeError, match="object"):
        receiver.recv_into(bytearray(100))
    assert receiver.recv() == 1


def test_many_at_a_time():
    sender, receiver = shmring.channel(1 << 12)
    assert sender.send_many([b"a", np.arange(3), b"c"]) == 3
    first = receiver.recv_many(1)
    assert first == [b"a"]
    second, third = receiver.recv_many(5)
    assert (second.tolist(), third) == ([0, 1, 2], b"c")
    sent = sender.send_many((bytes(100) for _ in range(1000)), timeout=0)
    assert 30 < sent < 40
    assert receiver.recv_many() == [bytes(100)] * sent
    with pytest.raises(ValueError):
        receiver.recv_many(0)


def test_reserve_commit_peek_release():
    sender, receiver = shmring.channel(1 << 12)
    lease = sender.reserve((3, 2), np.float32)
    lease[...] = np.arange(6).reshape(3, 2)
    assert not receiver.poll()
    sender.commit()
    peeked = receiver.peek()
    assert (peeked.dtype, peeked.shape, peeked[1, 1]) == (np.float32, (3, 2), 3)
    with pytest.raises(ValueError, match="read-only"):
        peeked[0, 0] = 1
    receiver.release()
    sender.reserve(4)[:] = list(b"abcd")
    sender.commit(3)
    assert receiver.recv() == b"abc"
    lease = sender.reserve((3, 2), RECORD)
    lease["number"] = 9
    sender.commit(1)
    got = receiver.recv()
    assert (got.shape, got["number"].tolist()) == ((1, 2), [[9, 9]])
    sender.reserve(4)
    sender.abort()
    assert not receiver.poll()


def test_a_lease_cannot_end_while_arrays_of_it_live_and_shows_nothing_afterwards():
    sender, receiver = shmring.channel(1 << 12)
    for take in (lambda x: x.array, lambda x: x.array[1:], np.asarray, memoryview, lambda x: x[2:].reshape(2, -1)):
        lease = sender.reserve(8, np.int32)
        alive = take(lease)
        for end in (sender.commit, sender.abort, sender.close):
            with pytest.raises(BufferError, match="alive"):
                end()
        with pytest.raises(ValueError, match="still open"):
            sender.send(b"")
        del alive
        sender.commit()
        for use in (lambda x: x[0], lambda x: x.array, len, np.asarray, memoryview, lambda x: x.nbytes):
            with pytest.raises(ValueError, match="over"):
                use(lease)
        peeked = receiver.peek()
        alive = take(peeked)
        for end in (receiver.release, receiver.close):
            with pytest.raises(BufferError, match="alive"):
                end()
        del alive
        receiver.release()
        with pytest.raises(ValueError, match="over"):
            peeked[0]
    for call in (sender.commit, sender.abort, receiver.release):
        with pytest.raises(ValueError, match="nothing is"):
            call()


def test_a_with_block_ends_a_lease():
    sender, receiver = shmring.channel(1 << 12)
    with sender.reserve(3, np.int32) as lease:
        lease[...] = 7
    with pytest.raises(KeyError), sender.reserve(3, np.int32):
        raise KeyError  # aborted
    assert len(sender) == 1
    with receiver.peek() as lease:
        assert lease.array.tolist() == [7, 7, 7]
        assert not lease.over
    assert lease.over
    assert len(receiver) == 0
    with sender.reserve(3) as lease:
        sender.abort()  # before the end of the block
    assert len(sender) == 0


def test_a_with_block_does_not_end_a_lease_of_which_arrays_are_alive():
    sender, receiver = shmring.channel(1 << 12)
    sender.send(np.arange(3))
    with pytest.raises(BufferError, match="alive"), receiver.peek() as lease:
        alive = lease.array
    with pytest.raises(KeyError), lease:
        raise KeyError  # not hidden by a BufferError
    assert alive.tolist() == [0, 1, 2]
    del alive
    with lease:
        pass
    assert not receiver.poll()


def test_a_peeked_lease_computes_as_its_array_and_names_the_array_for_the_rest():
    sender, receiver = shmring.channel(1 << 12)
    x = np.arange(1, 5)
    sender.send(x)
    with receiver.peek() as lease:
        for of in (
            lambda a: a + 1, lambda a: 1 - a, lambda a: a * a, lambda a: a / 2, lambda a: 7 // a, lambda a: a % 3,
            lambda a: 2**a, lambda a: a @ x, lambda a: -a, lambda a: a == 2, lambda a: a < x[1], lambda a: a != a,
        ):  # fmt: skip
            assert np.array_equal(of(lease), of(x))
        with pytest.raises(AttributeError, match=r"use lease\.array\.mean"):
            lease.mean()
        with pytest.raises(AttributeError, match="has no attribute 'meen'"):
            lease.meen()
    with pytest.raises(ValueError, match="over"):
        _ = -lease
    lease = sender.reserve(3)
    with pytest.raises(TypeError, match=r"use lease\.array"):
        lease += 1  # would write nothing
    sender.abort()


@pytest.mark.parametrize("make", [shmring.channel, partial(shmring.channel, dtype="i4")])
def test_an_end_without_messages_is_true(make):
    assert all(map(bool, make(1 << 12)))


def test_peek_puts_a_long_message_together():
    sender, receiver = shmring.channel(256)
    content = np.arange(1000)
    with beside(sender.send, content):
        peeked = receiver.peek()
    assert (peeked.array == content).all()
    receiver.release()
    assert receiver.try_recv() is None


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_message_that_its_sender_gave_up_is_dropped_whatever_comes_next(is_begun):
    sender, receiver = shmring.channel(256)
    for follow in (lambda: sender.send(b"next"), sender.close):
        with pytest.raises(queue.Full):
            sender.send(bytes(1000), 0.001)
        if is_begun:
            assert receiver.try_recv() is None  # it has the pieces now
        with beside(follow):  # which may have to wait for room
            if follow != sender.close:
                assert receiver.recv(60 * PATIENCE) == b"next"
    with pytest.raises(EndOfStreamError):
        receiver.recv(60 * PATIENCE)
    assert receiver.ended


# ---- dropping ----


def test_a_dropping_channel_that_was_left_full_does_not_wait_when_it_is_opened_again():
    name, when_full = f"full-{os.getpid()}", "drop_newest"
    with shmring.open_channel(name, "receiver", 64, when_full=when_full) as receiver:
        with shmring.open_channel(name, "sender", 64, when_full=when_full) as sender:
            while not sender.dropped_count:
                sender.send(b"12345678")
        with shmring.open_channel(name, "sender", 64, when_full=when_full) as sender:
            for _ in range(9):
                sender.send(b"abcdefgh", timeout=1)  # a wait would be a queue.Full
            assert sender.dropped_count
        received = list(receiver)
    assert set(received) == {b"12345678"}


# ---- records ----


def test_records_move_as_arrays():
    sender, receiver = shmring.channel(1 << 10, dtype=RECORD)
    assert (sender.capacity, receiver.dtype) == (128, RECORD)
    batch = np.array([(i, i / 2) for i in range(100)], RECORD)
    assert sender.send_many(batch) == 100
    assert sender.send((100, 50))
    first = receiver.recv()
    assert (first["number"], first["half"]) == (0, 0)
    assert receiver.recv_many(3)["number"].tolist() == [1, 2, 3]
    out = np.zeros(50, RECORD)
    assert receiver.recv_into(out) == 50
    assert (out == batch[4:54]).all()
    rest = receiver.recv_many()
    assert (rest[:-1] == batch[54:]).all()
    assert rest[-1]["number"] == 100
    for bad in (np.zeros(3, np.int32), "text"):
        with pytest.raises((TypeError, ValueError)):
            sender.send_many(bad)
    with pytest.raises(TypeError):
        receiver.recv_into(np.zeros(3))
    with pytest.raises(queue.Empty):
        receiver.recv(0.001)
    assert receiver.try_recv("none") == "none"
    assert sender.try_send((1, 2)) is True
    assert receiver.try_recv()["number"] == 1


def test_the_room_for_records_is_the_capacity_up_to_a_power_of_two_of_them():
    for nbytes, nrecords in ((64, 1), (65, 2), (129, 4)):
        sender, receiver = shmring.channel(nbytes, dtype="V64")
        with sender, receiver:
            for _ in range(nrecords):
                sender.send(np.zeros((), "V64"), 0)
            with pytest.raises(queue.Full):
                sender.send(np.zeros((), "V64"), 0)


def test_records_stream_through_a_smaller_ring():
    sender, receiver = shmring.channel(64, dtype="i8")
    numbers = np.arange(5000)
    with beside(list, receiver) as reading, sender:
        assert sender.send_many(numbers) == 5000
    assert reading.result == numbers.tolist()


def test_records_in_place():
    sender, receiver = shmring.channel(64, dtype="i8")
    lease = sender.reserve(5)
    lease[:] = range(5)
    sender.commit(3)
    peeked = receiver.peek()
    assert np.asarray(peeked).tolist() == [0, 1, 2]
    receiver.release(1)
    assert receiver.recv_many().tolist() == [1, 2]
    sender.reserve(3)
    sender.abort()
    assert not receiver.poll()


def test_records_that_do_not_fit_are_dropped_if_so_desired():
    sender, receiver = shmring.channel(64, dtype="i8", when_full="drop_newest")
    assert sender.send_many(np.arange(20)) == 8
    assert (sender.dropped_count, receiver.recv_many().tolist()) == (12, list(range(8)))


# ---- a model: whatever is done, in whatever order, is what a deque would do ----


class ChannelMachine(RuleBasedStateMachine):
    """A channel between two ends of one thread, beside a deque."""

    @initialize(exponent=st.integers(6, 12), turns=st.integers(0, 40))
    def make(self, exponent, turns):
        self.sender, self.receiver = shmring.channel(1 << exponent)
        self.model, self.reserved, self.peeked, self.number = deque(), None, False, 0
        for _ in range(turns):  # so that it wraps at another place
            self.sender.send(b"turn")
            self.receiver.recv()

    def fresh(self, nbytes):
        self.number += 1
        return (self.number.to_bytes(4, "little") * (nbytes // 4 + 1))[:nbytes]

    @property
    def longest(self):
        return self.sender.longest_nbytes

    def note(self, content, was_sent):
        if was_sent:
            self.model.append(content)
        else:
            assert self.model  # what lies in the ring in one piece always fits into an empty one

    @precondition(lambda self: self.reserved is None)
    @rule(nbytes=st.integers(0, 2500), as_array=st.booleans())
    def try_send(self, nbytes, as_array):
        content = self.fresh(nbytes)
        message = np.frombuffer(content, np.uint8) if as_array else content
        if nbytes > self.longest:
            with pytest.raises(ValueError):
                self.sender.try_send(message)
        else:
            self.note(message, self.sender.try_send(message))

    @precondition(lambda self: self.reserved is None)
    @rule(sizes=st.lists(st.integers(0, 60), max_size=12))
    def send_many(self, sizes):
        messages = [self.fresh(min(size, self.longest)) for size in sizes]
        sent = self.sender.send_many(messages, 0)
        self.model.extend(messages[:sent])
        assert sent == len(messages) or self.model

    @precondition(lambda self: self.reserved is None)
    @rule(nbytes=st.integers(0, 2500))
    def send_long_in_vain(self, nbytes):
        content = self.fresh(2 * self.sender.capacity_nbytes + nbytes)
        with pytest.raises(queue.Full):
            self.sender.send(content, 0.0001)

    @precondition(lambda self: self.reserved is None)
    @rule(nbytes=st.integers(0, 2500))
    def reserve(self, nbytes):
        content = self.fresh(min(nbytes, self.longest))
        try:
            self.sender.reserve(len(content), timeout=0)[:] = np.frombuffer(content, np.uint8)
            self.reserved = content
        except queue.Full:
            assert self.model

    @precondition(lambda self: self.reserved is not None)
    @rule(part=st.floats(0, 1))
    def commit(self, part):
        count = int(part * len(self.reserved))
        self.sender.commit(count)
        self.model.append(self.reserved[:count])
        self.reserved = None

    @precondition(lambda self: self.reserved is not None)
    @rule()
    def abort(self):
        self.sender.abort()
        self.reserved = None

    @precondition(lambda self: not self.peeked)
    @rule()
    def try_recv(self):
        got = self.receiver.try_recv()
        if self.model:
            assert same(got, self.model.popleft())
        else:
            assert got is None

    @precondition(lambda self: not self.peeked)
    @rule(count=st.integers(1, 5))
    def recv_many(self, count):
        if self.model:
            got = self.receiver.recv_many(count, 0)
            assert len(got) == min(count, len(self.model))
            for message in got:
                assert same(message, self.model.popleft())
        else:
            with pytest.raises(queue.Empty):
                self.receiver.recv_many(count, 0)

    @precondition(lambda self: not self.peeked)
    @rule(room=st.integers(0, 2500))
    def recv_into(self, room):
        out = bytearray(room)
        if not self.model:
            with pytest.raises(queue.Empty):
                self.receiver.recv_into(out, 0)
        elif len(self.model[0]) > room:
            with pytest.raises(MessageTooLongError):
                self.receiver.recv_into(out, 0)
        else:
            expected = bytes(self.model.popleft())
            assert self.receiver.recv_into(out, 0) == len(expected)
            assert out[: len(expected)] == expected

    @precondition(lambda self: not self.peeked and self.model)
    @rule()
    def peek(self):
        assert bytes(self.receiver.peek(0)) == bytes(self.model[0])
        self.peeked = True

    @precondition(lambda self: self.peeked)
    @rule()
    def release(self):
        self.receiver.release()
        self.model.popleft()
        self.peeked = False

    @invariant()
    def count(self):
        if hasattr(self, "model"):
            assert len(self.receiver) == len(self.sender) == len(self.model)
            if not self.peeked:
                assert self.receiver.poll() == bool(self.model)

    def teardown(self):
        if hasattr(self, "model"):
            if self.peeked:
                self.receiver.release()
            if self.reserved is not None:
                self.sender.abort()
            self.sender.close()
            self.receiver.close()


ChannelMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_a_channel_is_a_deque = ChannelMachine.TestCase


# ---- ends ----


def test_a_closed_end_raises_closed_error():
    for dtype in (None, "i8"):
        sender, receiver = shmring.channel(dtype=dtype)
        with sender, receiver:
            assert (sender.peer, receiver.peer, sender.closed, sender.name) == ("here", "here", False, None)
        for end in (sender, receiver):
            end.close()
            assert end.closed
            for call in (end.take, lambda end=end: end.send(1) if hasattr(end, "send") else end.recv(0)):
                with pytest.raises(ClosedError, match="closed"):
                    call()


def test_an_end_that_is_just_forgotten_or_left_by_an_exception_is_lost():
    sender, receiver = shmring.channel()
    sender.send(b"last words")
    del sender
    assert receiver.recv() == b"last words"
    with pytest.raises(PeerLostError):
        receiver.recv()
    sender, receiver = shmring.channel()
    with pytest.raises(KeyError), sender:
        raise KeyError
    with pytest.raises(PeerLostError):
        receiver.recv()


@pytest.mark.leaks  # multiprocessing keeps a thread that hands over descriptors
def test_another_object_of_the_same_process_cannot_take_a_taken_end():
    sender, receiver = shmring.channel()
    again = pickle.loads(pickle.dumps(sender))
    sender.send(b"mine")
    with pytest.raises(RoleTakenError, match=str(os.getpid())) as caught:
        again.send(b"mine, too")
    assert caught.value.pid == os.getpid()
    assert receiver.recv() == b"mine"


def test_ctrl_c_ends_a_wait_and_leaves_the_channel_usable():
    sender, receiver = shmring.channel(256)
    for call in (receiver.recv, lambda: sender.send(bytes(10_000))):
        interrupted_by_ctrl_c(call, 0.05)
    assert receiver.try_recv() is None
    sender.send(b"fine")
    assert receiver.recv() == b"fine"


def test_an_invalid_counter_or_frame_word_is_refused():
    for offset, value in ((CONTROL_NBYTES, 0xFFFFFFFF), (CONTROL_NBYTES + 4, 77), (128, 1 << 40), (128, 3)):
        sender, receiver = shmring.channel(1 << 10)
        sender.send(b"12345678")
        receiver.take()
        memory = memoryview(receiver._channel.mapping)[receiver._channel.ring_offset :]
        memory[offset : offset + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")
        memory[128 + 4 : 128 + 8] = (value >> 32).to_bytes(4, "little") if offset == 128 else memory[132:136]
        with pytest.raises(SegmentError, match="invalid"):
            receiver.recv_many(1, 0) + receiver.recv_many(1, 0)  # the first was known at attaching
        del memory


@pytest.mark.parametrize("interval", [-1.0, float("nan"), float("inf"), 1e18])
def test_a_look_over_an_impossible_interval_is_refused(interval):
    with pytest.raises(ValueError, match=r"interval=.*: must be seconds from 0 to"):
        shmring.list_channels(interval)


def test_a_look_from_outside_shows_which_end_waits():
    sender, receiver = shmring.channel(1 << 10)

    def look_at_ours():
        (look,) = [x for x in shmring.list_channels() if x.name == sender._channel.memory.name]
        return look

    with beside(receiver.recv):
        sender.take()
        while not (look := look_at_ours()).waiting:  # it sleeps in ticks, and a look may fall between two of them
            pass
        assert f"receiver {os.getpid()} waits for sender {os.getpid()}" in look.waiting
        assert not look.is_named
        sender.send(b"12345678")
    sender.send_many([b"12345678"] * 10)
    look = look_at_ours()
    assert (look.ring.producer.messages, look.ring.consumer.messages) == (11, 1)
    assert 0.1 < look.ring.fill < 0.2
    assert look.waiting == ""
