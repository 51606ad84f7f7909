"""Fan-ins and broadcasts beside a channel, Python to Python: messages per second, and arrays to several receivers.

    python -m pytest bench/bench_channels.py
    python -m pytest bench/bench_channels.py --benchmark-disable     once each, to see that it runs

Two processes on two processors. bench_channel_peers.py has other libraries.
"""

import os

import numpy as np
import pytest
from sides import note

import shmring


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


@pytest.mark.parametrize("nbytes", [8, 64, 1 << 10, 16 << 10])
@pytest.mark.parametrize("kind", ["channel", "fan-in", "broadcast"])
def test_one_way(child, benchmark, kind, nbytes):
    """Single messages, received one by one."""
    burst = max(100, min(20_000, (16 << 20) // nbytes))
    theirs_out, back = shmring.channel()
    message = os.urandom(nbytes)
    if kind == "channel":
        sender, receiver = shmring.channel(4 << 20)
    elif kind == "fan-in":
        (sender,), receiver = shmring.fan_in(1, 4 << 20)
    else:
        sender, (receiver,) = shmring.broadcast_channel(1, 4 << 20)
    benchmark.group = f"one way, {nbytes} B"
    child(acknowledge, receiver, theirs_out, burst)

    def pour():
        for _ in range(burst):
            sender.send(message)
        back.recv()

    benchmark.pedantic(pour, rounds=20, warmup_rounds=2)
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
