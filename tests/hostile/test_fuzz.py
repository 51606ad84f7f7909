"""Bytes that no peer wrote: headers, counters, slots and rings are overwritten at random; no access leaves a segment.

What is allowed: a right or a wrong result, an error of ours, a wait until its timeout. What is not: a crash, a wait
without end, an access outside of the segments (run these under ``tests/sanitizers/run.sh``, too).

``SHMRING_FUZZ_CASES=5000 pytest tests/hostile/test_fuzz.py`` runs so many cases of each kind; ``--seed`` repeats a run.
"""

import contextlib
import itertools
import os
import random
import signal
import time

import numpy as np
import pytest
from support.harness import PATIENCE, start_processes
from support.on_ranks import on_ranks
from support.segments import Squatter, page

import shmring
from shmring.collectives.engine.outbox import outbox_nbytes, sparse_nbytes
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.segment import segment_name, try_attach
from shmring.errors import MessageTimeoutError, OutOfSharedMemoryError, SegmentError, ShmringError
from shmring.ring import Consumer, Producer, format_ring, ring_nbytes

CASES = int(os.environ.get("SHMRING_FUZZ_CASES", "0"))

SETTINGS = {"slot_nbytes": 4096, "nslots": 4, "pair_queue_nbytes": 4096, "timeout": 0.15, "tick_ms": 5}

WORDS = [0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]


def strange_word(rng, old):
    return rng.choice(
        [rng.choice(WORDS), rng.getrandbits(64), (old + rng.randint(-9, 9)) % 2**64, old ^ 1 << rng.randrange(64)]
    )


# -- headers ----------------------------------------------------------------------------------------------------------


def test_a_random_header_is_refused_and_does_nothing_else(seed):
    rng = random.Random(seed)
    name = segment_name(f"fuzz-{seed}-{os.getpid()}", "r1")
    good = page()
    outcomes = {"attached": 0, "refused": 0, "not there": 0}

    def attempt(contents):
        with Squatter(name, contents):
            try:
                segment = try_attach(name, rank=1)
            except (SegmentError, OutOfSharedMemoryError):
                outcomes["refused"] += 1
                return
            outcomes["attached" if segment else "not there"] += 1
            if segment:
                assert HEADER_NBYTES <= segment.nbytes <= len(contents)
                memoryview(segment.mapping)[-1]
                segment.close()

    for at, value in itertools.product(range(136), (0x00, 0x01, 0x7F, 0x80, 0xFF)):
        attempt(good[:at] + bytes([value]) + good[at + 1 :])
    for nbytes in [*range(140), 4095, 4096, 4097, 8191, 8192]:
        attempt(good[:nbytes])
    for _ in range(CASES or 300):
        wrong = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            at = 8 * rng.randrange(17)
            old = int.from_bytes(wrong[at : at + 8], "little")
            wrong[at : at + 8] = strange_word(rng, old).to_bytes(8, "little")
        attempt(bytes(wrong))
    print(outcomes)
    assert min(outcomes.values()) > 0


# -- a communicator's memory ------------------------------------------------------------------------------------------


def areas(comm, owner):
    """The words of an outbox segment that are in use, by what they are: ranges of bytes."""
    size, config = comm.size, comm.config
    queues = outbox_nbytes(config, size) - sparse_nbytes(config, size)  # where they begin; the counters are before them
    other = queues + (1 - owner) * (256 * 64 + config.pair_queue_limit(size))
    return {
        "header": [(0, 136), (256, 264), (384, 424)],
        "counters": [(4096, 4160), (4224, 4232)],
        # Waiter words, and semaphores; a rank may sleep on them meanwhile, so of these only the count.
        "sleepers": [(4352, 4360), (4480, 4488), (4608, 4616), (4736, 4744)],
        "trouble": [(4864, 4872), (5096, 5120), (5120, 5176)],
        "eager messages": [(8192, 8192 + 16 * 64)],
        "queues": [(queues - 4096, queues - 4096 + 176), (other, other + 64 * 16)],
    }


