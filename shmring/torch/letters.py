"""Messages between ranks of several nodes: to one's own node by shared memory, to others by letters over the wire.

A letter is a message of a fixed form that says what is sent and brings it along, if it is short. The content of a long
one stays with its sender until somebody wants to have it, and goes straight into his tensor; the receiver then says
that it has been taken. One thread listens to each rank of another node with which there have been messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from shmring.dtypes import DTYPE_CODES, DTYPES
from shmring.errors import BrokenError, MessageTimeoutError, MessageTooLongError, PeerLostError, ShmringError
from shmring.pointtopoint import ANY_SOURCE, ANY_TAG, Message
from shmring.torch.folds import dense, give_back
from shmring.torch.nodelife import NodeLife
from shmring.torch.wire import LETTER, LETTER_CONTENT, Deadline, TroubleError, Wire
from shmring.unraisable import report_unraisable

MOST_ON_THE_WAY = 64  # short letters to one rank that nobody has listened to yet; the next one waits for the first
SHORT_NBYTES = 4096

_MESSAGE, _TAKEN, _GOODBYE = range(3)  # kinds of letters
_NUMBERS = 5  # kind, number, tag, nbytes, dtype: before the content, as int64
_HEAD_NBYTES = 8 * _NUMBERS
_NNUMBERS = 1 << 24

# Somebody who waits for a message from anybody must look into shared memory, too.
FIRST_TICK_S, LAST_TICK_S = 50e-6, 2e-3

LINGER_S = 5.0  # how long who leaves waits for letters to be listened to
LAST_LETTER_S = 1.0  # and for a listener that is busy with one


class Letter(NamedTuple):
    """A message: who sent it, with what, how long it is."""

    source: int
    tag: int
    nbytes: int
    code: int
    number: int
    content: torch.Tensor | None
    """None if it is still with its sender."""


class Request:
    """A message under way to or from another node, or from anybody; as `shmring.Request`."""

    def __init__(self, letters: NodeLetters) -> None:
        self._letters = letters
        self._is_over = False
        self._message: Letter | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def wait(self, timeout: float | None = None) -> Letter | None:
        """Wait until it is done; `MessageTimeoutError` if that takes longer, and it goes on."""
        self._settle(timeout)
        if self._error is not None:
            raise self._error
        return self._message

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What `wait` would raise."""
        self._settle(timeout)
        return self._error

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have ``callback(request)`` called once it is over, by the thread that finds it so."""
        with self._letters.news:
            if not self._is_over:
                self._callbacks.append(callback)
                return
        callback(self)

    def end(self, message: Letter | None = None, error: Exception | None = None) -> None:
        """It is over."""
        with self._letters.news:
            if self._is_over:
                return
            self._message, self._error, self._is_over = message, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._letters.news.notify_all()
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as raised:
                report_unraisable(raised, callback)

    def _settle(self, timeout: float | None) -> None:
        with self._letters.news:
            if not self._letters.news.wait_for(self.done, timeout):
                raise MessageTimeoutError(f"{self._letters.name}: a message is not done in time; it goes on")


class Send(Request):
    """A long letter whose content has not been taken yet."""

    def __init__(self, letters: NodeLetters, content: torch.Tensor, peer: int) -> None:
        super().__init__(letters)
        self.content = content
        self.peer = peer
        self.work: Any = None


class Receive(Request):
    """A receive that waits for its message."""

    def __init__(self, letters: NodeLetters, x: torch.Tensor, source: int, tag: int) -> None:
        super().__init__(letters)
        self.x = x
        self.source = source
        self.tag = tag

    def wants(self, letter: Letter) -> bool:
        """Whether it is for this letter, fits or not."""
        return self.source in (ANY_SOURCE, letter.source) and self.tag in (ANY_TAG, letter.tag)

    def misfit(self, letter: Letter) -> Exception | None:
        """Why this letter cannot be received so."""
        where = f"{self._letters.name}: the message from rank {letter.source} with tag {letter.tag}"
        if letter.nbytes > self.x.nbytes:
            return MessageTooLongError(
                f"{where} has {letter.nbytes} bytes, the tensor to receive it {self.x.nbytes}; it stays receivable",
                letter.source, letter.tag, letter.nbytes,
            )  # fmt: skip
        if letter.code != _code(self.x):
            sent = DTYPES[letter.code].name
            return TypeError(f"{where} is of {sent}, the tensor to receive it of {self.x.dtype}; it stays receivable")
        return None


class FromAnybody(Receive):
    """A receive of whatever comes first, from this node or another."""

    def done(self) -> bool:
        """Whether it is over; looks into shared memory first."""
        if not self._is_over:
            self._letters.look_here(self)
        return self._is_over

    def _settle(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        tick_s = FIRST_TICK_S
        while not self.done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                super()._settle(0)
            with self._letters.news:
                self._letters.news.wait_for(lambda: self._is_over, tick_s if left_s is None else min(tick_s, left_s))
            tick_s = min(2 * tick_s, LAST_TICK_S)


class OnThisNode:
    """A request of the node's communicator, told in ranks of the whole group."""

    def __init__(self, letters: NodeLetters, request) -> None:
        self._letters = letters
        self._request = request

    def wait(self, timeout: float | None = None):
        """As `shmring.Request.wait`."""
        try:
            return self._letters.told_to_all(self._request.wait(timeout))
        except BrokenError as error:
            raise self._letters._broken_by(error) from error

    def exception(self, timeout: float | None = None):
        """As `shmring.Request.exception`."""
        return self._request.exception(timeout)

    def done(self) -> bool:
        """As `shmring.Request.done`."""
        return self._request.done()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """As `shmring.Request.add_done_callback`."""
        self._request.add_done_callback(lambda _: callback(self))


