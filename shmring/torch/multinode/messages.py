"""Messages between ranks of several nodes: to one's own node by shared memory, to others by letters over the wire.

A letter is a message of a fixed form that says what is sent and brings it along, if it is short. The content of a long
one stays with its sender until somebody wants to have it, and goes straight into his tensor; the receiver then says
that it has been taken. One thread listens to each rank of another node with which there have been messages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import torch

from shmring.errors import BrokenError, MessageTimeoutError, PeerLostError, ShmringError
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG, Message
from shmring.torch.dense import dense, give_back
from shmring.torch.multinode.lifecycle import NodeLife
from shmring.torch.multinode.mailbox import GOODBYE, TAKEN, Letter, Post, read, room_for_letter, slot_of
from shmring.torch.multinode.requests import FromAnybody, OnThisNode, Receive, Request, Send
from shmring.torch.multinode.transport import LETTER, Deadline, TroubleError

LINGER_S = 5.0  # how long who leaves waits for letters to be listened to
LAST_LETTER_S = 1.0  # and for a listener that is busy with one


class NodeLetters(NodeLife):
    """The messages of a communicator of several nodes, as `shmring.Communicator` has them, on tensors."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.news = threading.Condition(threading.RLock())
        self._posted: list[Receive] = []  # in order
        self._arrived: list[Letter] = []  # that nobody has asked for
        self._not_taken: dict[tuple[int, int], Send] = {}
        self._listeners: dict[int, threading.Thread] = {}
        self._left: set[int] = set()  # of those listened to
        self._lost: dict[int, ShmringError] = {}
        strangers = [r for i, ranks in enumerate(self.nodes) if i != self.node for r in ranks]
        self._posts = {r: Post(self.wire, r) for r in strangers}

    # ---- what callers get ----

    @torch.inference_mode()
    def isend(self, x, dst, tag=0):
        """As `shmring.Communicator.isend`."""
        self.assure()
        if dst not in self._posts:
            return OnThisNode(self, self.local.isend(x, self._seat_of(dst), tag))
        if dst in self._lost:
            raise self._lost[dst]
        self._listen(dst)
        request = Send(self, dense(x), dst)
        post = self._posts[dst]
        try:
            with self.news:  # it is not taken before it is known here
                number, request.work = post.send(request.content, tag)
                if request.work is not None:
                    self._not_taken[dst, number] = request
            post.wait_for_room(self._timeout_s)
        except TroubleError as error:
            raise self._broken_by(error) from error
        if request.work is None:
            request.end()
        return request

    @torch.inference_mode()
    def irecv(self, x, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.irecv`."""
        self.assure()
        if src != ANY_SOURCE and src not in self._posts:
            return OnThisNode(self, self.local.irecv(x, self._seat_of(src), tag))
        request = (FromAnybody if src == ANY_SOURCE else Receive)(self, x, src, tag)
        for peer in self._posts if src == ANY_SOURCE else [src]:
            self._listen(peer)
        self._match(posted=[request])
        if src in self._lost and self._unpost(request):
            request.end(error=self._lost[src])
        return request

    def send(self, x, dst, tag=0, *, timeout=...):
        """As `shmring.Communicator.send`, but for what is not taken in time: that goes on all the same."""
        self.isend(x, dst, tag).wait(self._timeout_s if timeout is ... else timeout)

    def recv(self, x, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.recv`."""
        patience_s = self._timeout_s if timeout is ... else timeout
        if src != ANY_SOURCE and src not in self._posts:
            self.assure()
            try:
                return self.told_to_all(self.local.recv(x, self._seat_of(src), tag, timeout=patience_s))
            except BrokenError as error:
                raise self._broken_by(error) from error
        request = self.irecv(x, src, tag)
        try:
            return request.wait(patience_s)
        except MessageTimeoutError:
            if self._unpost(request):
                raise
        return request.wait()  # it has just come

    # ---- letters ----

    def _listen(self, peer: int) -> None:
        with self.news:
            if peer in self._listeners:
                return
            name = f"shmring {self.name} {peer}"
            self._listeners[peer] = threading.Thread(target=self._hear, args=(peer,), name=name, daemon=True)
            self._listeners[peer].start()

    @torch.inference_mode()
    def _hear(self, peer: int) -> None:
        """Listen to a rank for as long as the wire lasts. By a thread of its own."""
        try:
            while True:
                room = room_for_letter()
                self.wire.wait(self.wire.recv(room, peer, LETTER), peer)
                kind, letter = read(room, peer)
                self._posts[peer].is_listened_to = True
                if kind == GOODBYE:
                    self._left.add(peer)
                elif kind == TAKEN:
                    with self.news:
                        request = self._not_taken.pop((peer, letter.number))
                    request.end()
                else:
                    self._match(arrived=[letter])
        except TroubleError as error:
            self._lose(peer, error)

    def _match(self, posted: Sequence[Receive] = (), arrived: Sequence[Letter] = ()) -> None:
        """Note these, and bring together what has arrived and what is waited for.

        One hold of the lock for both: should the sender be lost meanwhile, what has arrived is not.
        """
        with self.news:
            self._posted += posted
            self._arrived += arrived
            pair = self._take_pair()
        while pair is not None:
            self._deliver(*pair)
            with self.news:
                pair = self._take_pair()

    def _take_pair(self) -> tuple[Receive, Letter] | None:
        """A receive and the letter for it, if there are; by a caller who has the lock."""
        pairs = ((request, letter) for letter in self._arrived for request in self._posted if request.wants(letter))
        pair = next(pairs, None)
        if pair is not None:
            self._posted.remove(pair[0])
            self._arrived.remove(pair[1])
        return pair

    def _deliver(self, request: Receive, letter: Letter) -> None:
        misfit = request.misfit(letter)
        if misfit is not None:
            with self.news:
                self._arrived.insert(0, letter)
            request.end(error=misfit)
            return
        whole = dense(request.x)
        part = whole.view(torch.uint8)[: letter.nbytes]
        try:
            if letter.content is not None:
                part.copy_(letter.content)
            else:
                self.wire.wait(self.wire.recv(part, letter.source, slot_of(letter.number)), letter.source)
                self._posts[letter.source].confirm(letter.number)
        except TroubleError as error:
            request.end(error=self._broken_by(error))
            return
        give_back(whole, request.x)
        request.end(letter)

    def look_here(self, request: FromAnybody) -> None:
        """Receive a message of this node, if there is one and no letter was quicker."""
        try:
            found = self.local.iprobe(ANY_SOURCE, request.tag)
            if found is not None and self._unpost(request):
                request.end(self.told_to_all(self.local.irecv(request.x, found.source, found.tag).wait()))
        except BrokenError as error:
            request.end(error=self._broken_by(error))
        except (ShmringError, TypeError) as error:
            request.end(error=error)

    def _unpost(self, request: Receive) -> bool:
        """Take a receive back; False if it is too late for that."""
        with self.news:
            if request not in self._posted:
                return False
            self._posted.remove(request)
            return True

    def told_to_all(self, message: Message | None) -> Letter | None:
        """A message of this node with the source's rank among all."""
        if message is None:
            return None
        return Letter(self.nodes[self.node][message.source], message.tag, message.nbytes, 0, 0, None)

    def _seat_of(self, rank: int) -> int:
        node, seat = self.place(rank)
        assert node == self.node
        return seat

    # ---- the end ----

    def _lose(self, peer: int, error: TroubleError) -> None:
        """The connection to a rank is gone: it has left, or died, or there is trouble, be it here."""
        if self.is_closed:
            return
        if self._trouble is not None or not self._has_left(peer):
            self._broken_by(error)
            return
        left = PeerLostError(f"{self.name}: rank {peer} has left the group", peer)
        with self.news:
            self._lost[peer] = left
            failed: list[Request] = [request for request in self._posted if request.source == peer]
            self._posted = [request for request in self._posted if request not in failed]
            failed += [self._not_taken.pop(key) for key in list(self._not_taken) if key[0] == peer]
        for request in failed:
            request.end(error=left)

    def _give_up(self, trouble: ShmringError) -> None:
        with self.news:
            failed: list[Request] = [*self._posted, *self._not_taken.values()]
            self._posted, self._not_taken = [], {}
        for request in failed:
            request.end(error=trouble)

    def _has_left(self, rank: int) -> bool:
        return rank in self._left or super()._has_left(rank)

    def _say_goodbye(self) -> None:
        deadline = Deadline(LINGER_S)
        for post in self._posts.values():
            with suppress(TroubleError):  # who is gone needs no letters
                post.say_goodbye(deadline.left_s())
        super()._say_goodbye()

    def _part(self) -> None:
        super()._part()
        for listener in [] if self.is_inherited else list(self._listeners.values()):
            # The interpreter's end would break it off inside of torch, which is the end of the process.
            if listener is not threading.current_thread():
                listener.join(LAST_LETTER_S)
