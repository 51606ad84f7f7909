"""Whatever is done in whatever order, at whatever count: each kind of channel is what some deques would be.

The counters of rings begin close to where 32 or 64 bits end, so that they wrap on the way. Both ends are in one
thread; `test_endpoints.py` has the machine of a plain channel.
"""

import queue
from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import shmring
from shmring import DisconnectedError, EndOfStreamError, PeerLostError
from shmring.core.ring.spsc import CONTROL_NBYTES, HEAD_NBYTES

SETTINGS = settings(max_examples=30, stateful_step_count=30)
SIZES = st.sampled_from([0, 1, 8, 30, 100, 200])
BEFORE_WRAP = st.sampled_from([0, 2**32, 2**64]).flatmap(lambda end: st.integers(max(0, end - 300), max(0, end - 1)))
TAIL, HEAD = 128, CONTROL_NBYTES - HEAD_NBYTES  # in a ring


def begin_at(channel, position, nheads=1):
    """Have a fresh ring count from there on."""
    with memoryview(channel.mapping)[channel.ring_offset :] as ring:
        for offset in (TAIL, *(HEAD + i * HEAD_NBYTES for i in range(nheads))):
            ring[offset : offset + 8] = position.to_bytes(8, "little")


class Machine(RuleBasedStateMachine):
    """Messages that are all different."""

    number = 0

    def fresh(self, nbytes=8):
        self.number += 1
        return (self.number.to_bytes(4, "little") * (nbytes // 4 + 1))[:nbytes]


def refuse_what_is_longer_than_the_ring(sender):
    """One that drops does not send it in pieces."""
    with pytest.raises(ValueError, match="in one piece"):
        sender.send(bytes(5000))


class DropNewest(Machine):
    """What does not fit is not there, and counted."""

    @initialize(start=BEFORE_WRAP)
    def make(self, start):
        self.sender, self.receiver = shmring.channel(512, when_full="drop_newest")
        begin_at(self.sender._channel, start)
        self.model, self.dropped = deque(), 0

    @rule(nbytes=SIZES)
    def send(self, nbytes):
        message = self.fresh(nbytes)
        if self.sender.send(message):
            self.model.append(message)
        else:
            assert self.model
            self.dropped += 1

    @rule()
    def send_too_long(self):
        refuse_what_is_longer_than_the_ring(self.sender)

    @rule(count=st.integers(1, 4))
    def receive(self, count):
        for _ in range(count):
            assert self.receiver.try_recv() == (self.model.popleft() if self.model else None)

    @invariant()
    def counts_agree(self):
        if hasattr(self, "model"):
            assert len(self.receiver) == len(self.model)
            assert self.sender.dropped_count == self.receiver.dropped_count == self.dropped


class Records(Machine):
    """Records go in as far as there is room."""

    @initialize(start=BEFORE_WRAP, when_full=st.sampled_from(["wait", "drop_newest"]))
    def make(self, start, when_full):
        self.sender, self.receiver = shmring.channel(128, dtype="i8", when_full=when_full)
        begin_at(self.sender._channel, start)
        self.model, self.capacity = deque(), self.sender.capacity

    @rule(count=st.integers(0, 40))
    def send(self, count):
        numbers = np.arange(self.number, self.number + count)
        self.number += count
        sent = self.sender.send_many(numbers, 0)
        assert sent == min(count, self.capacity - len(self.model))
        self.model.extend(numbers[:sent].tolist())

    @rule(count=st.integers(1, 20))
    def receive(self, count):
        try:
            got = self.receiver.recv_many(count, 0).tolist()
        except queue.Empty:
            got = []
        assert got == [self.model.popleft() for _ in range(min(count, len(self.model)))]

    @invariant()
    def counts_agree(self):
        if hasattr(self, "model"):
            assert len(self.receiver) == len(self.model)


class FanIn(Machine):
    """The receiver takes from the next sender in turn that has a message."""

    @initialize(start=BEFORE_WRAP)
    def make(self, start):
        self.senders, self.receiver = shmring.fan_in(3, 512)
        for sender in self.senders:
            begin_at(sender._channel, start)
        self.models, self.turn, self.closed = [deque() for _ in range(3)], 0, [False] * 3

    @rule(i=st.integers(0, 2), nbytes=SIZES)
    def send(self, i, nbytes):
        message = self.fresh(nbytes)
        if self.closed[i]:
            return
        if self.senders[i].try_send(message):
            self.models[i].append(message)
        else:
            assert self.models[i]

    @rule()
    def receive(self):
        order = [(self.turn + j) % 3 for j in range(3)]
        i = next((j for j in order if self.models[j]), None)
        if i is not None:
            assert self.receiver.recv_from(0) == (i, self.models[i].popleft())
            self.turn = (i + 1) % 3
        elif not all(self.closed):
            assert self.receiver.try_recv("nothing") == "nothing"

    @rule(i=st.integers(0, 2), chance=st.integers(0, 9))
    def close(self, i, chance):
        if chance == 0 and not self.closed[i]:
            self.senders[i].take().close()
            self.closed[i] = True

    @invariant()
    def counts_agree(self):
        if hasattr(self, "models"):
            assert len(self.receiver) == sum(map(len, self.models))
            assert self.receiver.poll() == (any(self.models) or all(self.closed))

    def teardown(self):
        if hasattr(self, "models") and all(self.closed):
            while any(self.models):
                self.receive()
            try:
                raise AssertionError(self.receiver.recv(0))
            except EndOfStreamError:
                pass


class Broadcast(Machine):
    """Each receiver gets all messages; a slow one blocks the sender, or is disconnected."""

    @initialize(start=BEFORE_WRAP, slow_timeout=st.sampled_from([None, 0]), lends=st.booleans())
    def make(self, start, slow_timeout, lends):
        self.sender, self.receivers = shmring.broadcast_channel(3, 512, slow_timeout=slow_timeout)
        begin_at(self.sender._channel, start, 3)
        self.models, self.waits, self.lends = [deque() for _ in range(3)], slow_timeout is None, lends
        self.is_on = [True] * 3

    @rule(nbytes=SIZES)
    def send(self, nbytes):
        message = self.fresh(nbytes)
        if not any(self.is_on):
            return
        try:
            reached = self.sender.send(message, 0)
        except queue.Full:
            assert self.waits
            assert any(self.models)
            return
        except PeerLostError:  # no receiver is left: all that remained were too slow for this message
            assert not self.waits
            self.is_on = [False] * 3
            return
        self.is_on = [look.state != "disconnected" for look in self.sender.receivers]
        assert reached == sum(self.is_on)
        assert not self.waits or reached == 3
        for model in self.models:
            model.append(message)

    @rule(i=st.integers(0, 2), count=st.integers(1, 4))
    def receive(self, i, count):
        for _ in range(count if self.is_on[i] else 0):
            if self.lends and self.models[i]:
                assert bytes(self.receivers[i].peek(0)) == self.models[i].popleft()
                self.receivers[i].release()
            else:
                assert self.receivers[i].try_recv() == (self.models[i].popleft() if self.models[i] else None)

    @rule(i=st.integers(0, 2))
    def receive_after_disconnection(self, i):
        if not self.is_on[i]:
            try:
                raise AssertionError(self.receivers[i].recv(0))
            except DisconnectedError:
                pass

    @invariant()
    def counts_agree(self):
        if hasattr(self, "models"):
            for i in range(3):
                assert not self.is_on[i] or len(self.receivers[i]) == len(self.models[i])


class Queues(Machine):
    """A queue with a bound, used by two objects of one process, as by two processes."""

    @initialize(start=BEFORE_WRAP, maxsize=st.sampled_from([0, 1, 3]))
    def make(self, start, maxsize):
        self.one = shmring.Queue(maxsize, capacity_nbytes=512)
        rebuild, parts = self.one.__reduce__()
        begin_at(parts[1], start)
        self.both, self.model, self.maxsize = [self.one, rebuild(*parts)], deque(), maxsize

    @rule(i=st.integers(0, 1), nbytes=SIZES)
    def put(self, i, nbytes):
        message = self.fresh(nbytes)
        try:
            self.both[i].put_nowait(message)
        except queue.Full:
            assert self.model
            assert not self.maxsize or len(self.model) <= self.maxsize
            return
        self.model.append(message)
        assert not self.maxsize or len(self.model) <= self.maxsize

    @rule(i=st.integers(0, 1))
    def put_too_long_in_vain(self, i):
        try:
            self.both[i].put(self.fresh(5000), timeout=0.0001)
            raise AssertionError("there was no room")
        except queue.Full:
            pass

    @rule(i=st.integers(0, 1))
    def get(self, i):
        if self.model:
            assert self.both[i].get_nowait() == self.model.popleft()
            return
        try:
            raise AssertionError(self.both[i].get_nowait())
        except queue.Empty:
            pass

    @invariant()
    def counts_agree(self):
        if hasattr(self, "model"):
            assert [q.qsize() for q in self.both] == [len(self.model)] * 2
            assert self.one.empty() == (not self.model)
            assert self.one.full() == bool(self.maxsize and len(self.model) >= self.maxsize)


for machine in (DropNewest, Records, FanIn, Broadcast, Queues):
    machine.TestCase.settings = SETTINGS

test_a_channel_that_drops_the_newest = DropNewest.TestCase
test_a_channel_of_records = Records.TestCase
test_a_fan_in = FanIn.TestCase
test_a_broadcast = Broadcast.TestCase
test_a_queue = Queues.TestCase
