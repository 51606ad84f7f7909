"""A process is killed at each line of code that makes, sends, takes, hands on or closes blocks; the others go on."""

import contextlib
import os
import queue
import signal
import sys
import time

import numpy as np
import pytest
from support import harness
from support.children import in_child, status_of

import shmring
from shmring.core import blocks
from shmring.core.blocks import crate
from shmring.core.blocks import pages as block_pages
from shmring.errors import BlockLostError

CODE = os.path.dirname(blocks.__file__)
STEP = 29  # between the lines that are tried in a run; the seed says with which one it begins
SOON = 0.05  # seconds for what is there: no process is left that would put more


def killed_at(line, work):
    """Run ``work()``, and kill the process before this line of the code of blocks, counted from the start."""
    passed = 0

    def look(frame, event, _):
        nonlocal passed
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return look

    block_pages._sealing()
    sys.settrace(look)
    work()
    sys.settrace(None)
    return passed


def lines_of(work, seed):
    """The numbers of the lines before which to kill ``work``."""
    reader, writer = os.pipe()
    pid = in_child(lambda: os.write(writer, str(killed_at(0, work)).encode()))
    assert status_of(pid) == 0
    count = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert count > 50
    return range(1 + seed % STEP, count + 1, STEP)


def drain(items):
    """The numbers of all items that are left; every block is whole, or lost."""
    found = []
    while True:
        try:
            number, *held = items.get(timeout=SOON)
        except BlockLostError:
            continue
        except queue.Empty:
            if items.empty():
                return found
            continue
        for block in held:
            np.testing.assert_array_equal(block.array, contents(number))
        found.append(number)


def contents(number):
    return np.full(9000, number, np.uint8)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = harness.shared_names()
    block_pages.give_back()
    yield
    while block_pages._kept:
        time.sleep(0.01)
    block_pages.give_back()
    assert block_pages.TARGET not in harness.open_files().values()
    assert harness.shared_names() == before


def test_a_maker_is_killed_at_each_step(seed):
    items = shmring.Queue()

    def make():
        items.put((1, shmring.Block(contents(1))))
        filled = shmring.Block.empty(9000, np.uint8)
        filled.array[:] = 2
        items.put((2, filled.seal(), filled))
        filled.close()
        with shmring.Block(contents(3)) as block:
            items.put((3, block))

    for line in lines_of(make, seed):
        drain(items)
        pid = in_child(killed_at, line, make)
        assert status_of(pid) == -signal.SIGKILL
        found = drain(items)
        assert found == [1, 2, 3][: len(found)] or set(found) < {1, 2, 3}
        items.put((4, shmring.Block(contents(4))))  # the queue is usable
        assert drain(items) == [4]


def test_a_taker_that_hands_on_is_killed_at_each_step(seed):
    items, onwards = shmring.Queue(), shmring.Queue()

    def hand_on():
        for _ in range(3):
            number, block = items.get()
            block.array_copy_on_write()[0] = 9
            onwards.put((number, block))
            del block

    def put():
        for number in range(1, 4):
            items.put((number, shmring.Block(contents(number))))

    drain(onwards)
    put()
    for line in lines_of(hand_on, seed):
        drain(items)
        drain(onwards)
        put()
        pid = in_child(killed_at, line, hand_on)
        assert status_of(pid) == -signal.SIGKILL
        left, handed = drain(items), drain(onwards)
        assert left == sorted(left)
        assert handed == sorted(handed)
        assert not set(left) & set(handed)
        assert len(left) + len(handed) >= 2  # at most the item in hand went with its taker
        items.put((4, shmring.Block(contents(4))))
        assert drain(items) == [4]


def test_a_taker_killed_between_the_blocks_and_their_item_costs_that_item_alone(monkeypatch):
    """The item is still in the queue, without its blocks, and the next ones are whole."""
    items = shmring.Queue()
    for number in range(1, 4):
        items.put((number, shmring.Block(contents(number))))

    def take():
        monkeypatch.setattr(crate, "Arrival", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        items.get()

    assert status_of(in_child(take)) == -signal.SIGKILL
    with pytest.raises(BlockLostError, match="had taken it has ended"):
        items.get()
    assert drain(items) == [2, 3]


def test_writer_and_reader_of_a_latest_value_are_killed_at_each_step(seed):
    latest = shmring.Latest()

    def write():
        for number in range(1, 4):
            latest.write((number, shmring.Block(contents(number))))

    def read():
        for take in (latest.read, lambda: latest.lease().object):
            number, block = take()
            np.testing.assert_array_equal(block.array, contents(number))

    latest.write((9, shmring.Block(contents(9))))
    for work in (write, read):
        for line in lines_of(work, seed):
            assert status_of(in_child(killed_at, line, work)) == -signal.SIGKILL
            with contextlib.suppress(BlockLostError):
                read()
            latest.write((4, shmring.Block(contents(4))))
            assert latest.read()[0] == 4
            read()
    latest.close()


def test_all_are_killed(seed):
    """Maker and taker, at once: no process and no name has the memory any more."""
    before = harness.shared_names()

    def both():
        items = shmring.Queue()
        told = shmring.Queue()

        def take():
            held = [items.get() for _ in range(3)]
            told.put(len(held))
            signal.pause()

        pids = [in_child(take) for _ in range(2)]
        for number in range(10):
            items.put((number, shmring.Block(contents(number))))
        for _ in pids:
            told.get()
        os.killpg(0, signal.SIGKILL)

    def group():
        os.setpgid(0, 0)
        both()

    assert status_of(in_child(group)) == -signal.SIGKILL
    assert harness.shared_names() == before
