"""Channels that try how to store: every message arrives as it was sent, and what was found fastest is used."""

import random

import pytest
from support.children import in_child, status_of

import shmring
from shmring.core.kernel.reduce import STORES
from shmring.core.ring.spsc import CONTROL_NBYTES, HEAD_NBYTES

CAPACITY_NBYTES, COUNT = 1 << 13, 3000


def messages(seed):
    """Messages in one frame, and streams; short ones, which no trial times."""
    generator = random.Random(seed)
    for number in range(COUNT):
        yield bytes([number % 251]) * generator.choice([1, 100, 600, 1000, 3000, 20_000])


def follow(receive, seed):
    for number, message in enumerate(messages(seed)):
        assert receive() == message, number


def of_channel():
    sender, receiver = shmring.channel(CAPACITY_NBYTES)
    return sender, sender.send, [receiver.recv]


def of_fan_in():
    (sender,), receiver = shmring.fan_in(1, CAPACITY_NBYTES)
    return sender, sender.send, [receiver.recv]


def of_broadcast():
    sender, receivers = shmring.broadcast_channel(2, CAPACITY_NBYTES)
    return sender, sender.send, [receiver.recv for receiver in receivers]


def of_queue():
    queue = shmring.Queue(capacity_nbytes=CAPACITY_NBYTES)
    return queue, queue.put, [queue.get]


@pytest.mark.parametrize("make", [of_channel, of_fan_in, of_broadcast, of_queue])
def test_messages_stay_exact_while_the_kind_of_stores_is_tried(make, seed):
    before = {look.name for look in shmring.list_channels()}
    end, send, receivers = make()
    pids = [in_child(follow, receive, seed) for receive in receivers]
    for message in messages(seed):
        send(message)
    assert [status_of(pid) for pid in pids] == [0] * len(pids)
    # Of a broadcast, the ring through which all is written.
    looks = [look for look in shmring.list_channels() if look.name not in before]
    ring = max((look.ring for look in looks), key=lambda ring: sum(ring.trial_us))
    assert sum(us > 0 for us in ring.trial_us) > 1
    assert len(ring.trial_us) == len(STORES)
    assert ring.stores in STORES
    end.close()


def test_whatever_a_peer_writes_into_what_was_learned_messages_stay_exact(seed):
    generator = random.Random(seed)
    sender, receiver = shmring.channel(CAPACITY_NBYTES)
    begin, end = receiver._channel.ring_offset + 384, receiver._channel.ring_offset + CONTROL_NBYTES - HEAD_NBYTES
    memory = memoryview(receiver._channel.mapping)
    for message in messages(seed):
        if len(message) < CAPACITY_NBYTES // 2:
            at = generator.randrange(begin, end, 8)
            memory[at : at + 8] = generator.choice([bytes(8), b"\xff" * 8, generator.randbytes(8)])
            sender.send(message)
            assert receiver.recv() == message
    memory.release()
