"""Messages over several nodes, of two ranks in one process, on a wire that delivers at once."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from shmring.errors import (
    ClosedError,
    MessageError,
    MessageTimeoutError,
    MessageTooLongError,
    ObjectError,
    PeerLostError,
)
from shmring.nodes.messages import NodesMessages
from shmring.nodes.wire import SHORT_NBYTES, Channel
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG

MOST_SHORT = 64  # of shmring.torch.messages, which needs torch
LONG = SHORT_NBYTES + 1
FOREVER = -1
SOON = 1_000_000  # nanoseconds


class Wire:
    """That of one rank; ``wires`` has those of all."""

    def __init__(self, rank, wires, content):
        self.rank, self._wires, self._content = rank, wires, content
        self.inbox = deque()
        self.lost = None

    def send(self, data, peer, channel, number=0):
        if channel == Channel.ENVELOPE:
            self._wires[peer].inbox.append((data.copy(), self.rank))
        else:
            self._content[self.rank, peer, number] = data

    def recv(self, data, peer, channel, number=0):
        data[:] = self._content.pop((peer, self.rank, number))

    def wait(self, work, peer, left_s=None):
        pass

    def poll(self):
        pass

    def listen(self, lost):
        self.lost = lost

    def has_left(self, peer):
        return True


class Group:
    """What messages need of a communicator."""

    name, size, is_closed, is_inherited, is_broken = "group", 2, False, False, False

    def __init__(self, rank):
        self.rank = rank
        self.config = SimpleNamespace(allow_pickle=True, timeout=None)

    def check_usable(self):
        if self.is_closed:
            raise ClosedError("this communicator is closed")
        if self.is_inherited:
            raise ClosedError("this communicator belongs to the parent process")

    def check_node(self):
        pass


@pytest.fixture
def ranks():
    wires, content = [], {}
    wires += [Wire(rank, wires, content) for rank in range(2)]
    return [NodesMessages(Group(rank), wire) for rank, wire in enumerate(wires)]


def received(messages, count, src=ANY_SOURCE, tag=ANY_TAG):
    x = np.zeros(count, np.uint8)
    message = messages.recv(x, src, tag, FOREVER)
    return message.source, message.tag, message.nbytes, int(x[0]) if count else None


@pytest.mark.parametrize("count", [0, 1, SHORT_NBYTES, LONG, 1_000_000])
@pytest.mark.parametrize("peer", [0, 1])
def test_a_message_arrives_with_its_source_tag_and_content(ranks, count, peer):
    request = ranks[0].isend(np.full(count, 7, np.uint8), peer, 3)
    assert received(ranks[peer], count) == (0, 3, count, 7 if count else None)
    request.wait(60)


def test_a_message_that_does_not_fit_keeps_its_place(ranks):
    ranks[0].send(np.zeros(1, np.uint8), 1, 0, FOREVER)
    ranks[0].send(np.ones(100, np.uint8), 1, 1, FOREVER)
    ranks[0].send(np.ones(2), 1, 2, FOREVER)
    with pytest.raises(MessageTooLongError):
        received(ranks[1], 1, tag=1)
    with pytest.raises(TypeError, match="of float64"):
        received(ranks[1], 100, tag=2)
    assert received(ranks[1], 100)[1] == 0
    assert received(ranks[1], 100)[1] == 1
    assert ranks[1].probe(0, ANY_TAG, SOON).dtype == "float64"


def test_a_probe_without_a_message_is_none_and_a_receive_is_withdrawn(ranks):
    assert ranks[1].probe(ANY_SOURCE, ANY_TAG, 0) is None
    assert ranks[1].probe(0, 5, SOON) is None
    with pytest.raises(MessageTimeoutError):
        ranks[1].recv(np.zeros(1, np.uint8), 0, ANY_TAG, SOON)
    ranks[0].send(np.ones(1, np.uint8), 1, 0, FOREVER)
    assert received(ranks[1], 1)[3] == 1  # not by the receive that was late


def test_receives_that_match_the_same_messages_get_them_in_order(ranks):
    xs = [np.zeros(1, np.uint8) for _ in range(3)]
    of = [(ANY_SOURCE, 1), (0, ANY_TAG), (0, 1)]
    requests = [ranks[1].irecv(x, src, tag) for x, (src, tag) in zip(xs, of, strict=True)]
    for k in range(3):
        ranks[0].send(np.full(1, k, np.uint8), 1, 1, FOREVER)
    assert [request.wait(60).source for request in requests] == [0, 0, 0]
    assert [int(x[0]) for x in xs] == [0, 1, 2]


def test_sends_to_a_rank_that_reads_nothing_are_not_done_and_nothing_blocks(ranks):
    requests = [ranks[0].isend(np.full(1, k % 256, np.uint8), 1, 0) for k in range(500)]
    ndone = sum(request.done() for request in requests)
    assert 1 <= ndone < 300
    with pytest.raises(MessageTimeoutError):
        requests[-1].wait(0.001)
    for k in range(500):
        assert received(ranks[1], 1)[3] == k % 256
    assert all(request.done() for request in requests)


def test_some_dozen_short_sends_are_done_before_their_receiver_reads_again(ranks):
    """A torch program counts on it that has so many receives under way and is in a collective."""
    for k in range(40):
        ranks[0].isend(np.full(1, k, np.uint8), 1, 0)
        assert received(ranks[1], 1)[3] == k
    assert all(ranks[0].isend(np.ones(1, np.uint8), 1, 0).done() for _ in range(MOST_SHORT))
    for _ in range(MOST_SHORT):
        received(ranks[1], 1)


def test_a_long_send_is_done_once_it_is_received(ranks):
    request, called = ranks[0].isend(np.ones(LONG, np.uint8), 1, 0), []
    request.add_done_callback(called.append)
    assert not request.done()
    received(ranks[1], LONG)
    assert request.result(60) is None
    assert request.exception() is None
    assert called == [request]


def test_sendrecv_with_itself_and_its_mistakes(ranks):
    x, out = np.ones(3), np.zeros(3)
    assert ranks[0].sendrecv(x, 0, 4, out, 0, 4, FOREVER).tag == 4
    assert (out == 1).all()
    with pytest.raises(ValueError, match="overlap"):
        ranks[0].sendrecv(x, 0, 0, x[1:], 0, 0, FOREVER)
    with pytest.raises(ValueError, match="dst=2"):
        ranks[0].sendrecv(x, 2, 0, out, 0, 0, FOREVER)
    with pytest.raises(ValueError, match="tag=-1"):
        ranks[0].isend(x, 1, -1)


def test_objects(ranks):
    ranks[0].send_object("small", 1, 2, FOREVER)
    with pytest.raises(TypeError, match="recv_object"):
        received(ranks[1], 1)
    assert ranks[1].recv_object(0, 2, FOREVER) == "small"
    with pytest.raises(MessageTimeoutError):
        ranks[1].recv_object(0, 1, SOON)
    with pytest.raises(MessageTimeoutError, match="still under way"):
        ranks[0].send_object({"big": np.arange(100_000), "small": np.arange(3)}, 1, 2, SOON)
    found = ranks[1].recv_object(0, ANY_TAG, FOREVER)
    assert (found["big"] == np.arange(100_000)).all()
    assert (found["small"] == np.arange(3)).all()
    ranks[0].send(np.ones(1), 1, 0, FOREVER)
    with pytest.raises(MessageError, match="not an object"):
        ranks[1].recv_object(0, ANY_TAG, FOREVER)
    with pytest.raises(ObjectError, match="rank 0 cannot pickle"):
        ranks[0].send_object(lambda: 0, 1, 0, FOREVER)


def test_a_rank_that_has_left_fails_its_receives_and_sends_but_not_what_it_sent(ranks):
    ranks[0].send(np.full(1, 5, np.uint8), 1, 1, FOREVER)
    request, send = ranks[1].irecv(np.zeros(1), 0, 9), ranks[1].isend(np.ones(LONG), 0, 0)
    ranks[1].note_lost(0, None)
    for one in (request, send):
        with pytest.raises(PeerLostError, match="rank 0 has left"):
            one.wait(60)
    assert received(ranks[1], 1, 0)[3] == 5
    with pytest.raises(PeerLostError):
        received(ranks[1], 1, 0)
    with pytest.raises(PeerLostError):
        ranks[1].isend(np.ones(1), 0, 0)
    assert ranks[1].probe(ANY_SOURCE, ANY_TAG, SOON) is None


def test_a_sendrecv_whose_send_is_refused_receives_nothing_later(ranks):
    ranks[1].note_lost(0, None)
    out = np.zeros(1, np.uint8)
    with pytest.raises(PeerLostError):
        ranks[1].sendrecv(np.ones(1, np.uint8), 0, 0, out, 1, 5, FOREVER)
    ranks[1].send(np.full(1, 9, np.uint8), 1, 5, FOREVER)
    assert received(ranks[1], 1, 1, 5)[3] == 9
    assert out[0] == 0


@pytest.mark.parametrize("call", [
    lambda m: m.recv(np.zeros(1), 1, 7, FOREVER),
    lambda m: m.probe(ANY_SOURCE, 7, FOREVER),
    lambda m: m.irecv(np.zeros(1), ANY_SOURCE, 7).wait(),
    lambda m: m.isend(np.zeros(LONG), 1, 7).result(),
    lambda m: m.recv_object(1, 7, FOREVER),
])  # fmt: skip
def test_a_call_that_waits_raises_once_another_thread_has_closed_the_communicator(ranks, call, monkeypatch):
    waits = threading.Event()
    original = Group.check_node

    def check_node(self):  # called while a thread waits
        waits.set()
        original(self)

    monkeypatch.setattr(Group, "check_node", check_node)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, ranks[0])
        assert waits.wait(60)
        monkeypatch.setattr(Group, "is_closed", True)
        with pytest.raises(ClosedError):
            waiting.result(60)


def test_a_request_that_a_forked_child_inherited_raises(ranks, monkeypatch):
    request = ranks[0].irecv(np.zeros(1), 1, 0)
    monkeypatch.setattr(Group, "is_inherited", True)
    ranks[0].turn.renew()
    with pytest.raises(ClosedError):
        request.wait(60)


def test_credits_that_come_while_this_rank_leaves_are_for_envelopes_that_it_waits_for(ranks):
    """A thread of the wire reads them until the connection ends."""
    for _ in range(40):
        ranks[0].send(np.zeros(1, np.uint8), 1, 0, FOREVER)
    for _ in range(40):
        received(ranks[1], 1)
    ranks[0].announce_leave()
    ranks[0].note_lost(1, None)
    with pytest.raises(PeerLostError):
        ranks[0].send(np.zeros(1), 1, 0, FOREVER)
