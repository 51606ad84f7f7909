"""Ends at which a test waits, each with the call that sends to it."""

import shmring
from shmring.core.ring.inspect import look


def ring_of(end):
    """A look at the ring of an end of a channel or broadcast."""
    channel = end._channel
    with memoryview(channel.mapping)[channel.ring_offset :] as memory:
        return look(memory, channel.number)


def fan_in():
    (sender,), receiver = shmring.fan_in(1)
    return sender.send, receiver


def broadcast():
    sender, (receiver,) = shmring.broadcast_channel(1)
    return sender.send, receiver


def channel():
    sender, receiver = shmring.channel()
    return sender.send, receiver


def shared_queue():
    one = shmring.Queue()
    return one.put, one
