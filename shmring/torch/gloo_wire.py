"""The wire of gloo: connections through torch's process group, error records through the group's store.

Gloo requires that sender and receiver agree on the length: a message longer than the posted buffer terminates the
receiver's process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from shmring.errors import CollectiveTimeoutError, PeerLostError
from shmring.nodes.transfers import Transfers
from shmring.nodes.wire import ANSWER_S, ENVELOPE_NBYTES, Channel, Wire, WireError
from shmring.sync.blocked_waits import noted

_UNLIMITED = timedelta(days=3650)
_NUMBERS = 1 << 28  # gloo's tags have 31 bits
_UNUSED = len(Channel)


class GlooWire(Wire):
    """Gloo's connections from this rank to all others.

    Parameters
    ----------
    name : str
        The name of the group in error messages.
    store : torch.distributed.Store
        Used by this wire only.
    rank, size : int
    timeout_s : float or None
        Limit of connecting, in seconds; None: a day.
    """

    short_nbytes = 128 * 1024  # each message wakes threads of gloo, which takes longer than to copy this

    def __init__(self, name: str, store, rank: int, size: int, timeout_s: float | None) -> None:
        super().__init__()
        self.name, self.rank, self.size = name, rank, size
        self._store, self.transfers = store, Transfers(self)
        timeout = connecting(timeout_s)
        with _new_threads_do_not_preempt():
            self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("transport", store), rank, size, timeout)
        self._is_cut = False
        self._receivers: list[threading.Thread] = []

    def send(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> dist.Work:
        """As `Wire.send`."""
        return self._begin(self._gloo.send, data, peer, channel, number)

    def recv(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> dist.Work:
        """As `Wire.recv`. More bytes than ``data`` has would end this process."""
        return self._begin(self._gloo.recv, data, peer, channel, number)

    def _begin(self, start: Callable, data: np.ndarray, peer: int, channel: Channel, number: int) -> dist.Work:
        try:
            return start([torch.from_numpy(data)], peer, channel * _NUMBERS + number % _NUMBERS)
        except RuntimeError as error:
            raise self._failure(peer, error) from error

    def wait(self, work: dist.Work, peer: int, left_s: float | None = None) -> None:
        """As `Wire.wait`."""
        with noted(lambda: f"rank {self.rank} of {self.name} waits for rank {peer}, on another node"):
            self._await(work, peer, left_s)

    def _await(self, work: dist.Work, peer: int, left_s: float | None = None) -> None:
        # To gloo, a timeout of zero means no limit.
        timeout = _UNLIMITED if left_s is None else timedelta(seconds=max(left_s, 0.001))
        try:
            work.wait(timeout)
        except RuntimeError as error:
            raise self._failure(peer, error) from error

    def _failure(self, peer: int, error: RuntimeError) -> WireError:
        if "Timed out" in str(error):
            late = f"{self.name}: rank {peer}, on another node, did not come in time"
            return WireError(CollectiveTimeoutError(late, (peer,)))
        return WireError(PeerLostError(f"{self.name}: rank {peer}, on another node, died or left ({error})", peer))

    def cut(self) -> None:
        """As `Wire.cut`."""
        if self._is_cut:
            return
        self._is_cut = True
        # Gloo has no call for this, but closes all connections when a wait times out.
        for peer in range(self.size):
            if peer != self.rank and "Timed out" in self._time_out(peer):
                return

    def _time_out(self, peer: int) -> str:
        """Wait for a message that is never sent; returns gloo's error text."""
        try:
            self._gloo.recv([torch.empty(1)], peer, _UNUSED * _NUMBERS).wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            return str(error)
        return ""

    # ---- the store ----

    def await_all(self, timeout_s: float | None) -> None:
        """As `Wire.await_all`."""
        if self._store.add("connected", 1) == self.size:
            self._store.set("complete", b"")
        self._store.wait(["complete"], connecting(timeout_s))

    def publish_failure(self, record: bytes) -> bytes | None:
        """As `Wire.publish_failure`."""
        first = self.query_store(lambda: self._store.compare_set("error", "", record.hex()))
        return None if first is None else bytes.fromhex(first.decode())

    def announce_leave(self) -> None:
        """As `Wire.announce_leave`."""
        self.query_store(lambda: self._store.set(f"left/{self.rank}", b""))

    def has_left(self, peer: int) -> bool:
        """As `Wire.has_left`."""
        return bool(self.query_store(lambda: self._store.check([f"left/{peer}"])))

    def query_store(self, call: Callable[[], Any]) -> Any:
        """The result of a call of the store; None without one in `ANSWER_S`: its host process may be gone."""
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                answers.append(call())

        # The store's own timeout is that of the rendezvous, or unlimited.
        thread = threading.Thread(target=ask, name=f"shmring {self.name} store", daemon=True)
        thread.start()
        thread.join(ANSWER_S)
        return answers[0] if answers else None

    # ---- envelopes: a thread for each peer, since gloo has no probe ----

    def listen(self, lost: Callable[[int, WireError], None]) -> None:
        """As `Wire.listen`."""

        def receive(peer: int) -> None:
            try:
                while True:
                    data = np.empty(ENVELOPE_NBYTES, np.uint8)
                    self._await(self.recv(data, peer, Channel.ENVELOPE), peer)
                    self.inbox.append((data, peer))
            except WireError as error:
                lost(peer, error)

        for peer in range(self.size):
            if peer != self.rank:
                name = f"shmring {self.name} {peer}"
                self._receivers.append(threading.Thread(target=receive, args=(peer,), name=name, daemon=True))
                self._receivers[-1].start()

    def join(self, timeout_s: float) -> None:
        """As `Wire.join`."""
        for thread in self._receivers:
            if thread is not threading.current_thread():
                thread.join(timeout_s)


@contextlib.contextmanager
def _new_threads_do_not_preempt() -> Iterator[None]:
    """Threads that the calling thread starts meanwhile do not take the processor from a running thread when they wake.

    Gloo's thread tries the lock of a connection again and again while another thread holds it to send. Had it taken the
    processor from that thread, it would do so until the end of its time slice, some milliseconds later.
    """
    is_changed = False
    with contextlib.suppress(OSError):  # where the system forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            is_changed = True
    try:
        yield
    finally:
        if is_changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def connecting(timeout_s: float | None) -> timedelta:
    return timedelta(days=1) if timeout_s is None else timedelta(seconds=timeout_s)
