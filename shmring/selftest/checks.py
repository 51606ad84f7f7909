"""The checks, in order; each returns a sentence of facts, or raises."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from shmring.channels.api import channel
from shmring.channels.fan_in import fan_in
from shmring.core.kernel.reduce import kernels
from shmring.core.memory.sweep import leftovers
from shmring.core.placement.topology_file import topology
from shmring.core.sync.turn import IS_FREE_THREADED
from shmring.errors import PeerLostError
from shmring.launch.numerical_threads import ONE_THREAD
from shmring.launch.spawn import spawn

from . import ranks
from .ranks import WAIT_S, WrongResultError

_CHANNEL_NBYTES = 1 << 20
_LONGEST_NBYTES = 3 << 20  # longer than the channel


class Outcome(NamedTuple):
    """The outcome of one check.

    Attributes
    ----------
    name : str
        The name of the check.
    passed : bool
    text : str
        Facts if it passed, else what went wrong.
    remedy : str
        What to do if it failed; may be empty.
    seconds : float
        How long it took.
    """

    name: str
    passed: bool
    text: str
    remedy: str
    seconds: float


class Check(NamedTuple):
    """One check: its name, its function of the number of ranks and the seed, and what to do if it fails."""

    name: str
    run: Callable[[int, int], str]
    remedy: str


def run_checks(size: int, seed: int) -> Iterator[Outcome]:
    """Run all checks, one after the other; no failure ends them. Their names in /dev/shm have a prefix of their own.

    Parameters
    ----------
    size : int
        Number of ranks.
    seed : int
        The seed of the numbers that are sent.

    Yields
    ------
    Outcome
        The outcome of each check, as soon as it is known.
    """
    prefix = f"selftest{secrets.token_hex(8)}"
    for check in CHECKS:
        start = time.monotonic()
        try:
            with _named_by(prefix):
                text, passed = check.run(size, seed), True
        except Exception as error:  # a check must not prevent the next one
            text, passed = f"{type(error).__name__}: {error}", False
        yield Outcome(check.name, passed, text, "" if passed else check.remedy, time.monotonic() - start)


@contextlib.contextmanager
def _named_by(prefix: str) -> Iterator[None]:
    """Names made here, and by processes started here, begin with it; what other jobs have left is not seen."""
    before = os.environ.get("SHMRING_FILE_PREFIX")
    os.environ["SHMRING_FILE_PREFIX"] = prefix
    try:
        yield
    finally:
        del os.environ["SHMRING_FILE_PREFIX"]
        if before is not None:
            os.environ["SHMRING_FILE_PREFIX"] = before


def _machine(size: int, seed: int) -> str:
    machine = topology()
    note = f"; {size} ranks share them" if size > machine.usable else ""
    return f"{len(machine.processors)} processors allowed, {machine.usable:g} usable at a time{note}"


def _shared_memory(size: int, seed: int) -> str:
    room = os.statvfs("/dev/shm")
    sender, receiver = channel(_CHANNEL_NBYTES)
    with sender, receiver:
        data = np.random.default_rng(seed).bytes(_CHANNEL_NBYTES // 4)
        for _ in range(3):
            sender.send(data, timeout=WAIT_S)
        for _ in range(3):
            if receiver.recv(timeout=WAIT_S) != data:
                raise WrongResultError("a message was received with other bytes than were sent")
    return f"/dev/shm has {room.f_blocks * room.f_frsize >> 20} MiB, {room.f_bavail * room.f_frsize >> 20} MiB free"


def _kernels(size: int, seed: int) -> str:
    runnable, count = kernels()["runnable"], 0
    environs = [ONE_THREAD | {"SHMRING_KERNEL": name} for name in runnable]
    found = [spawn(ranks.reductions, 2, args=(seed,), timeout=WAIT_S, env=environ)[0] for environ in environs]
    for name, results in zip(runnable, found, strict=True):
        for what, result in results.items():
            ranks.expect(result, found[0][what], f"{what} by {name}, compared with {runnable[0]},")
            count += 1
    return f"{', '.join(runnable)}: {count} reductions, the same bits from each"


def _ranks(size: int, seed: int) -> str:
    compared, us = spawn(ranks.everything, size, args=(seed,), timeout=WAIT_S, env=ONE_THREAD)[0]
    return f"{size} ranks: {compared} results compared with NumPy; all_reduce of 8 bytes takes {us:.1f} us"


def _crowd(size: int, seed: int) -> str:
    crowd = 2 * max(1, int(topology().usable)) + 1
    compared, us = spawn(ranks.everything, min(crowd, 9), args=(seed,), timeout=2 * WAIT_S, env=ONE_THREAD)[0]
    return f"{min(crowd, 9)} ranks: {compared} results compared; all_reduce of 8 bytes takes {us:.1f} us"


def _threads(size: int, seed: int) -> str:
    if not IS_FREE_THREADED or getattr(sys.flags, "gil", None):
        return "not here: this Python has the GIL"
    compared, us = spawn(ranks.everything, size, args=(seed,), timeout=WAIT_S, threads=True)[0]
    return f"{size} ranks: {compared} results compared; all_reduce of 8 bytes takes {us:.1f} us"


def _channels(size: int, seed: int) -> str:
    context = multiprocessing.get_context("spawn")
    to_echo, received_there = channel(_CHANNEL_NBYTES)
    sent_there, from_echo = channel(_CHANNEL_NBYTES)
    process = context.Process(target=ranks.echo, args=(received_there, sent_there), daemon=True)
    process.start()
    with from_echo:
        with to_echo:
            for nbytes in (0, 1, 1000, _LONGEST_NBYTES):
                data = np.random.default_rng(seed).bytes(nbytes)
                to_echo.send(data, timeout=WAIT_S)
                if from_echo.recv(timeout=WAIT_S) != data:
                    raise WrongResultError(f"a message of {nbytes} bytes came back with other bytes")
        process.join(WAIT_S)
    if process.exitcode != 0:
        raise WrongResultError(f"the other process ended with status {process.exitcode}")
    return f"messages up to {_LONGEST_NBYTES >> 20} MiB to another process and back"


def _death(size: int, seed: int) -> str:
    size = max(3, size)
    victim = size - 1
    reports, receiver = fan_in(size)
    try:
        spawn(ranks.lose_a_rank, size, args=(victim, reports), timeout=WAIT_S, env=ONE_THREAD)
    except PeerLostError as error:
        if error.rank != victim:
            raise
    else:
        raise WrongResultError(f"rank {victim} was killed, and no error came")
    with receiver:
        found = [receiver.recv(timeout=WAIT_S) for _ in range(size - 1)]
    if sorted((rank, lost) for rank, lost, _ in found) != [(rank, victim) for rank in range(size - 1)]:
        raise WrongResultError(f"rank {victim} was killed; (rank, the rank it lost, ms): {found}")
    slowest = max(ms for _, _, ms in found)
    return f"rank {victim} of {size} was killed: all others raised PeerLostError, the last after {slowest:.1f} ms"


def _nothing_left(size: int, seed: int) -> str:
    stale = [x.name for x in leftovers() if x.status == "stale"]
    if stale:
        raise WrongResultError(f"processes of these checks that have died left {', '.join(stale)} in /dev/shm")
    return "these checks left nothing in /dev/shm"


_DOCKER = "In a container, start it with a larger /dev/shm: `docker run --shm-size=1g`, or a memory volume at /dev/shm."

CHECKS = (
    Check("machine", _machine, "/proc and /sys must be readable."),
    Check("shared memory", _shared_memory, _DOCKER),
    Check("kernels", _kernels, "SHMRING_KERNEL=baseline uses the plain loops; please report this with `shmring info`."),
    Check("ranks", _ranks, f"{_DOCKER} If results differ, please report this with `shmring info`."),
    Check("more ranks than processors", _crowd, _DOCKER),
    Check("ranks as threads", _threads, "Import no module that enables the GIL; Python's warning names it."),
    Check("channels", _channels, _DOCKER),
    Check(
        "a killed rank", _death, "Processes must be able to read /proc, and robust futexes must be allowed (seccomp)."
    ),
    Check("nothing left", _nothing_left, "Remove these files of /dev/shm, and please report this with `shmring info`."),
)
