"""Ends at which a test waits, each with the call that sends to it."""

import shmring


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
