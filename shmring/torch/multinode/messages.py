"""Messages between ranks of several nodes: within a node by shared memory, between nodes by envelopes over gloo.

An envelope describes a message, and includes its content if that is short. Long content stays with its sender until a
receive matches the envelope; then it is received straight into the tensor and acknowledged. For each rank of another
node with which messages have been exchanged there is one receiving thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import torch

from shmring.errors import BrokenError, MessageTimeoutError, PeerLostError, ShmringError
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG, Message
from shmring.sync.turn import Turn
from shmring.torch.dense import copy_back, dense
from shmring.torch.multinode.lifecycle import MultinodeLifecycle
from shmring.torch.multinode.mailbox import ACK, LEAVING, Envelope, Mailbox, read, room_for_envelope, slot_of
from shmring.torch.multinode.requests import LocalRequest, NetworkReceive, NetworkRequest, NetworkSend, ReceiveAny
from shmring.torch.multinode.transport import ENVELOPE, Deadline, TransportError

LINGER_S = 5.0  # how long a leaving rank waits for its envelopes to be received
LAST_ENVELOPE_S = 1.0  # and for each of its receiving threads


class MultinodeMessages(MultinodeLifecycle):
    """The messages of a communicator of several nodes, as `shmring.Communicator` has them, on tensors."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        # For what follows, and the state of requests. Re-entrant: a signal handler may begin or end a message, too.
        self.turn = Turn(self.name, is_reentrant=True)
        self._posted: list[NetworkReceive] = []  # in the order of the calls
        self._arrived: list[Envelope] = []  # that no receive has matched
        self._unacknowledged: dict[tuple[int, int], NetworkSend] = {}
        self._receivers: dict[int, threading.Thread] = {}
        self._left: set[int] = set()  # of those with a receiving thread
        self._lost: dict[int, ShmringError] = {}
        remote = [r for i, ranks in enumerate(self.nodes) if i != self.node for r in ranks]
        self._mailboxes = {r: Mailbox(self.transport, r) for r in remote}

    # ---- calls ----

    @torch.inference_mode()
    def isend(self, x, dst, tag=0):
        """As `shmring.Communicator.isend`."""
        self.check_usable()
        if dst not in self._mailboxes:
            return LocalRequest(self, self.local.isend(x, self._local_rank_of(dst), tag))
        if dst in self._lost:
            raise self._lost[dst]
        self._start_receiver(dst)
        request = NetworkSend(self, dense(x), dst)
        mailbox = self._mailboxes[dst]
        try:
            self.turn.run(self._send, request, mailbox, tag)
            mailbox.wait_for_room(self._timeout_s)
        except TransportError as error:
            raise self._break(error) from error
        if request.work is None:
            request.end()
        return request

    def _send(self, request: NetworkSend, mailbox: Mailbox, tag: int) -> None:
        """In the turn: it is not acknowledged before it is in the table."""
        number, request.work = mailbox.send(request.content, tag)
        if request.work is not None:
            self._unacknowledged[request.peer, number] = request

    @torch.inference_mode()
    def irecv(self, x, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.irecv`."""
        self.check_usable()
        if src != ANY_SOURCE and src not in self._mailboxes:
            return LocalRequest(self, self.local.irecv(x, self._local_rank_of(src), tag))
        request = (ReceiveAny if src == ANY_SOURCE else NetworkReceive)(self, x, src, tag)
        for peer in self._mailboxes if src == ANY_SOURCE else [src]:
            self._start_receiver(peer)
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
            try:
                return self.in_group_ranks(self.local.recv(x, self._local_rank_of(src), tag, timeout=timeout_s))
            except BrokenError as error:
                raise self._break(error) from error
        request = self.irecv(x, src, tag)
        try:
            return request.wait(timeout_s)
        except MessageTimeoutError:
            if self._unpost(request):
                raise
        return request.wait()  # it has just been matched

    # ---- envelopes ----

    def _start_receiver(self, peer: int) -> None:
        name = f"shmring {self.name} {peer}"
        thread = threading.Thread(target=self._receive_from, args=(peer,), name=name, daemon=True)
        if self._receivers.setdefault(peer, thread) is thread:  # one step, so no lock
            thread.start()

    @torch.inference_mode()
    def _receive_from(self, peer: int) -> None:
        """Receive the envelopes of one rank until the transport is closed. Runs in a thread of its own."""
        try:
            while True:
                room = room_for_envelope()
                self.transport.wait(self.transport.recv(room, peer, ENVELOPE), peer)
                kind, envelope = read(room, peer)
                self._mailboxes[peer].is_polled = True
                if kind == LEAVING:
                    self._left.add(peer)
                elif kind == ACK:
                    self.turn.run(self._unacknowledged.pop, (peer, envelope.number)).end()
                else:
                    self._match(arrived=[envelope])
        except TransportError as error:
            self._handle_lost(peer, error)

    def _match(self, posted: Sequence[NetworkReceive] = (), arrived: Sequence[Envelope] = ()) -> None:
        """Queue these receives and envelopes, and deliver each pair that matches.

        Both are queued in one turn: an envelope that has arrived must not be lost with its sender.
        """
        pair = self.turn.run(self._take_pair, posted, arrived)
        while pair is not None:
            self._deliver(*pair)
            pair = self.turn.run(self._take_pair)

    def _take_pair(
        self, posted: Sequence[NetworkReceive] = (), arrived: Sequence[Envelope] = ()
    ) -> tuple[NetworkReceive, Envelope] | None:
        """In the turn: queue these, then remove and return a receive and the envelope that matches it, if there are."""
        self._posted += posted
        self._arrived += arrived
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
        whole = dense(request.x)
        part = whole.view(torch.uint8)[: envelope.nbytes]
        try:
            if envelope.content is not None:
                part.copy_(envelope.content)
            else:
                self.transport.wait(
                    self.transport.recv(part, envelope.source, slot_of(envelope.number)), envelope.source
                )
                self._mailboxes[envelope.source].acknowledge(envelope.number)
        except TransportError as error:
            request.end(error=self._break(error))
            return
        copy_back(whole, request.x)
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
        return Envelope(self.nodes[self.node][message.source], message.tag, message.nbytes, 0, 0, None)

    def _local_rank_of(self, rank: int) -> int:
        node, local_rank = self.locate(rank)
        assert node == self.node
        return local_rank

    # ---- leaving ----

    def _handle_lost(self, peer: int, error: TransportError) -> None:
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
            with suppress(TransportError):  # the peer is gone
                mailbox.announce_leave(deadline.left_s())
        super()._announce_leave()

    def _leave(self) -> None:
        super()._leave()
        for thread in [] if self.is_inherited else list(self._receivers.values()):
            # At interpreter exit a thread that is inside torch would terminate the process.
            if thread is not threading.current_thread():
                thread.join(LAST_ENVELOPE_S)
