"""vLLM's `MessageQueue`, from its engine to the workers and back, on a broadcast channel.

A queue whose readers are all on this machine becomes a `ShmringQueue`; vLLM's own class makes the others. `install` is
called by vLLM in each of its processes (``docs/inference.md``).
"""

from __future__ import annotations

import inspect
import queue
import secrets
import time
from typing import Any

from vllm import __version__ as vllm_version
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import Handle, MessageQueue
from vllm.logger import init_logger

from shmring.channels.broadcast import BroadcastMemory, create_broadcast
from shmring.channels.receiver import Receiver
from shmring.channels.sender import Sender
from shmring.config import configure
from shmring.core.base.pace import Pace
from shmring.core.memory.segment import CHANNEL, Segment, attach, segment_name
from shmring.errors import PeerLostError, RendezvousError, RendezvousTimeoutError

# An item of so many bytes is put without waiting for readers; a longer one streams through the ring.
CAPACITY_NBYTES = 16 << 20

# The longest spin of a reader: steps follow each other in less. Where they take longer, it learns to sleep at once.
SPIN_NS = 1_000_000

# How long processes wait for each other until all have come: as `shmring.init` does.
READY_S = 300.0

_READY, _GIVEN_UP = 1, 2  # what the writer publishes in the word `attached`

_MARK = "channel-vllm"  # in the names of segments, by which `_create_from_handle` knows the handles of this module
_TICK_S = 0.1  # a waiting reader looks so often whether `shutdown` was called by another thread

# What vLLM's class must look like for this module to replace it: the parameters of each method that it calls.
_KNOWN = {
    "__init__": ("self", "n_reader", "n_local_reader", "local_reader_ranks"),
    "create_from_handle": ("handle", "rank"),
    "wait_until_ready": ("self",),
    "shutdown": ("self",),
    "enqueue": ("self", "obj", "timeout"),
    "dequeue": ("self", "timeout", "indefinite"),
}

logger = init_logger(f"vllm.{__name__}")
_own_create_from_handle = MessageQueue.create_from_handle


