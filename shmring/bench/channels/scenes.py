"""What is timed. In every scene all peers are there at once, and take turns in slices of some ten milliseconds.

A scene gives, for each peer, what its slices gave; or the reason why it has nothing to show.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shmring.bench.channels.pair import Pair
from shmring.bench.channels.peers import PEERS, RECORD, Peer, ShmringRecords
from shmring.bench.hardware_probe import APART, round_trips

BATCH = 256
DEATH_S = 2.0


class Field:
    """The peers that take part, where, and for how long.

    Parameters
    ----------
    names : list of str
    processors : tuple of int
    slices, slice_s
        How many turns everybody has, and how long each.
    """

    def __init__(
        self, names: list[str], processors: tuple[int, int], slices: int, slice_s: float, seed: int = 0
    ) -> None:
        self.names, self.processors, self.slices, self.slice_s = names, processors, slices, slice_s
        self.random = random.Random(seed)

    @contextmanager
    def pairs(self, longest_nbytes: int, kinds: dict[str, type[Peer]] | None = None) -> Iterator[dict[str, Pair]]:
        """A pair of processes for each."""
        pairs: dict[str, Pair] = {}
        self.failures: dict[str, str] = {}
        try:
            for name in self.names:
                with self.noting(name):
                    pairs[name] = Pair((kinds or {}).get(name, PEERS[name]), longest_nbytes, self.processors)
            yield pairs
        finally:
            for pair in pairs.values():
                pair.end()

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """A peer that fails is out of the scene, and the others go on."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"

    def turns(self, pairs: dict[str, Pair], slice_of: Callable[[str, Pair], Any]) -> dict[str, list]:
        """What each slice of each gave; the first, which warms up and finds the length, is left out."""
        results: dict[str, list] = {name: [] for name in pairs}
        for turn in range(self.slices + 1):
            order = [name for name in pairs if name not in self.failures]
            self.random.shuffle(order)
            for name in order:
                with self.noting(name):
                    found = slice_of(name, pairs[name])
                    if turn:
                        results[name].append(found)
        return {name: found for name, found in results.items() if name not in self.failures}

    def lengths(self, start: int = 20) -> Callable[[str, float, int], int]:
        """How many calls make a slice, learned from the last one."""
        counts: dict[str, int] = {}

        def next_count(name: str, seconds: float = 0.0, done: int = 0) -> int:
            if done:
                counts[name] = max(4, min(1_000_000, int(done * self.slice_s / max(seconds, 1e-6))))
            return counts.get(name, start)

        return next_count


def throughput(field: Field, nbytes: int) -> dict[str, dict]:
    """Messages one after the other, received one after the other; from the first call to the last one received."""
    message, next_count = os.urandom(nbytes), field.lengths()

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.tell("take", count, nbytes)
        send, started = pair.peer.send, time.perf_counter()
        for _ in range(count):
            send(message)
        pair.hear()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count / elapsed

    with field.pairs(nbytes) as pairs:
        return {name: {"per_s": _median(found)} for name, found in field.turns(pairs, one).items()}


def round_trip(field: Field, think_s: float = 0.0) -> dict[str, dict]:
    """64 bytes there and back, each trip timed; with ``think_s`` this process sleeps so long between two."""
    message, next_count = os.urandom(64), field.lengths()

    def one(name: str, pair: Pair) -> np.ndarray:
        count = next_count(name, 0.0, 0)
        pair.tell("echo", count)
        send, recv, clock = pair.peer.send, pair.peer.recv, time.perf_counter_ns
        trips = np.empty(count, np.int64)
        began = time.perf_counter()
        for i in range(count):
            if think_s:
                time.sleep(think_s)
            started = clock()
            send(message)
            recv()
            trips[i] = clock() - started
        elapsed = time.perf_counter() - began
        pair.hear()
        next_count(name, elapsed, count)
        return trips

    with field.pairs(64) as pairs:
        return {name: _percentiles(np.concatenate(found)) for name, found in field.turns(pairs, one).items()}


def batches(field: Field) -> dict[str, dict]:
    """Batches of 256 records of 32 bytes, made once; as arrays where that goes, else as one message a batch."""
    records, next_count = np.zeros(BATCH, RECORD), field.lengths()

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.tell("records", count * BATCH)
        send, started = pair.peer.send_records, time.perf_counter()
        for _ in range(count):
            send(records)
        pair.hear()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count * BATCH / elapsed

    with field.pairs(records.nbytes, {"shmring": ShmringRecords}) as pairs:
        return {name: {"per_s": _median(found)} for name, found in field.turns(pairs, one).items()}


def arrays(field: Field, nbytes: int) -> dict[str, dict]:
    """Arrays that the receiver owns afterwards, bytes a second."""
    array, next_count = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8), field.lengths(4)

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.tell("take", count, nbytes)
        send, started = pair.peer.send, time.perf_counter()
        for _ in range(count):
            send(array)
        pair.hear()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count * nbytes / elapsed

    with field.pairs(nbytes) as pairs:
        return {name: {"gb_per_s": _median(found) / 1e9} for name, found in field.turns(pairs, one).items()}


def idle(field: Field, seconds: float = 1.0) -> dict[str, dict]:
    """Processor time of a receiver that waits, all of them at once."""
    with field.pairs(64) as pairs:
        for pair in pairs.values():
            pair.tell("idle")
        time.sleep(seconds)
        found = {}
        for name, pair in pairs.items():
            with field.noting(name):
                pair.peer.send(bytes(64))
                used, waited = pair.hear()
                found[name] = {"cpu_s_per_s": used / waited}
    return found


def death(field: Field) -> dict[str, dict]:
    """From SIGKILL of the sender to the error that its receiver, which waits, raises; within two seconds."""
    found: dict[str, dict] = {}
    with field.pairs(64) as pairs:
        for name, pair in pairs.items():
            with field.noting(name):
                pair.ask("speak")
                pair.peer.recv()
                found[name] = {"error_after_s": _time_to_error(pair)}
    return found


def _time_to_error(pair: Pair) -> float | None:
    # A process of its own kills: a thread might have to wait for the interpreter, which the receiver may hold.
    moment = mmap.mmap(-1, 8)
    helper = os.fork()
    if helper == 0:
        time.sleep(0.1)
        struct.pack_into("d", moment, 0, pair.kill())
        os._exit(0)
    try:
        is_heard, at = pair.peer.hears_of_death(0.1 + DEATH_S), time.perf_counter()
    finally:
        os.waitpid(helper, 0)
    return at - struct.unpack_from("d", moment)[0] if is_heard else None


def round_trip_ns(processors: tuple[int, int]) -> float:
    """One word there and back between the two processors: what everything here is to be read beside."""
    memory = mmap.mmap(-1, 4096)
    words = np.frombuffer(memory, np.uint64)
    assert len(words) >= 4 * APART
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {processors[1]})
            round_trips(words, 1, 2, 20_000)
        finally:
            os._exit(0)
    (ns,) = round_trips(words, 0, 2, 20_000)
    os.waitpid(child, 0)
    return ns


def _median(found: list[float]) -> float:
    return float(np.median(found))


def _percentiles(trips: np.ndarray) -> dict[str, float]:
    us = trips / 1e3
    p50, p99, p999 = np.percentile(us, [50, 99, 99.9])
    return {"p50_us": p50, "p99_us": p99, "p999_us": p999, "max_us": float(us.max()), "count": len(us)}
