"""The ring, from Python: cost of a call, round trips, messages and bytes per second.

    python -m pytest bench/bench_ring.py
    python -m pytest bench/bench_ring.py --benchmark-disable     once each, to see that it runs

Two processes, pinned to two processors, spin: this is the ring alone, no waiting. Times depend on whether the
two processors share a last-level cache, so read them beside the round trip of the same run. Each measurement is of
many messages; the first of them are compared outside the clock. tests/unit/ring/test_ring.py shows that none is wrong.
"""

import mmap

import numpy as np
import pytest

from shmring.ring import Consumer, Producer, format_ring, ring_nbytes


def make(nslots, slot_nbytes):
    memory = mmap.mmap(-1, ring_nbytes(nslots, slot_nbytes))
    format_ring(memory, nslots, slot_nbytes)
    return memory


def spin_until(call, argument, end):
    """Repeat a call until it succeeds; a lost partner ends it."""
    while not (done := call(argument)):
        assert end.peer != "lost"
    return done


# ---- One process: the calls themselves ----


@pytest.mark.benchmark(group="ring: one call pair, one process")
@pytest.mark.parametrize("kind", ["bytes and bytearray", "arrays"])
def test_push_and_pop(benchmark, kind):
    memory = make(1024, 64)
    with Producer(memory) as producer, Consumer(memory) as consumer:
        if kind == "arrays":
            message, out = np.arange(8.0), np.zeros(8)
        else:
            message, out = bytes(range(64)), bytearray(64)
        push, pop = producer.try_push, consumer.try_pop

        def pair():
            push(message)
            pop(out)

        benchmark.pedantic(pair, rounds=50, iterations=2000, warmup_rounds=2)
        assert bytes(out) == bytes(message)
    benchmark.extra_info["nbytes"] = 64


@pytest.mark.benchmark(group="ring: one call pair, one process")
def test_reserve_commit_peek_release(benchmark):
    memory = make(1024, 64)
    with Producer(memory) as producer, Consumer(memory) as consumer:

        def pair():
            producer.reserve()
            producer.commit()
            consumer.peek()
            consumer.release()

        benchmark.pedantic(pair, rounds=50, iterations=1000, warmup_rounds=2)


# ---- Two processes ----


def echo(there, back):
    with Consumer(there) as consumer, Producer(back) as producer:
        message = bytearray(consumer.slot_nbytes)
        while not consumer.ended:
            for _ in range(1000):
                if consumer.try_pop(message):
                    spin_until(producer.try_push, message, producer)


@pytest.mark.benchmark(group="round trip, 64 bytes, 1000 of them")
def test_round_trip(benchmark, child):
    there, back = make(8, 64), make(8, 64)
    child(echo, there, back)
    with Producer(there) as producer, Consumer(back) as consumer:
        out = bytearray(64)
        message = bytes(range(64))

        def trips():
            for _ in range(1000):
                producer.try_push(message)
                spin_until(consumer.try_pop, out, consumer)

        trips()
        assert out == message
        benchmark.pedantic(trips, rounds=50, warmup_rounds=2)


def swallow_singles(memory, expected):
    with Consumer(memory) as consumer:
        out = bytearray(consumer.slot_nbytes)
        spin_until(consumer.try_pop, out, consumer)
        assert out == expected
        while not consumer.ended:
            for _ in range(1000):
                consumer.try_pop(out)


def swallow_batches(memory, expected):
    with Consumer(memory) as consumer:
        out = np.empty(expected.nbytes, np.uint8)
        done = 0
        while done < out.nbytes:
            done += consumer.slot_nbytes * spin_until(consumer.try_pop_many, out[done:], consumer)
        assert bytes(out) == bytes(expected)
        while not consumer.ended:
            for _ in range(100):
                consumer.try_pop_many(out)


def drain(producer):
    while producer.free_count < producer.nslots:
        assert producer.peer != "lost"


@pytest.mark.benchmark(group="10 000 single messages of 64 bytes")
def test_singles(benchmark, child):
    memory = make(1024, 64)
    message = bytes(range(64))
    child(swallow_singles, memory, message)
    with Producer(memory) as producer:

        def send():
            for _ in range(10_000):
                spin_until(producer.try_push, message, producer)
            drain(producer)

        benchmark.pedantic(send, rounds=50, warmup_rounds=2)


@pytest.mark.benchmark(group="100 000 fixed records of 32 bytes in batches of 256")
def test_batches(benchmark, child):
    memory = make(4096, 32)
    records = np.arange(1024.0).reshape(256, 4)
    child(swallow_batches, memory, records)
    with Producer(memory) as producer:

        def send():
            left = 100_000
            while left > 0:
                left -= spin_until(producer.try_push_many, records, producer)
            drain(producer)

        benchmark.pedantic(send, rounds=100, warmup_rounds=1)


@pytest.mark.benchmark(group="10 arrays of 1 MiB, copied in and copied out")
@pytest.mark.parametrize("slot_nbytes", [64 << 10, 256 << 10, 1 << 20])
def test_large_arrays(benchmark, child, slot_nbytes):
    memory = make(max(2, (2 << 20) // slot_nbytes), slot_nbytes)
    array = np.arange(1 << 17, dtype=np.float64).view(np.uint8)
    child(swallow_batches, memory, array)
    with Producer(memory) as producer:

        def send():
            for _ in range(10):
                done = 0
                while done < array.nbytes:
                    done += slot_nbytes * spin_until(producer.try_push_many, array[done:], producer)
            drain(producer)

        benchmark.pedantic(send, rounds=100, warmup_rounds=2)
    benchmark.extra_info["nbytes"] = 10 << 20


@pytest.mark.benchmark(group="10 arrays of 1 MiB, copied in and copied out")
def test_large_arrays_copied_in_one_process(benchmark):
    """A bound: the same two copies on one processor."""
    array = np.arange(1 << 17, dtype=np.float64)
    slot, out = np.empty_like(array), np.empty_like(array)

    def copy():
        for _ in range(10):
            slot[:] = array
            out[:] = slot

    benchmark.pedantic(copy, rounds=100, warmup_rounds=2)
