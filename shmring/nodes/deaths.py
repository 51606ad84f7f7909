"""Notices the death of a rank at once, whatever engine connects the nodes: the kernel closes its TCP connections.

The ranks form a tree: the first rank of each node has a connection to the very first rank, the other ranks one to the
first rank of their node. A connection carries a few bytes at its end: a rank that closes regularly sends `_LEFT`, and a
rank at which one ends without that sends `_DIED` through its other ones. There are no heartbeats; the kernel's
keep-alive ends connections to a machine, or through a network, that is gone without a sign.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from shmring.nodes.addresses import card, connect, keep_alive, listen

ENABLED = "SHMRING_DEATH_WATCH"  # 0: no connections
CONNECT_S = 5.0  # at most, to all addresses
JOIN_S = 1.0

_HELLO = struct.Struct("<16sI")  # key, rank
_ANSWER_NBYTES = 16  # the other half of the key
_WORD = struct.Struct("<cI")  # kind, rank
_HERE, _LEFT, _DIED = b"H", b"L", b"D"

_unreachable = False  # one attempt in a process is enough


class _Peer:
    """A connection; ``rank`` is None until the peer has named itself.

    ``is_here``: the peer has got the answer, too. One that has waited for it too long has closed this connection and
    makes another one.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.is_here = rank is not None
        self.bytes = b""
        self.has_left = False


class DeathWatch:
    """The connections of this rank. All ranks of the group make one at the same time.

    Parameters
    ----------
    name : str
        Of the group, for messages.
    nodes : sequence of sequence of int
        The ranks of each node.
    rank : int
    exchange : callable
        ``exchange(text)`` returns the texts of all ranks.

    Attributes
    ----------
    is_connected : bool
        Whether this rank learns of deaths.
    """

    def __init__(
        self, name: str, nodes: Sequence[Sequence[int]], rank: int, exchange: Callable[[str], list[str]]
    ) -> None:
        self._name, self._rank, self._size = name, rank, sum(map(len, nodes))
        leaders = [ranks[0] for ranks in nodes]
        ours = next(ranks for ranks in nodes if rank in ranks)
        parent = leaders[0] if rank in leaders else ours[0]
        self._awaited = set(ours[1:] if rank == ours[0] else ()) | set(leaders[1:] if rank == leaders[0] else ())
        self._lost: Callable[[int], None] | None = None
        self._dead: list[int] = []  # before `start`
        self._peers: dict[socket.socket, _Peer] = {}
        self._is_over = False
        is_enabled = os.environ.get(ENABLED) != "0"
        self._listeners = listen() if self._awaited and is_enabled else []
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for s in (self._woken, *self._listeners):
            self._selector.register(s, selectors.EVENT_READ)
        self._key = secrets.token_bytes(16 + _ANSWER_NBYTES)
        cards = exchange(" ".join([self._key.hex(), *card(self._listeners)]) if self._listeners else "")
        if parent != rank and is_enabled and cards[parent]:
            self._connect(parent, *cards[parent].split())
        self.is_connected = bool(self._listeners or self._peers)
        self._thread = threading.Thread(target=self._serve, name=f"shmring {name} deaths", daemon=True)
        if self.is_connected:
            self._thread.start()

    def start(self, lost: Callable[[int], None]) -> None:
        """Have a thread call ``lost(rank)`` for each rank that dies, or has died since the connections were made."""
        self._lost = lost
        while self._dead:
            lost(self._dead.pop(0))

    def close(self) -> None:
        """Leave regularly: to the other ranks this one has not died. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        self._send(_LEFT, self._rank)
        with suppress(OSError):
            self._waker.send(b"\0")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        self.disown()

    def disown(self) -> None:
        """Close this process's sockets; in a forked child those of the parent stay open."""
        self._is_over = True
        self._selector.close()
        for s in (*self._listeners, *self._peers, self._waker, self._woken):
            s.close()

    # ---- connecting ----

    def _connect(self, parent: int, key: str, *places: str) -> None:
        global _unreachable
        if _unreachable:
            return
        hello, answer = bytes.fromhex(key)[:16], bytes.fromhex(key)[16:]

        def greet(s: socket.socket) -> bool:
            s.sendall(_HELLO.pack(hello, self._rank))
            if s.recv(_ANSWER_NBYTES, socket.MSG_WAITALL) != answer:
                return False
            s.sendall(_WORD.pack(_HERE, self._rank))
            return True

        until = time.monotonic() + CONNECT_S
        try:
            s = connect(list(places), greet, lambda: max(0.0, until - time.monotonic()))
        except OSError as error:
            _unreachable = True
            warnings.warn(
                f"{self._name}: rank {self._rank} has no TCP connection to rank {parent} ({error.strerror}), so it "
                f"notices late that a rank of another node died; {ENABLED}=0 for all ranks does without connections",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return
        keep_alive(s)
        self._add(s, _Peer(parent))

    def _add(self, s: socket.socket, peer: _Peer) -> None:
        s.setblocking(False)
        self._peers[s] = peer
        self._selector.register(s, selectors.EVENT_READ)

    def _greet(self, s: socket.socket, peer: _Peer) -> bool:
        """Whether this is a connection of the group: what it begins with names the rank."""
        key, rank = _HELLO.unpack(peer.bytes[: _HELLO.size])
        if not secrets.compare_digest(key, self._key[:16]) or rank not in self._awaited:
            return False
        peer.rank, peer.bytes = rank, peer.bytes[_HELLO.size :]
        keep_alive(s)
        s.send(self._key[16:])
        return True

    # ---- the thread ----

    def _serve(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select():
                s = key.fileobj
                if s in self._listeners:
                    with suppress(OSError):
                        self._add(s.accept()[0], _Peer(None))
                elif s in self._peers and not self._read(s, self._peers[s]):
                    self._selector.unregister(s)
                    s.close()
                    self._end(self._peers.pop(s))
            if not self._awaited:
                while self._listeners:
                    self._selector.unregister(self._listeners[-1])
                    self._listeners.pop().close()

    def _read(self, s: socket.socket, peer: _Peer) -> bool:
        """Take what has arrived; False at the end of the connection."""
        try:
            data = s.recv(4096)
            peer.bytes += data
            if peer.rank is None and len(peer.bytes) >= _HELLO.size and not self._greet(s, peer):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        while peer.rank is not None and len(peer.bytes) >= _WORD.size:
            kind, rank = _WORD.unpack(peer.bytes[: _WORD.size])
            peer.bytes = peer.bytes[_WORD.size :]
            if kind == _HERE:
                peer.is_here = True
                self._awaited.discard(peer.rank)
            elif kind == _LEFT:
                peer.has_left = True
            elif kind == _DIED and rank < self._size:
                self._note_death(rank, s)
        return bool(data)

    def _end(self, peer: _Peer) -> None:
        if peer.rank is not None and peer.is_here and not peer.has_left and not self._is_over:
            self._note_death(peer.rank)

    def _note_death(self, rank: int, source: socket.socket | None = None) -> None:
        self._send(_DIED, rank, source)
        if self._lost is None:
            self._dead.append(rank)
        elif not self._is_over:
            self._lost(rank)

    def _send(self, kind: bytes, rank: int, source: socket.socket | None = None) -> None:
        for s, peer in list(self._peers.items()):
            if s is not source and peer.rank is not None:
                with suppress(OSError):  # it is gone, too
                    s.send(_WORD.pack(kind, rank))
