"""Messages between ranks of several nodes: within a node by shared memory, between nodes by envelopes.

An envelope describes a message, and includes its content if that is short. Long content stays with its sender until a
receive matches the envelope; then it is received straight into the array and acknowledged. Envelopes are received by
threads of the wire, or where it has none by the threads that wait.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shmring.base.timeouts import timeout_ns
from shmring.dtypes import DTYPE_CODES
from shmring.errors import BrokenError, MessageError, MessageTimeoutError, ObjectError, PeerLostError, ShmringError
from shmring.nodes import flat
from shmring.nodes.lifecycle import NodesLifecycle
from shmring.nodes.mailbox import ACK, LEAVING, OBJECT, OPAQUE, Envelope, Mailbox, read, room_for_envelope
from shmring.nodes.requests import (
    LocalRequest,
    NetworkReceive,
    NetworkRequest,
    NetworkSend,
    ReceiveAny,
    ReceiveObject,
)
from shmring.nodes.wire import Channel, Deadline, WireError
from shmring.objects.codec import require_pickle
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG, Message
from shmring.sync.turn import Turn

LINGER_S = 5.0  # how long a leaving rank waits for its envelopes to be received
LAST_ENVELOPE_S = 1.0  # and for the threads of the wire


class NodesMessages(NodesLifecycle):
    """The messages of a communicator over several nodes, as `shmring.Communicator` has them."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        # For what follows, and the state of requests. Re-entrant: a signal handler may begin or end a message, too.
        self.turn = Turn(self.name, is_reentrant=True)
        self._posted: list[NetworkReceive] = []  # in the order of the calls
        self._arrived: list[Envelope] = []  # that no receive has matched
        self._unacknowledged: dict[tuple[int, int], NetworkSend] = {}
        self._left: set[int] = set()  # of those that are listened to
        self._lost: dict[int, ShmringError] = {}
        remote = [r for i, ranks in enumerate(self.nodes) if i != self.node for r in ranks]
        self._mailboxes = {r: Mailbox(self.wire, r) for r in remote}
        self.ticks_s = (20e-6, 1e-3) if self.wire.is_passive else None  # of a thread that waits and polls

    # ---- calls ----

    def isend(self, x, dst, tag=0):
        """As `shmring.Communicator.isend`."""
        self.check_usable()
        _check_tag(tag, 0)
        if dst not in self._mailboxes:
            return LocalRequest(self, self.local.isend(x, self._local_rank_of(dst, "dst"), tag))
        opened = flat.source(x)
        return self._begin_send(opened.data, opened.code, dst, tag)

    def _begin_send(self, data: np.ndarray, code: int, dst: int, tag: int) -> NetworkSend:
        if dst in self._lost:
            raise self._lost[dst]
        self._listen(dst)
        request = NetworkSend(self, data, code, dst)
        mailbox = self._mailboxes[dst]
        try:
            self.turn.run(self._send, request, mailbox, tag)
            mailbox.wait_for_room(self._timeout_s)
        except WireError as error:
            raise self._break(error) from error
        if request.work is None:
            request.end()
        return request

    def _send(self, request: NetworkSend, mailbox: Mailbox, tag: int) -> None:
        """In the turn: it is not acknowledged before it is in the table."""
        number, request.work = mailbox.send(request.content, request.code, tag)
        if request.work is not None:
            self._unacknowledged[request.peer, number] = request

    def irecv(self, x, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.irecv`."""
        self.check_usable()
        _check_tag(tag, ANY_TAG)
        if src != ANY_SOURCE and src not in self._mailboxes:
            return LocalRequest(self, self.local.irecv(x, self._local_rank_of(src, "src"), tag))
        kind = ReceiveAny if src == ANY_SOURCE else NetworkReceive
        return self._begin_recv(kind(self, x, flat.target(x), src, tag))

    def _begin_recv(self, request: NetworkReceive) -> NetworkReceive:
        src = request.source
        for peer in self._mailboxes if src == ANY_SOURCE else [src]:
            self._listen(peer)
        self._match(posted=[request])
        if src in self._lost and self._unpost(request):
            request.end(error=self._lost[src])
        return request

    def send(self, x, dst, tag=0, *, timeout=...):
        """As `shmring.Communicator.send`, except that a message not received in time stays under way."""
        self.isend(x, dst, tag).wait(self._timeout_s if timeout is ... else timeout)

    def recv(self, x, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.recv`."""
        timeout_s = self._timeout_s if timeout is ... else timeout
        if src != ANY_SOURCE and src not in self._mailboxes:
            self.check_usable()
            local_rank = self._local_rank_of(src, "src")
            try:
                return self.in_group_ranks(self.local.recv(x, local_rank, tag, timeout=timeout_s))
            except BrokenError as error:
                raise self._break(error) from error
        return self._finish_recv(self.irecv(x, src, tag), timeout_s)

    def _finish_recv(self, request: NetworkReceive, timeout_s: float | None) -> Any:
        try:
            return request.wait(timeout_s)
        except MessageTimeoutError:
            if self._unpost(request):
                raise
        return request.wait()  # it has just been matched

    def sendrecv(self, x, dst, out, src=ANY_SOURCE, *, tag=0, out_tag=ANY_TAG, timeout=...):
        """As `shmring.Communicator.sendrecv`."""
        sent = self.isend(x, dst, tag)
        message = self.recv(out, src, out_tag, timeout=timeout)
        sent.wait(self._timeout_s if timeout is ... else timeout)
        return message

    def iprobe(self, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.iprobe`."""
        self.check_usable()
        _check_tag(tag, ANY_TAG)
        is_local = src != ANY_SOURCE and src not in self._mailboxes
        local_rank = self._local_rank_of(src, "src") if is_local else ANY_SOURCE
        if not is_local:
            for peer in self._mailboxes if src == ANY_SOURCE else [src]:
                self._listen(peer)
            self.poll()
            found = self.turn.run(self._find_arrived, src, tag)
            if found is not None or src != ANY_SOURCE:
                return found
        try:
            return self.in_group_ranks(self.local.iprobe(local_rank, tag))
        except BrokenError as error:
            raise self._break(error) from error

    def probe(self, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.probe`."""
        limit_s = self._timeout_s if timeout is ... else timeout
        timeout_ns(limit_s)
        deadline, tick_s = Deadline(limit_s), 20e-6
        while True:
            found = self.iprobe(src, tag)
            if found is not None:
                return found
            if src in self._lost:
                raise self._lost[src]
            if deadline.left_s() == 0:
                raise MessageTimeoutError(f"{self.name}: no message arrived in {limit_s} s")
            time.sleep(tick_s)
            tick_s = min(2 * tick_s, 1e-3)

    def send_object(self, obj, dst, tag=0, *, timeout=...):
        """As `shmring.Communicator.send_object`."""
        require_pickle(self.config.allow_pickle)
        if dst not in self._mailboxes:
            self.check_usable()
            self.local.send_object(obj, self._local_rank_of(dst, "dst"), tag, timeout=timeout)
            return
        self.check_usable()
        _check_tag(tag, 0)
        try:
            stream = pickle.dumps(obj, 5)
        except Exception as error:
            text = f"rank {self.rank} cannot pickle its object: {type(error).__name__}: {error}"
            raise ObjectError(text, self.rank) from error
        request = self._begin_send(flat.source(stream).data, OBJECT, dst, tag)
        request.wait(self._timeout_s if timeout is ... else timeout)

    def recv_object(self, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.recv_object`."""
        require_pickle(self.config.allow_pickle)
        found = self.probe(src, tag, timeout=timeout)
        if not found.is_object:
            where = f"the next message, from rank {found.source} with tag {found.tag}"
            raise MessageError(f"{where}, is an array: receive it with recv()")
        if found.source not in self._mailboxes:
            return self.local.recv_object(self._local_rank_of(found.source, "src"), found.tag, timeout=timeout)
        data = np.empty(found.nbytes, np.uint8)
        request = ReceiveObject(self, data, flat.target(data), found.source, found.tag)
        self._finish_recv(self._begin_recv(request), self._timeout_s if timeout is ... else timeout)
        try:
            return pickle.loads(data.data)
        except Exception as error:
            text = f"the object from rank {found.source} cannot be unpickled here: {type(error).__name__}: {error}"
            raise ObjectError(text, found.source) from error

    # ---- envelopes ----

    def _listen(self, peer: int) -> None:
        self.wire.listen(peer, room_for_envelope, self._receive, self._handle_lost)

    def poll(self) -> None:
        """Receive envelopes that have arrived, where no thread of the wire does."""
        try:
            self.wire.poll()
        except WireError as error:
            self._break(error)

    def _receive(self, room: np.ndarray, peer: int) -> Callable[[], None]:
        """Queue an envelope, in the order of arrival; the function returned does what follows, and may block."""
        kind, envelope = read(room, peer)
        self._mailboxes[peer].is_polled = True
        if kind == ACK:
            return self.turn.run(self._unacknowledged.pop, (peer, envelope.number)).end
        if kind == LEAVING:
            self._left.add(peer)
        else:
            self.turn.run(self._arrived.append, envelope)
        return self._match

    def _find_arrived(self, src: int, tag: int) -> Envelope | None:
        """In the turn: the first envelope that no receive has matched."""
        matching = (e for e in self._arrived if src in (ANY_SOURCE, e.source) and tag in (ANY_TAG, e.tag))
        return next(matching, None)

    def _match(self, posted: Sequence[NetworkReceive] = ()) -> None:
        """Queue these receives, and deliver each pair of a receive and an envelope that match."""
        pair = self.turn.run(self._take_pair, posted)
        while pair is not None:
            self._deliver(*pair)
            pair = self.turn.run(self._take_pair)

    def _take_pair(self, posted: Sequence[NetworkReceive] = ()) -> tuple[NetworkReceive, Envelope] | None:
        """In the turn: queue these, then remove and return a receive and the envelope that matches it, if there are."""
        self._posted += posted
        pairs = (
            (request, envelope) for envelope in self._arrived for request in self._posted if request.matches(envelope)
        )
        pair = next(pairs, None)
        if pair is not None:
            self._posted.remove(pair[0])
            self._arrived.remove(pair[1])
        return pair

    def _deliver(self, request: NetworkReceive, envelope: Envelope) -> None:
        misfit = request.misfit(envelope)
        if misfit is not None:
            self.turn.run(self._arrived.insert, 0, envelope)
            request.end(error=misfit)
            return
        try:
            if envelope.content is not None:
                request.fill(envelope.content)
            else:
                part = request.opened.data[: envelope.nbytes]
                work = self.wire.recv(part, envelope.source, Channel.MESSAGE, envelope.number)
                self.wire.wait(work, envelope.source)
                request.opened.copy_back()
                self._mailboxes[envelope.source].acknowledge(envelope.number)
        except WireError as error:
            request.end(error=self._break(error))
            return
        request.end(envelope)

    def poll_local(self, request: ReceiveAny) -> None:
        """Receive a message from this node, if there is one and no envelope has matched before."""
        try:
            found = self.local.iprobe(ANY_SOURCE, request.tag)
            if found is not None and self._unpost(request):
                request.end(self.in_group_ranks(self.local.irecv(request.x, found.source, found.tag).wait()))
        except BrokenError as error:
            request.end(error=self._break(error))
        except (ShmringError, TypeError) as error:
            request.end(error=error)

    def _unpost(self, request: NetworkReceive) -> bool:
        """Withdraw a receive; False if it has been matched."""
        with suppress(ValueError):
            self.turn.run(self._posted.remove, request)
            return True
        return False

    def in_group_ranks(self, message: Message | None) -> Envelope | None:
        """A message from this node, with the source's rank in the whole group."""
        if message is None:
            return None
        code = OBJECT if message.is_object else DTYPE_CODES.get(message.dtype or "", OPAQUE)
        return Envelope(self.nodes[self.node][message.source], message.tag, message.nbytes, code, 0, None)

    def _local_rank_of(self, rank: int, name: str) -> int:
        return self.layout.places[self._checked_rank(rank, name)][1]

    # ---- leaving ----

    def _handle_lost(self, peer: int, error: WireError) -> None:
        """Handle a lost connection: the peer has left or died, or the group is broken."""
        if self.is_closed:
            return
        if self._failure is not None or not self._has_left(peer):
            self._break(error)
            return
        left = PeerLostError(f"{self.name}: rank {peer} has left the group", peer)
        self._lost[peer] = left
        for request in self.turn.run(self._take_requests, peer):
            request.end(error=left)

    def _fail_requests(self, failure: ShmringError) -> None:
        for request in self.turn.run(self._take_requests):
            request.end(error=failure)

    def _take_requests(self, peer: int | None = None) -> list[NetworkRequest]:
        """In the turn: remove and return the pending requests from and to one rank, or all."""
        posted = [request for request in self._posted if peer in (None, request.source)]
        for request in posted:
            self._posted.remove(request)
        sends = [key for key in self._unacknowledged if peer in (None, key[0])]
        return [*posted, *map(self._unacknowledged.pop, sends)]

    def _has_left(self, rank: int) -> bool:
        return rank in self._left or super()._has_left(rank)

    def _announce_leave(self) -> None:
        deadline = Deadline(LINGER_S)
        for mailbox in self._mailboxes.values():
            with suppress(WireError):  # the peer is gone
                mailbox.announce_leave(deadline.left_s())
        super()._announce_leave()

    def _leave(self) -> None:
        super()._leave()
        if not self.is_inherited:
            self.wire.join(LAST_ENVELOPE_S)  # at interpreter exit a thread inside an engine may end the process


def _check_tag(tag: int, least: int) -> None:
    if not least <= tag < 2**31:
        raise ValueError(f"tag={tag}: must be from {least} to 2**31 - 1")