class _Post:
    """Letters to one rank."""

    def __init__(self, wire: Wire, peer: int) -> None:
        self._wire = wire
        self._peer = peer
        self._lock = threading.Lock()
        self._number = 0
        self._on_the_way: deque = deque()
        self.is_listened_to = False  # for sure

    def send(self, content: torch.Tensor, tag: int) -> tuple[int, Any]:
        """Send a message; its number, and what is under way if the content awaits being taken."""
        is_short = content.nbytes <= SHORT_NBYTES
        with self._lock:  # letters are to go in the order of their numbers
            self._number += 1
            number = self._number
            numbers = (_MESSAGE, number, tag, content.nbytes, _code(content))
            self._send_letter(numbers, content.view(torch.uint8) if is_short else content.view(torch.uint8)[:0])
            work = None if is_short else self._wire.send(content, self._peer, _slot(number))
        return number, work

    def confirm(self, number: int) -> None:
        """Say that the content of a letter has been taken."""
        self._send_letter((_TAKEN, number, 0, 0, 0), torch.empty(0, dtype=torch.uint8))

    def say_goodbye(self, left_s: float) -> None:
        """Say that nothing more will come, once the other side has listened to all that was sent before."""
        self.flush(left_s)
        if self.is_listened_to:  # else nobody might ever take it
            self._send_letter((_GOODBYE, 0, 0, 0, 0), torch.empty(0, dtype=torch.uint8))
            self.flush(left_s)

    def _send_letter(self, numbers: tuple[int, ...], content: torch.Tensor) -> None:
        letter = torch.cat([torch.tensor(numbers).view(torch.uint8), content])
        self._on_the_way.append(self._wire.send(letter, self._peer, LETTER))

    def wait_for_room(self, left_s: float | None) -> None:
        """Wait until the other side has not too many letters to listen to."""
        self._wait_for_all_but(MOST_ON_THE_WAY, left_s)

    def flush(self, left_s: float | None) -> None:
        """Wait until the other side has listened to all."""
        self._wait_for_all_but(0, left_s)

    def _wait_for_all_but(self, most: int, left_s: float | None) -> None:
        with suppress(IndexError):  # several threads may be at it
            while len(self._on_the_way) > most:
                self._wire.wait(self._on_the_way.popleft(), self._peer, left_s)
                self.is_listened_to = True


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
        self._posts = {r: _Post(self.wire, r) for r in strangers}

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
                room = torch.empty(_HEAD_NBYTES + SHORT_NBYTES, dtype=torch.uint8)
                self.wire.wait(self.wire.recv(room, peer, LETTER), peer)
                kind, number, tag, nbytes, code = room[:_HEAD_NBYTES].view(torch.int64).tolist()
                self._posts[peer].is_listened_to = True
                if kind == _GOODBYE:
                    self._left.add(peer)
                    continue
                if kind == _TAKEN:
                    with self.news:
                        request = self._not_taken.pop((peer, number))
                    request.end()
                    continue
                content = room[_HEAD_NBYTES:][:nbytes] if nbytes <= SHORT_NBYTES else None
                self._match(arrived=[Letter(peer, tag, nbytes, code, number, content)])
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
                self.wire.wait(self.wire.recv(part, letter.source, _slot(letter.number)), letter.source)
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


def _code(x: torch.Tensor) -> int:
    return DTYPE_CODES[str(x.dtype).removeprefix("torch.")]


def _slot(number: int) -> int:
    return LETTER_CONTENT + number % _NNUMBERS