def overwrite(comm, rng, area):
    """Overwrite some words of one rank's segment."""
    owner = rng.randrange(2)
    memory = np.frombuffer(comm._engine.segments[owner].mapping, np.uint64)
    for _ in range(rng.choice([1, 1, 2, 5])):
        start, end = rng.choice(areas(comm, owner)[area])
        at = rng.randrange(start // 8, end // 8)
        memory[at] = np.uint64(strange_word(rng, int(memory[at])))


class Attacker:
    """A child that keeps overwriting while its parent works."""

    def __init__(self, comm, rng, area):
        self.pid = os.fork()
        if self.pid == 0:
            for _ in range(30):
                overwrite(comm, rng, area)
                time.sleep(rng.random() * 1e-3)
            os._exit(0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def operate(comm, rng):
    """One call of either kind; what it returns does not matter."""
    count = rng.choice([1, 7, 600, 3000, 20_000])
    x = np.ones(count, np.float32)
    what = rng.randrange(7)
    if what == 0:
        comm.all_reduce(x)
    elif what == 1:
        comm.broadcast(x, root=rng.randrange(2))
    elif what == 2:
        comm.all_gather(x)
    elif what == 3:
        comm.barrier()
    elif what == 4:
        comm.all_to_all(np.ones((2, count)))
    elif what == 5:
        if comm.rank == 0:
            comm.send(x, 1, timeout=0.1)
        else:
            comm.recv(x, 0, timeout=0.1)
    else:
        repr(comm.sendrecv(x, 1 - comm.rank, np.empty_like(x), 1 - comm.rank))


def live_through(rank, session, seed, area, cases):
    kinds = {}
    for case in range(cases):
        rng = random.Random(f"{seed}-{area}-{case}")
        attacker = random.Random(f"{seed}-{area}-{case}-{rank}")
        limit = {"rendezvous_timeout": 60 * PATIENCE}
        comm = shmring.init(rank=rank, size=2, session=f"{session}-{case}", **SETTINGS, **limit)
        try:
            for peer in (0, 1):  # both pair queues get their memory
                if rank == peer:
                    comm.send(np.zeros(1), 1 - peer)
                else:
                    comm.recv(np.zeros(1), peer)
            comm.barrier()
            with Attacker(comm, attacker, area) if rank == 1 and case % 2 else contextlib.nullcontext():
                for step in range(8):
                    if rank == 0 and step == case % 8:
                        overwrite(comm, attacker, area)
                    operate(comm, rng)
            outcome = "nothing noticed"
        except (ShmringError, MemoryError, ValueError, TypeError) as error:
            outcome = type(error).__name__
        kinds[outcome] = kinds.get(outcome, 0) + 1
        comm.close()
    return kinds


@pytest.mark.sample(3)
@pytest.mark.parametrize("area", ["header", "counters", "sleepers", "trouble", "eager messages", "queues"])
def test_overwritten_memory_ends_in_errors_and_never_in_a_crash_or_a_hang(area, seed):
    cases = CASES or 25
    gang = start_processes(2, live_through, f"fuzz-{seed}-{area.replace(' ', '-')}", seed, area, cases)
    outcomes = gang.outcomes(timeout=60 + 5 * cases)
    for outcome in outcomes:
        print(area, outcome.result)
    assert all(outcome.ok for outcome in outcomes), "\n".join(map(str, outcomes))


@on_ranks(2, init={**SETTINGS, "spin_us": 0, "timeout": 60})
def test_a_rank_does_not_take_all_posts_of_an_overwritten_semaphore_before_it_sleeps(comm):
    if comm.rank == 0:
        memory = np.frombuffer(comm._engine.segments[0].mapping, np.uint32)
        semaphores = [start // 4 for start, _ in areas(comm, 0)["sleepers"][1::2]]
        memory[semaphores] = 2**31 - 1
        with pytest.raises(MessageTimeoutError):
            comm.recv(np.zeros(1), 1, timeout=0.01)
        assert (memory[semaphores] > 2**30).all()
        del memory
        comm.send(np.zeros(1), 1)
    else:
        comm.recv(np.zeros(1), 0)


# -- a ring -----------------------------------------------------------------------------------------------------------


def use_ring(producer, consumer, rng):
    """One call on either end; what it returns does not matter."""
    nbytes = rng.randint(1, 3) * producer.slot_nbytes
    what = rng.randrange(5)
    if what == 0:
        producer.try_push_many(bytes(nbytes))
    elif what == 1 and producer.reserve(2) is not None:
        producer.commit()
    elif what == 2:
        consumer.try_pop_many(bytearray(nbytes))
    elif what == 3 and consumer.peek(2) is not None:
        consumer.release()
    elif what == 4:
        repr((producer.peer, consumer.peer, consumer.ended))


def test_a_ring_with_random_words_leads_no_access_outside_of_it(seed):
    rng = random.Random(seed)
    refused = 0
    for _ in range(CASES or 300):
        nslots, slot_nbytes = rng.choice([1, 2, 8]), rng.choice([1, 8, 24])
        nbytes = ring_nbytes(nslots, slot_nbytes)
        guarded = np.full(nbytes + 8192, 0x55, np.uint8)
        start = -guarded.ctypes.data % 128 + 4096
        buffer = guarded[start : start + nbytes]
        format_ring(buffer, nslots, slot_nbytes)
        producer, consumer = Producer(buffer), Consumer(buffer)
        words = buffer[: 8 * (nbytes // 8)].view(np.uint64)
        try:
            for _ in range(30):
                if rng.random() < 0.3:
                    at = rng.choice([0, 1, 2, 16, 32, rng.randrange(len(words))])  # geometry, tail, head, anything
                    words[at] = strange_word(rng, int(words[at]))
                use_ring(producer, consumer, rng)
        except (ShmringError, ValueError):
            refused += 1
        producer.close()
        consumer.close()
        assert (guarded[:start] == 0x55).all()
        assert (guarded[start + nbytes :] == 0x55).all()
    assert refused > 10
