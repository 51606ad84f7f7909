"""Blocks in named queues and channels, broadcasts and latest values: the process that sent them holds them."""

import gc
import os
import secrets
import signal
import time

import numpy as np
import pytest
from support.children import in_child, kill, status_of

import shmring
from shmring.core.blocks import pages as block_pages
from shmring.errors import BlockLostError

COUNT = 4


@pytest.fixture
def name():
    return f"shelf {secrets.token_hex(4)}"


def contents(number):
    return np.full(100_000, number)


def require(item, number):
    assert item[0] == number
    np.testing.assert_array_equal(item[1].array, contents(number))


def eventually_one_block_less(before):
    """Wait until this process holds no block that it did not hold before."""
    gc.collect()
    while blocks_here() > before:
        time.sleep(0.01)


def blocks_here():
    block_pages.give_back()
    links = (os.path.join("/proc/self/fd", one) for one in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and os.readlink(link) == block_pages.TARGET for link in links)


class Ends:
    """Both ends of something, each opened by the process that first uses it."""

    def __init__(self, kind, name):
        self.kind, self.name = kind, name
        self.here = shmring.Queue(name=name) if kind == "queue" else None
        self.sender = self.receiver = None
        if kind == "broadcast":
            self.sender, (self.receiver,) = shmring.broadcast_channel(1)

    def send(self, item):
        if self.kind == "queue":
            return self.here.put(item)
        self.sender = self.sender or shmring.open_channel(self.name, "sender")
        return self.sender.send_object(item)

    def open_receiver(self):
        self.receiver = self.receiver or shmring.open_channel(self.name, "receiver")

    def receive(self):
        if self.kind == "queue":
            return self.here.get()
        self.open_receiver()
        return self.receiver.recv()

    def close(self):
        for end in (self.here, self.sender, self.receiver):
            if end is not None:
                end.close()


@pytest.mark.parametrize("kind", ["queue", "channel", "broadcast"])
def test_blocks_live_until_they_are_taken_though_their_sender_has_dropped_them(kind, name):
    before = blocks_here()
    ends = Ends(kind, name)
    for number in range(COUNT):
        ends.send((number, shmring.Block(contents(number))))
    assert blocks_here() == before + COUNT
    go = shmring.Queue()

    def taker():
        go.get()
        for number in range(COUNT):
            require(ends.receive(), number)

    pid = in_child(taker)
    for number in range(COUNT):  # their memory is not used again
        shmring.Block(contents(number + 50)).close()
    go.put(None)
    assert status_of(pid) == 0
    eventually_one_block_less(before)
    ends.close()


@pytest.mark.parametrize("kind", ["queue", "channel", "broadcast"])
def test_a_sender_that_has_ended_is_a_lost_block_and_the_next_item_comes(kind, name):
    ends = Ends(kind, name)
    if kind != "queue":
        ends.open_receiver()
    pid = in_child(lambda: ends.send((1, shmring.Block(contents(1)))))
    assert status_of(pid) == 0
    with pytest.raises(BlockLostError, match=f"process {pid}, which held it, has ended") as caught:
        ends.receive()
    assert caught.value.pid == pid
    if kind != "broadcast":  # another process may send
        ends.send((2, shmring.Block(contents(2))))
        require(ends.receive(), 2)
    ends.close()


def test_what_nobody_can_take_any_more_is_let_go(name):
    before = blocks_here()
    queue = shmring.Queue(name=name)
    queue.put(shmring.Block(contents(1)))
    queue.close()
    del queue
    eventually_one_block_less(before)
    sender, receivers = shmring.broadcast_channel(2)
    sender.send_object(shmring.Block(contents(1)))
    for receiver in receivers:
        assert blocks_here() == before + 1
        receiver.take().close()
    eventually_one_block_less(before)
    sender.close()


def test_every_receiver_of_a_broadcast_gets_it():
    sender, receivers = shmring.broadcast_channel(3)

    def take(receiver):
        for number in range(COUNT):
            require(receiver.recv(), number)

    pids = [in_child(take, receiver) for receiver in receivers]
    for number in range(COUNT):
        sender.send_object((number, shmring.Block(contents(number))))
    assert [status_of(pid) for pid in pids] == [0, 0, 0]
    sender.close()


# -- latest values ----------------------------------------------------------------------------------------------------


def test_the_newest_value_is_held_until_there_is_a_newer_one():
    before = blocks_here()
    latest = shmring.Latest()
    for number in range(COUNT):
        latest.write((number, shmring.Block(contents(number))))
    for _ in range(2):
        require(latest.read(), COUNT - 1)
    with latest.lease() as lease:
        value = lease.object
        latest.write("newer")
        require(lease.object, COUNT - 1)
        require(value, COUNT - 1)
    del value
    eventually_one_block_less(before)
    latest.write(shmring.Block(contents(1)))
    latest.close()
    eventually_one_block_less(before)


def test_a_reader_of_a_latest_value_never_finds_a_lost_block_while_the_writer_lives():
    latest, rounds = shmring.Latest(), 300

    def reader():
        version = 0
        while version < rounds:
            (number, block), version = latest.read_version(after=version)
            assert (block.array == number % 100).all()
            with latest.lease() as lease:
                number, block = lease.object
                assert (block.array == number % 100).all()
            del block

    pids = [in_child(reader) for _ in range(2)]
    for number in range(rounds):
        latest.write((number, shmring.Block(contents(number % 100))))
    assert [status_of(pid) for pid in pids] == [0, 0]
    latest.close()


def test_a_writer_of_a_latest_value_that_has_ended_is_a_lost_block(name):
    latest, ready = shmring.Latest(name=name), shmring.Queue()

    def writer():
        with shmring.Latest(name=name) as mine:
            mine.write(shmring.Block(contents(1)))
            ready.put(mine.version)
            signal.pause()

    pid = in_child(writer)
    ready.get()
    np.testing.assert_array_equal(latest.read().array, contents(1))
    kill(pid)
    for read in (latest.read, latest.lease):
        with pytest.raises(BlockLostError, match=f"process {pid}, which held it, has ended"):
            read()
    latest.write(shmring.Block(contents(2)))
    np.testing.assert_array_equal(latest.read().array, contents(2))
    latest.close()