class ShmringQueue(MessageQueue):
    """A queue from one process to others of this machine, each of which gets every item.

    Items may have any size. A writer or a reader that has died is a `shmring.PeerLostError` that names it.
    """

    _sender: Any = None
    _receiver: Any = None

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: list[int] | None = None,
        *_sizes: Any,
        **_settings: Any,
    ) -> None:
        ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        if len(ranks) != n_local_reader:
            raise ValueError(f"local_reader_ranks={ranks}: must be {n_local_reader} ranks")
        name = segment_name(f"{_MARK}/{secrets.token_hex(8)}", _MARK)
        members = create_broadcast(n_local_reader, CAPACITY_NBYTES, None, True, name)
        self._become(Handle(local_reader_ranks=ranks, buffer_handle=(n_local_reader, CAPACITY_NBYTES, 1, name)))
        self.n_local_reader, self.n_remote_reader = n_local_reader, 0
        self._memory: Segment = members[0].memory
        self._sender = Sender(members[0], "sender").take()
        self._is_writer = True

    def _become(self, handle: Handle) -> None:
        """Set the attributes of vLLM's class."""
        self.handle = handle
        self.shutting_down = self._is_writer = self._is_local_reader = self._is_remote_reader = False
        self.local_reader_rank = self.current_idx = -1
        self.buffer = self.local_socket = self.remote_socket = self.tensor_arena = None
        self._spin_condition = None

    @classmethod
    def of_reader(cls, handle: Handle, rank: int) -> ShmringQueue:
        """The end of a reader of the queue with this handle."""
        self = cls.__new__(cls)
        self._become(handle)
        self.local_reader_rank = handle.local_reader_ranks.index(rank)
        self._memory = attach(handle.buffer_handle[3], kind=CHANNEL)
        ring = BroadcastMemory(self._memory, self.local_reader_rank, True)
        if ring.spin_ns and configure().spin_us < 0:  # neither set, nor alone with the writer on one processor
            ring.spin_ns = SPIN_NS
        # An item wakes the reader; only the death of the writer is found when a sleep ends. `dequeue` looks as often.
        ring.tick_ns = max(ring.tick_ns, int(_TICK_S * 1e9))
        self._receiver = Receiver(ring, "receiver").take()
        self._is_local_reader = True
        return self

    def wait_until_ready(self) -> None:
        """Wait until all readers have attached. The writer and all readers call.

        `RendezvousTimeoutError` if some do not come within `READY_S`; `RendezvousError` at readers whose writer has
        given up.
        """
        pace, deadline = Pace(), time.monotonic() + READY_S
        if not self._is_writer:
            self._await_writer(pace, deadline)
            return
        try:
            while absent := self._absent():
                self._check_clock(deadline, f"readers {', '.join(map(str, absent))}", tuple(absent))
                pace.pause()
            self._require_readers(self._sender.receivers)
        except BaseException:  # the readers that have come must not wait for this process
            self._memory.attached = _GIVEN_UP
            self._memory.unlink()
            raise
        self._memory.attached = _READY
        self._memory.unlink()

    def _absent(self) -> list[int]:
        """The readers that have not come yet."""
        readers = zip(self.handle.local_reader_ranks, self._sender.receivers, strict=True)
        return [rank for rank, reader in readers if reader.state == "absent"]

    def _await_writer(self, pace: Pace, deadline: float) -> None:
        writer = f"the writer of this queue, process {self._memory.header.pid},"
        while self._memory.attached != _READY:
            if self._memory.attached == _GIVEN_UP:
                raise RendezvousError(f"{writer} has given up before all readers had come")
            if not self._memory.is_live() and not self._memory.attached:
                raise PeerLostError(f"{writer} died before all readers had come", -1, self._memory.header.pid)
            self._check_clock(deadline, "other readers, or the writer,")
            pace.pause()

    def _check_clock(self, deadline: float, late: str, ranks: tuple[int, ...] = ()) -> None:
        if time.monotonic() > deadline:
            raise RendezvousTimeoutError(f"{late} of this queue have not come within {READY_S:g} s", ranks)

    def shutdown(self) -> None:
        """Make a reader that waits, now or later, raise ``RuntimeError("cancelled")``. Any thread may call."""
        self.shutting_down = True

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Send an object to all readers. `TimeoutError` if there is no room within ``timeout`` seconds (None: no
        limit)."""
        if not self._is_writer:
            raise RuntimeError("Only writers can enqueue")
        wait = _Wait(timeout, warns=True)
        while True:
            left_s = wait.next_s(wait.interval_s)
            try:
                reached = self._sender.send_object(obj, left_s)
                break
            except queue.Full:
                wait.expired()
            except ValueError:  # longer than the ring: without waiting it cannot go
                if left_s > 0:
                    raise
                raise TimeoutError from None
            except PeerLostError:  # of all readers
                self._require_readers(self._sender.receivers)
                raise
        if reached < self.n_local_reader:  # a reader may have received this item and then left
            self._require_readers(self._sender.receivers, 0.0)

    def _require_readers(self, readers: list, most_behind: float = -1.0) -> None:
        """Raise for a reader that is gone and has left more than this share of the ring."""
        for rank, reader in zip(self.handle.local_reader_ranks, readers, strict=True):
            if reader.state in ("closed", "lost") and reader.behind > most_behind:
                how = "has closed its end" if reader.state == "closed" else "is dead"
                raise PeerLostError(f"reader {rank} of this queue, process {reader.pid}, {how}", rank, reader.pid)

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """Receive the next object. `TimeoutError` if none comes within ``timeout`` seconds (None: no limit).

        A wait that takes long is logged unless it is ``indefinite``.
        """
        if not self._is_local_reader:
            raise RuntimeError("Only readers can dequeue")
        wait = _Wait(timeout, warns=not indefinite)
        while True:
            try:
                return self._receiver.recv(wait.next_s(_TICK_S))
            except queue.Empty:
                if self.shutting_down:
                    raise RuntimeError("cancelled") from None
                wait.expired()


class _Wait:
    """A wait in steps; a long one writes lines into the log."""

    def __init__(self, timeout: float | None, warns: bool) -> None:
        self.interval_s = shm_broadcast.VLLM_RINGBUFFER_WARNING_INTERVAL
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._next_line = now + self.interval_s if warns else float("inf")

    def next_s(self, most: float) -> float:
        """Seconds that the next step may take."""
        return most if self._deadline is None else max(0.0, min(most, self._deadline - time.monotonic()))

    def expired(self) -> None:
        """Note that a step was in vain: `TimeoutError` after the last one."""
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise TimeoutError
        if now >= self._next_line:
            self._next_line += self.interval_s
            logger.info(shm_broadcast.LONG_WAIT_TIME_LOG_MSG, self.interval_s)


def _new(cls: type, n_reader: int = 0, n_local_reader: int = 0, *_args: Any, **_kwargs: Any) -> MessageQueue:
    """In place of ``MessageQueue.__new__``: without arguments it is one of vLLM's own readers."""
    all_local = n_reader == n_local_reader > 0
    return object.__new__(ShmringQueue if cls is MessageQueue and all_local else cls)


def _create_from_handle(handle: Handle, rank: int) -> MessageQueue:
    """In place of ``MessageQueue.create_from_handle``."""
    if rank in handle.local_reader_ranks and handle.buffer_handle and _MARK in handle.buffer_handle[3]:
        return ShmringQueue.of_reader(handle, rank)
    return _own_create_from_handle(handle, rank)


def misfit() -> str | None:
    """Why vLLM's class cannot be replaced; None if it is as this module knows it."""
    for name, wanted in _KNOWN.items():
        found = tuple(inspect.signature(getattr(MessageQueue, name)).parameters)
        if found[: len(wanted)] != wanted:
            return f"MessageQueue.{name}({', '.join(found)}) instead of ({', '.join(wanted)}, ...)"
    fields = inspect.signature(Handle).parameters
    return None if {"local_reader_ranks", "buffer_handle"} <= set(fields) else f"Handle({', '.join(fields)})"


def install() -> None:
    """Replace the queue of this process; if vLLM's is not as expected leave it, with a warning."""
    if MessageQueue.__new__ is _new:
        return
    reason = misfit()
    if reason is not None:
        logger.warning("vLLM %s has a message queue that shmring does not know: %s. It stays.", vllm_version, reason)
        return
    MessageQueue.__new__ = _new
    MessageQueue.create_from_handle = staticmethod(_create_from_handle)
    logger.info("Message queues between processes of this machine are broadcast channels of shmring")
