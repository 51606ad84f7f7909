"""Channels, fan-ins, broadcasts and queues, Python to Python: round trips, messages per second, bandwidth of arrays.

    python -m pytest bench/bench_channels.py
    python -m pytest bench/bench_channels.py --benchmark-disable     once each, to see that it runs

Two processes on two processors. Beside others: ``shmring bench --channels``.
"""

import os

import numpy as np
import pytest
from sides import note

import shmring

RECORD = np.dtype([("a", "f8"), ("b", "f8"), ("c", "i8"), ("d", "i8")])


def echo(receiver, sender):
    """Send every message back."""
    with receiver, sender:
        for message in receiver:
            sender.send(message)


def acknowledge(receiver, sender, burst):
    """Answer each burst."""
    with receiver, sender:
        try:
            while True:
                for _ in range(burst):
                    receiver.recv()
                sender.send(b"done")
        except shmring.EndOfStreamError:
            pass


@pytest.mark.parametrize("nbytes", [8, 64, 4 << 10, 1 << 20])
def test_round_trip(child, benchmark, nbytes):
    """A round trip; half of it is one way."""
    (out, theirs_in), (theirs_out, back) = shmring.channel(4 << 20), shmring.channel(4 << 20)
    child(echo, theirs_in, theirs_out)
    message, trips = os.urandom(nbytes), max(1, min(1000, (8 << 20) // nbytes))
    benchmark.group = "round trip"

    def play():
        for _ in range(trips):
            out.send(message)
            answer = back.recv()
        assert answer == message

    benchmark.pedantic(play, rounds=30, warmup_rounds=3)
    note(benchmark, 2 * nbytes, trips)
    out.close()


@pytest.mark.parametrize("nbytes", [8, 64, 1 << 10, 16 << 10])
@pytest.mark.parametrize("kind", ["channel", "queue", "fan-in", "broadcast"])
def test_one_way(child, benchmark, kind, nbytes):
    """Single messages, received one by one."""
    burst = max(100, min(20_000, (16 << 20) // nbytes))
    theirs_out, back = shmring.channel()
    message = os.urandom(nbytes)
    if kind == "channel":
        sender, receiver = shmring.channel(4 << 20)
    elif kind == "fan-in":
        (sender,), receiver = shmring.fan_in(1, 4 << 20)
    elif kind == "broadcast":
        sender, (receiver,) = shmring.broadcast_channel(1, 4 << 20)
    else:
        queue = shmring.Queue(capacity_nbytes=4 << 20)
        sender = receiver = None
    benchmark.group = f"one way, {nbytes} B"
    if sender is None:
        child(drain, queue, theirs_out, burst)
        send = queue.put
    else:
        child(acknowledge, receiver, theirs_out, burst)
        send = sender.send

    def pour():
        for _ in range(burst):
            send(message)
        back.recv()

    benchmark.pedantic(pour, rounds=20, warmup_rounds=2)
    note(benchmark, nbytes, burst)
    if sender is None:
        queue.put(None)
    else:
        sender.close()


def drain(queue, sender, burst):
    """Answer each burst until the end."""
    with sender:
        while True:
            for _ in range(burst):
                if queue.get() is None:
                    return
            sender.send(b"done")


def test_batches_of_records(child, benchmark):
    """256 records of 32 bytes at a time."""
    sender, receiver = shmring.channel(4 << 20, dtype=RECORD)
    theirs_out, back = shmring.channel()
    burst, records = 500, np.zeros(256, RECORD)
    child(take_records, receiver, theirs_out, burst * len(records))
    benchmark.group = "records"

    def pour():
        for _ in range(burst):
            sender.send_many(records)
        back.recv()

    benchmark.pedantic(pour, rounds=20, warmup_rounds=2)
    note(benchmark, RECORD.itemsize, burst * len(records))
    sender.close()


def take_records(receiver, sender, burst):
    """Answer each burst."""
    with receiver, sender:
        try:
            while True:
                missing = burst
                while missing:
                    missing -= len(receiver.recv_many(missing))
                sender.send(b"done")
        except shmring.EndOfStreamError:
            pass


@pytest.mark.parametrize("nbytes", [1 << 20, 16 << 20])
def test_arrays(child, benchmark, nbytes):
    """Arrays that the receiver then owns."""
    sender, receiver = shmring.channel(4 << 20)
    theirs_out, back = shmring.channel()
    burst = max(2, (64 << 20) // nbytes)
    array = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    child(acknowledge, receiver, theirs_out, burst)
    benchmark.group = "arrays"

    def pour():
        for _ in range(burst):
            sender.send(array)
        back.recv()

    benchmark.pedantic(pour, rounds=10, warmup_rounds=2)
    note(benchmark, nbytes, burst)
    sender.close()


@pytest.mark.parametrize("nreceivers", [1, 2, 4])
@pytest.mark.parametrize("way", ["one ring, many cursors", "a ring each"])
def test_broadcast_of_arrays(benchmark, way, nreceivers):
    """1 MiB to several receivers in this process: the total cost, since there are more receivers than processors."""
    array, out = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    if way == "a ring each":
        channels = [shmring.channel(4 << 20) for _ in range(nreceivers)]
        senders, receivers = [one[0] for one in channels], [one[1] for one in channels]
    else:
        sender, receivers = shmring.broadcast_channel(nreceivers, 4 << 20)
        senders = [sender]
    benchmark.group = f"broadcast of 1 MiB to {nreceivers}"

    def once():
        for sender in senders:
            sender.send(array, 0)
        for receiver in receivers:
            receiver.recv_into(out)

    benchmark.pedantic(once, rounds=200, warmup_rounds=10)
    note(benchmark, array.nbytes, 1)
