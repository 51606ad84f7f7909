"""The wire of MPI, through mpi4py: any MPI that the program uses, over whatever network that supports.

MPI has neither a wait with a time limit nor an error for a dead peer that all implementations give. So every wait here
tests its request, with a look now and then for *notices*: small messages by which a rank makes known that it leaves, or
that a call has failed and why.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from shmring.base import lifecycle
from shmring.errors import CollectiveTimeoutError, MismatchError, PeerLostError
from shmring.nodes.mpi_transfers import MpiTransfers
from shmring.nodes.transfers import number_of
from shmring.nodes.wire import ENVELOPE_NBYTES, Channel, Wire, WireError
from shmring.sync.long_waits import WaitNotes

SPIN_TESTS = 64  # before a wait looks for notices, and lets others run, between two tests,
YIELD_S = 2e-3  # and for how long it does before it sleeps
SLEEPS_S = (20e-6, 1e-3)  # first and longest sleep
PROGRESS_S = 0.05  # between two calls of MPI at the latest
ANNOUNCED_S = 0.1  # a collective of MPI that takes longer is announced to some other ranks
LINGER_S = 0.05  # for the notices of others that leave at the same time
NOTICE_NBYTES = 4096 + 8

_FAILED, _LEFT, _CALL = 1, 2, 3
_NOTICE = len(Channel)


class _Inbox:
    """The messages of one channel from any rank, in the order of their arrival.

    They are found by a probe: over UCX, MPICH 5.0 never completes a receive from any source whose message came before
    it.
    """

    def __init__(self, comm: Any, tag: int, most_nbytes: int) -> None:
        self._comm, self._tag, self._most_nbytes = comm, tag, most_nbytes
        self._arriving: deque[tuple[Any, np.ndarray, int]] = deque()

    def take(self) -> list[tuple[np.ndarray, int]]:
        """The messages that have arrived, each with its source. One thread at a time calls."""
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, self._tag, status)) is not None:
            data = np.empty(self._most_nbytes, np.uint8)
            self._arriving.append((message.Irecv([data, MPI.BYTE]), data, status.Get_source()))
        taken = []
        while self._arriving and self._arriving[0][0].Test():
            taken.append(self._arriving.popleft()[1:])
        return taken


class MpiWire(Wire):
    """The ranks of an mpi4py communicator.

    Parameters
    ----------
    name : str
        For error messages.
    comm : mpi4py.MPI.Intracomm
        Used by this wire only, with ``MPI.ERRORS_RETURN``.
    """

    is_passive = True

    def __init__(self, name: str, comm: Any) -> None:
        super().__init__()
        self.name, self.rank, self.size = name, comm.Get_rank(), comm.Get_size()
        self._comm = comm
        self._tags = (comm.Get_attr(MPI.TAG_UB) + 1) // (_NOTICE + 1)  # of each channel; MPI guarantees 32767 in all
        self.transfers = MpiTransfers(self, comm, self._tags)
        self._works: dict[int, tuple[Any, np.ndarray]] = {}  # pending, with the memory that MPI reads or writes
        self._looking = threading.Lock()  # for notices and envelopes: taken without waiting
        self._failure: bytes | None = None
        self._left: dict[int, int] = {}  # ranks that have left, after so many calls
        self._calls: dict[int, bytes] = {}  # announced by ranks that are ahead of this one, or in its call
        self._came: dict[int, int] = {}  # the number of the latest announced call of each rank
        self._mismatch: MismatchError | None = None
        self._ended: set[int] = set()  # of those, noted by the messages
        self._notices = _Inbox(comm, _NOTICE * self._tags, NOTICE_NBYTES)
        self._sent: list[tuple[Any, np.ndarray]] = []
        self._envelopes: _Inbox | None = None
        self._note_lost: Callable[[int, WireError], None] | None = None
        # MPI makes progress only in its calls. A rank that waits in shared memory, or computes, makes none, though what
        # it sent may not have left.
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"shmring {self.name} messages", daemon=True)
        self._thread.start()

    @property
    def _peers(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    @property
    def _is_cut(self) -> bool:
        return self.transfers.is_cut

    # ---- data ----

    def send(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> Any:
        """As `Wire.send`."""
        return self._begin(self._comm.Isend, data, peer, channel, number)

    def recv(self, data: np.ndarray, peer: int, channel: Channel, number: int = 0) -> Any:
        """As `Wire.recv`."""
        return self._begin(self._comm.Irecv, data, peer, channel, number)

    def _begin(self, start: Callable, data: np.ndarray, peer: int, channel: Channel, number: int) -> Any:
        if self._is_cut:
            raise self.lost_error(peer)
        try:
            work = start([data, MPI.BYTE], peer, channel * self._tags + number % self._tags)
        except MPI.Exception as error:
            raise self.died_error(peer, error) from error
        self._works[id(work)] = work, data
        return work

    def wait(self, work: Any, peer: int, left_s: float | None = None) -> None:
        """As `Wire.wait`."""
        self.await_success(work.Test, peer, left_s)
        self._works.pop(id(work), None)

    def await_success(self, test: Callable[[], bool], peer: int, left_s: float | None) -> None:
        """Wait until ``test``, of something pending with this rank, succeeds; errors as of `wait`."""

        def check(waited_s: float) -> None:
            if self._is_lost(peer):
                raise self.lost_error(peer)
            if left_s is not None and waited_s > left_s:
                raise self._late_error(peer)

        for _ in range(SPIN_TESTS):
            if self._attempt(peer, test):
                return
        self._await(test, peer, check, lambda: f"rank {peer}, on another node")

    def _await(
        self, test: Callable[[], bool], peer: int, check: Callable[[float], None], awaited: Callable[[], str]
    ) -> None:
        """Wait until ``test`` succeeds. ``check(seconds)`` raises `WireError` where it never will, or too late."""
        since = time.monotonic()
        notes = WaitNotes()
        while not self._attempt(peer, test):
            waited_s = time.monotonic() - since
            try:
                check(waited_s)
            except WireError:
                if self._attempt(peer, test):  # what a rank sent before it left has arrived before its notice
                    return
                raise
            if waited_s < YIELD_S:
                os.sched_yield()
            else:
                notes.look(f"rank {self.rank} of {self.name} waits for {awaited()}")
                time.sleep(min(SLEEPS_S[1], max(SLEEPS_S[0], waited_s / 64)))

    def _attempt(self, peer: int, function: Callable, *args) -> Any:
        try:
            return function(*args)
        except MPI.Exception as error:
            raise self.died_error(peer, error) from error

    def _late_error(self, *peers: int) -> WireError:
        ranks = f"rank {peers[0]}" if len(peers) == 1 else f"ranks {list(peers)}"
        return WireError(CollectiveTimeoutError(f"{self.name}: {ranks} did not come in time", peers))

    def died_error(self, peer: int, error: Exception) -> WireError:
        """The error of a call with that rank that MPI refused."""
        return WireError(PeerLostError(f"{self.name}: rank {peer}, on another node, died or left ({error})", peer))

    def lost_error(self, peer: int) -> WireError:
        """The error of a wait for a rank from which nothing more will come."""
        how = "has left the group" if peer in self._left else "failed, or this rank has closed its connections"
        return WireError(PeerLostError(f"{self.name}: rank {peer}, on another node, {how}", peer))

    # ---- notices ----

    def _is_lost(self, peer: int) -> bool:
        """Read the notices that have arrived: whether nothing more will come from this rank.

        What it sent before it left has arrived before its notice.
        """
        self._look()
        if self._mismatch is not None:
            raise WireError(self._mismatch)
        return self._failure is not None or self._is_cut or peer in self._left

    def _look(self) -> None:
        if self._looking.acquire(blocking=False):
            try:
                self._read_notices()
            finally:
                self._looking.release()

    def _read_notices(self) -> None:
        for notice, source in self._attempt(self.rank, self._notices.take):
            kind, length = int(notice[0]), int.from_bytes(notice[1:8].tobytes(), "little")
            if kind == _FAILED and self._failure is None:
                self._failure = notice[8 : 8 + length].tobytes()
            elif kind == _LEFT:
                self._left[source] = int.from_bytes(notice[8:16].tobytes(), "little")
            elif kind == _CALL:
                self._calls[source] = notice[8 : 8 + length].tobytes()
                self._came[source] = number_of(self._calls[source])
        self._compare_calls()
        self.transfers.is_disturbed = bool(self._left) or self._failure is not None or self._mismatch is not None

    def _notify(self, kind: int, content: bytes, peers: Iterable[int]) -> None:
        self._sent = [(work, data) for work, data in self._sent if not work.Test()]
        content = content[: NOTICE_NBYTES - 8]
        data = np.frombuffer(bytes([kind]) + len(content).to_bytes(7, "little") + content, np.uint8)
        for peer in peers:
            try:
                self._sent.append((self._comm.Isend([data, MPI.BYTE], peer, _NOTICE * self._tags), data))
            except MPI.Exception:  # it is dead
                continue

    def await_all(self, timeout_s: float | None) -> None:
        """As `Wire.await_all`: making the communicator has done so."""

    def publish_failure(self, record: bytes) -> bytes | None:
        """As `Wire.publish_failure`."""
        self._look()
        if not (self._is_cut or self._failure is not None):
            self._notify(_FAILED, record, self._peers)
        return self._failure

    def announce_leave(self) -> None:
        """As `Wire.announce_leave`."""
        if not self._is_cut:
            ncalls = self.transfers.history.number.to_bytes(8, "little")
            self._notify(_LEFT, ncalls, self._peers)

    def has_left(self, peer: int) -> bool:
        """As `Wire.has_left`."""
        return peer in self._left

    def abandon(self, memory: object) -> None:
        """As `Wire.abandon`: it is kept until the process ends."""
        _abandoned.append(memory)

    def cut(self) -> None:
        """As `Wire.cut`. To the others, notices say so; what is pending here keeps its memory."""
        if not self._is_cut:
            self.transfers.is_cut = True
            self._woken.set()
            _abandoned.extend(self._works.values())

    def join(self, timeout_s: float) -> None:
        """Let the notices leave, as long as ``timeout_s``, and receive those of ranks that leave at the same time."""
        until = time.monotonic() + timeout_s
        linger = min(until, time.monotonic() + LINGER_S)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        try:
            while len(self._left) < self.size - 1 and self._failure is None and time.monotonic() < linger:
                self._look()
                time.sleep(SLEEPS_S[0])
            while self._sent and time.monotonic() < until:
                self._sent = [(work, data) for work, data in self._sent if not work.Test()]
                os.sched_yield()
        except (MPI.Exception, WireError):  # a peer is dead
            _abandoned.extend(self._sent)

    # ---- collectives of MPI ----

    def announce_call(self, *peers: int) -> None:
        """Make other ranks compare the calls of this one with theirs."""
        self._notify(_CALL, self.transfers.history.announcement(), peers)

    def _compare_calls(self) -> None:
        for peer, call in list(self._calls.items()):
            found = self.transfers.history.compare(call)
            if found is not None:
                del self._calls[peer]
            if found:
                here, there = found
                text = f"{self.name}: the ranks disagree: rank {self.rank} is in {here}; rank {peer} in {there}"
                self._mismatch = MismatchError(text, (self.rank, peer))

    def raise_disturbance(self) -> None:
        """Raise if the next collective cannot end: a rank has failed, disagrees, or has left before it."""
        self._check_collective(self.transfers.history.number)

    def _check_collective(self, number: int) -> None:
        if self._is_lost(self.rank):
            raise self.lost_error(self.rank)
        for peer, ncalls in self._left.items():
            if ncalls < number:
                raise self.lost_error(peer)

    def await_collective(self, test: Callable[[], bool], number: int, left_s: float | None) -> None:
        """Wait until a collective, which belongs to call ``number``, is over on this rank."""
        is_announced = False
        # Whichever ranks disagree with the others, one of them is the neighbour of one of these.
        neighbours = {(self.rank + 1) % self.size, (self.rank - 1) % self.size}
        neighbours |= {r for k in range(self.size.bit_length()) if (r := self.rank ^ 1 << k) < self.size}

        def check(waited_s: float) -> None:
            nonlocal is_announced
            self._check_collective(number)
            if waited_s > ANNOUNCED_S:
                self.look_at_node()
                if not is_announced:
                    is_announced = True
                    self.announce_call(*neighbours)
            if left_s is not None and waited_s > left_s:
                late = [r for r in sorted(neighbours) if self._came.get(r, 0) < number]
                raise self._late_error(*(late or neighbours))

        self._await(test, self.rank, check, lambda: f"ranks of other nodes in {self.transfers.history.what}")

    # ---- envelopes ----

    def listen(self, lost: Callable[[int, WireError], None]) -> None:
        """As `Wire.listen`."""
        self._envelopes = _Inbox(self._comm, Channel.ENVELOPE * self._tags, ENVELOPE_NBYTES)
        self._note_lost = lost
        self._woken.set()

    def _serve(self) -> None:
        """Drive MPI's progress, and receive envelopes, until the wire is cut. Runs in a thread of its own."""
        sleep_s = SLEEPS_S[0]
        try:
            while not self._is_cut:
                if self._note_lost is None:
                    self._is_lost(self.rank)
                    self._woken.wait(PROGRESS_S)
                    continue
                narrived = len(self.inbox)
                self.poll()
                sleep_s = SLEEPS_S[0] if len(self.inbox) > narrived else min(SLEEPS_S[1], 1.2 * sleep_s)
                time.sleep(sleep_s)
        except WireError as error:
            if self._note_lost is not None:
                self._note_lost(self.rank, error)

    def poll(self) -> None:
        """As `Wire.poll`."""
        if self._envelopes is None or self._note_lost is None or self._is_cut:
            return
        if not self._looking.acquire(blocking=False):
            return
        try:
            self.inbox.extend(self._attempt(self.rank, self._envelopes.take))
            self._read_notices()
        finally:
            self._looking.release()
        if self._mismatch is not None:
            raise WireError(self._mismatch)
        if self._failure is not None:
            raise self.lost_error(self.rank)
        for peer in self._left.keys() - self._ended:
            self._ended.add(peer)
            self._note_lost(peer, self.lost_error(peer))


_abandoned: list[object] = []


def _close_before_finalize(*_args) -> None:
    """Called by MPI_Finalize before it does anything else, as a program may call it while communicators are open."""
    for group in lifecycle.tracked(lifecycle.Stage.MULTINODE):
        if isinstance(group.wire, MpiWire):
            group.close()


# MPI frees what is attached to this communicator first. At the interpreter's end mpi4py finalizes after all handlers.
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_close_before_finalize), None)

# A second time, as mpi4py was imported before: these leave before it ends MPI.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
