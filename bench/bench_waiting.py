"""Ends of channels that wait: their processor time, the time to wake, and a ping-pong, beside a pipe.

    python -m pytest bench/bench_waiting.py -s
    python -m pytest bench/bench_waiting.py --benchmark-disable      once each, to see that it runs

Two processes on two processors. What is sent is the time of sending, so a figure is from the call of the sender to the
return of the receiver's.
"""

import os
import struct
import time
from multiprocessing import Pipe, connection
from queue import Empty

import numpy as np
import pytest

import shmring

ENDS = ["channel", "fan-in", "broadcast", "queue", "pipe"]
OF_SEVERAL = ["wait for 4 channels", "wait for 4 queues", "wait for 4 pipes"]
MOMENT = struct.Struct("q")


def ends_of(kind):
    """A call that sends bytes, one that receives them, and what keeps their memory."""
    if kind == "pipe":
        receiver, sender = Pipe(duplex=False)
        return sender.send_bytes, receiver.recv_bytes, (sender, receiver)
    if kind == "queue":
        queue = shmring.Queue()
        return queue.put, queue.get, queue
    if kind == "channel":
        sender, receiver = shmring.channel()
    elif kind == "fan-in":
        (sender,), receiver = shmring.fan_in(1)
    else:
        sender, (receiver,) = shmring.broadcast_channel(1)
    return sender.send, receiver.recv, (sender, receiver)


def ends_of_several(kind):
    """The same for the last of four ends, which are waited for together."""
    if kind == "wait for 4 pipes":
        *_, (_last, sender) = pipes = [Pipe(duplex=False) for _ in range(4)]
        receivers, call = [receiver for receiver, _ in pipes], lambda: connection.wait(receivers)[0].recv_bytes()
        return sender.send_bytes, call, pipes
    if kind == "wait for 4 queues":
        queues = [shmring.Queue() for _ in range(4)]
        return queues[-1].put, lambda: shmring.wait(queues)[0].get(), queues
    *_, (sender, _last) = channels = [shmring.channel() for _ in range(4)]
    receivers = [receiver for _, receiver in channels]
    return sender.send, lambda: shmring.wait(receivers)[0].recv(), channels


def feed(send, pause_s, count, end):
    """Send the time, so many times with a pause before each."""
    for _ in range(count):
        time.sleep(pause_s)
        send(MOMENT.pack(time.monotonic_ns()))
    send(end)
    time.sleep(0.1)


@pytest.mark.parametrize("kind", [*ENDS, *OF_SEVERAL])
@pytest.mark.parametrize("pause_ms", [1, 10, 50])
def test_receiver_fed_slowly(child, benchmark, kind, pause_ms):
    """Processor time of a receiver that gets a message now and then, and how long each takes to arrive."""
    send, receive, _memory = (ends_of_several if kind in OF_SEVERAL else ends_of)(kind)
    count = max(20, (20 if benchmark.disabled else 2000) // pause_ms)
    child(feed, send, pause_ms / 1000, count, b"end")
    delays = []

    def listen():
        delays.clear()
        while (message := receive()) != b"end":
            delays.append(time.monotonic_ns() - MOMENT.unpack(message)[0])

    started, used = time.perf_counter(), time.process_time()
    benchmark.pedantic(listen, rounds=1)
    share = (time.process_time() - used) / (time.perf_counter() - started)
    p50, p99 = np.percentile(delays, [50, 99]) / 1000
    benchmark.group = f"fed every {pause_ms} ms"
    benchmark.extra_info.update(processor_share=share, p50_us=p50, p99_us=p99)
    print(f"\n{kind:>19}, every {pause_ms} ms: {100 * share:.2f} % of a processor, wake-up {p50:.0f} us, p99 {p99:.0f}")


@pytest.mark.parametrize("kind", [kind for kind in ENDS if kind != "pipe"])
def test_idle_receiver(benchmark, kind):
    """Processor time of a receiver to which nothing is sent."""
    _send, receive, _memory = ends_of(kind)
    seconds = 0.1 if benchmark.disabled else 2.0

    def listen():
        with pytest.raises(Empty):
            receive(timeout=seconds)

    used = time.process_time()
    benchmark.pedantic(listen, rounds=1)
    share = (time.process_time() - used) / seconds
    benchmark.extra_info.update(processor_share=share)
    print(f"\n{kind:>10}, idle: {100 * share:.3f} % of a processor")


def echo(receive, send, count):
    """Send back so many messages."""
    for _ in range(count):
        send(receive())


@pytest.mark.parametrize("kind", ENDS)
def test_ping_pong(child, benchmark, kind):
    """The round trip of 8 bytes."""
    send, theirs_in, _first = ends_of(kind)
    theirs_out, receive, _second = ends_of(kind)
    times, rounds = (200 if kind == "pipe" else 5000), 20
    if benchmark.disabled:
        times, rounds = 10, 1
    child(echo, theirs_in, theirs_out, times * rounds)
    message = os.urandom(8)

    def play():
        for _ in range(times):
            send(message)
            receive()

    benchmark.group = "ping-pong, 8 B"
    benchmark.pedantic(play, rounds=rounds)
    if benchmark.stats:
        print(f"\n{kind:>10}, ping-pong: {1e6 * benchmark.stats.stats.median / times:.2f} us")
