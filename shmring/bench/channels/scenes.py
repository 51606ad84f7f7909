"""The measurements (scenes). In each, all libraries are set up at once, and take turns in slices of some 10 ms.

A scene returns the results of each library's slices, or the reason why there are none.
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
    """The libraries that take part, the processors, and the length of the measurements.

    Parameters
    ----------
    names : list of str
    processors : tuple of int
    slices, slice_s
        How many turns each library has, and how long a turn is.
    """

    def __init__(
        self, names: list[str], processors: tuple[int, int], slices: int, slice_s: float, seed: int = 0
    ) -> None:
        self.names, self.processors, self.slices, self.slice_s = names, processors, slices, slice_s
        self.random = random.Random(seed)

    @contextmanager
    def pairs(self, longest_nbytes: int, kinds: dict[str, type[Peer]] | None = None) -> Iterator[dict[str, Pair]]:
        """A pair of processes for each library."""
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
        """A library that fails is left out of the rest of the scene; the others continue."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"

    def turns(self, pairs: dict[str, Pair], slice_of: Callable[[str, Pair], Any]) -> dict[str, list]:
        """The results of each library's slices, without the first one, which warms up and determines the count."""
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
        """The count of calls for the next slice, computed from the time of the last one."""
        counts: dict[str, int] = {}

        def next_count(name: str, seconds: float = 0.0, done: int = 0) -> int:
            if done:
                counts[name] = max(4, min(1_000_000, int(done * self.slice_s / max(seconds, 1e-6))))
            return counts.get(name, start)

        return next_count


def throughput(field: Field, nbytes: int) -> dict[str, dict]:
    """Messages a second, sent and received one by one: from the first call to the last message received."""
    message, next_count = os.urandom(nbytes), field.lengths()

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.start("take", count, nbytes)
        send, started = pair.peer.send, time.perf_counter()
        for _ in range(count):
            send(message)
        pair.result()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count / elapsed

    with field.pairs(nbytes) as pairs:
        return {name: {"per_s": _median(found)} for name, found in field.turns(pairs, one).items()}


def round_trip(field: Field, think_s: float = 0.0) -> dict[str, dict]:
    """Round trips of 64 bytes, each one timed; this process sleeps for ``think_s`` between two."""
    message, next_count = os.urandom(64), field.lengths()

    def one(name: str, pair: Pair) -> np.ndarray:
        count = next_count(name, 0.0, 0)
        pair.start("echo", count)
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
        pair.result()
        next_count(name, elapsed, count)
        return trips

    with field.pairs(64) as pairs:
        return {name: _percentiles(np.concatenate(found)) for name, found in field.turns(pairs, one).items()}


def batches(field: Field) -> dict[str, dict]:
    """Batches of 256 records of 32 bytes, made once: sent as arrays if the library can, else as one message a batch."""
    records, next_count = np.zeros(BATCH, RECORD), field.lengths()

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.start("records", count * BATCH)
        send, started = pair.peer.send_records, time.perf_counter()
        for _ in range(count):
            send(records)
        pair.result()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count * BATCH / elapsed

    with field.pairs(records.nbytes, {"shmring": ShmringRecords}) as pairs:
        return {name: {"per_s": _median(found)} for name, found in field.turns(pairs, one).items()}


def arrays(field: Field, nbytes: int) -> dict[str, dict]:
    """Arrays that the receiver owns afterwards: bytes a second."""
    array, next_count = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8), field.lengths(4)

    def one(name: str, pair: Pair) -> float:
        count = next_count(name, 0.0, 0)
        pair.start("take", count, nbytes)
        send, started = pair.peer.send, time.perf_counter()
        for _ in range(count):
            send(array)
        pair.result()
        elapsed = time.perf_counter() - started
        next_count(name, elapsed, count)
        return count * nbytes / elapsed

    with field.pairs(nbytes) as pairs:
        return {name: {"gb_per_s": _median(found) / 1e9} for name, found in field.turns(pairs, one).items()}


def idle(field: Field, seconds: float = 1.0) -> dict[str, dict]:
    """Processor time of a waiting receiver; those of all libraries wait at once."""
    with field.pairs(64) as pairs:
        for pair in pairs.values():
            pair.start("idle")
        time.sleep(seconds)
        found = {}
        for name, pair in pairs.items():
            with field.noting(name):
                pair.peer.send(bytes(64))
                used, waited = pair.result()
                found[name] = {"cpu_s_per_s": used / waited}
    return found


def death(field: Field) -> dict[str, dict]:
    """Time from SIGKILL of the sender to the error of its waiting receiver, if it comes within two seconds."""
    found: dict[str, dict] = {}
    with field.pairs(64) as pairs:
        for name, pair in pairs.items():
            with field.noting(name):
                pair.call("send")
                pair.peer.recv()
                found[name] = {"error_after_s": _time_to_error(pair)}
    return found


def _time_to_error(pair: Pair) -> float | None:
    # A third process sends the signal: a thread might have to wait for the GIL, which the receiver may hold.
    moment = mmap.mmap(-1, 8)
    helper = os.fork()
    if helper == 0:
        time.sleep(0.1)
        struct.pack_into("d", moment, 0, pair.kill())
        os._exit(0)
    try:
        is_detected, at = pair.peer.detects_death(0.1 + DEATH_S), time.perf_counter()
    finally:
        os.waitpid(helper, 0)
    return at - struct.unpack_from("d", moment)[0] if is_detected else None


def round_trip_ns(processors: tuple[int, int]) -> float:
    """Round trip of one word between the two processors: the lower bound of all times here."""
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
