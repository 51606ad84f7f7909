"""Messages between two ranks, Python to Python: how long there and back, how many a second, how fast long ones go.

    python -m pytest bench/bench_pointtopoint.py
    python -m pytest bench/bench_pointtopoint.py --benchmark-disable     once each, to see that it runs

Two processes on two processors, or two on each of two. Times depend on whether these share a last-level cache, so read
them beside the first row, the round trip of 8 bytes, of the same run. What arrives is compared outside the clock.
"""

import numpy as np
import pytest
import turns
from sides import note, ranks

STOP = 1


@pytest.fixture
def comm():
    """Rank 0 of two, pinned. Rank 1 returns every message, or receives all and acknowledges, until a stop message."""
    with ranks(answer) as comm:
        yield comm
        comm.send(np.zeros(0, np.uint8), 1, STOP)


def answer(comm):
    """Rank 1: first the length of the messages, then how many come for each that goes back."""
    while True:
        settings = np.zeros(2, np.int64)
        if comm.probe(0).tag == STOP:
            comm.close()
            return
        comm.recv(settings, 0)
        x = np.zeros(settings[0], np.uint8)
        while comm.recv(x, 0).tag == 2:
            for _ in range(settings[1] - 1):
                comm.recv(x, 0)
            comm.send(x, 0)


def begin(comm, nbytes, burst):
    """Set rank 1 going; a message of that size that has been there and back."""
    comm.send(np.array([nbytes, burst]), 1)
    x = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    back = np.zeros_like(x)
    for _ in range(burst):
        comm.send(x, 1, 2)
    comm.recv(back, 1)
    assert (x == back).all()
    return x


def end(comm, x):
    """Make rank 1 ready for other settings."""
    comm.send(x, 1, 3)


@pytest.mark.parametrize("nbytes", [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20])
def test_round_trip(comm, benchmark, nbytes):
    """There and back; half of it is one way."""
    x = begin(comm, nbytes, 1)
    trips = max(1, min(1000, (8 << 20) // nbytes))
    benchmark.group = "round trip"

    def play():
        for _ in range(trips):
            comm.send(x, 1, 2)
            comm.recv(x, 1)

    benchmark.pedantic(play, rounds=30, warmup_rounds=3)
    note(benchmark, 2 * nbytes, trips)
    end(comm, x)


@pytest.mark.parametrize("nbytes", [8, 64, 1 << 10, 64 << 10, 1 << 20])
def test_one_way(comm, benchmark, nbytes):
    """Many messages one way, one back at the end."""
    burst = max(4, min(10_000, (64 << 20) // nbytes))
    x = begin(comm, nbytes, burst)
    benchmark.group = "one way"

    def pour():
        for _ in range(burst):
            comm.send(x, 1, 2)
        comm.recv(x, 1)

    benchmark.pedantic(pour, rounds=20, warmup_rounds=2)
    note(benchmark, nbytes, burst)
    end(comm, x)


@pytest.mark.parametrize("nbytes", [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20])
@pytest.mark.parametrize("is_across", [True, False], ids=["pair across two processors", "pair on one processor"])
def test_round_trip_of_two_pairs_on_two_processors(benchmark, monkeypatch, nbytes, is_across):
    """Two pairs of ranks, a rank of each on each processor, or each pair on a processor of its own."""
    monkeypatch.setattr(turns, "PROCESSORS", turns.PROCESSORS[:2])  # to which ranks are bound by turns
    distance = 1 if is_across else 2
    benchmark.group = "round trip, crowded"
    trips = max(10, min(1000, (8 << 20) // nbytes))

    def play(comm):
        peer = comm.rank ^ distance
        for _ in range(trips):
            if comm.rank < peer:
                comm.send(x, peer)
                comm.recv(x, peer)
            else:
                comm.recv(x, peer)
                comm.send(x, peer)

    def follow(comm):
        with comm:
            while comm.broadcast(go_on, 0)[0]:
                play(comm)

    def round_of_all(comm):
        comm.broadcast(go_on, 0)
        play(comm)

    x, go_on = np.arange(nbytes, dtype=np.uint8), np.ones(1, bool)
    kept = x.copy()
    with ranks(follow, size=4) as comm:
        benchmark.pedantic(round_of_all, (comm,), rounds=20, warmup_rounds=2)
        assert (x == kept).all()
        go_on[0] = False
        comm.broadcast(go_on, 0)
    note(benchmark, 2 * nbytes, trips)
