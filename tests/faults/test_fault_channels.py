"""Ends of channels, fan-ins, broadcasts and queues killed at every step, in the build with injection points.

Nothing is torn, and each end that is left notices and continues.

All of one kind run in one process of that build, which forks those that die.
"""

import multiprocessing.connection
import os
import queue
import random
import signal
import time
from itertools import count

import numpy as np
import pytest
from fault_points import IN_CHANNELS
from support.children import in_child, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE
from support.on_ranks import on_processes

import shmring
from shmring import EndOfStreamError, PeerLostError

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("injection_points")]

PASSES = (1, 2, 5, 12)


# One process, whose waits sleep at once, so that they come to the points of sleeping and waking.
in_that_build = on_processes(1, env={"SHMRING_SPIN_US": "0"})


def doomed(moment, function):
    """Run in a child that is killed at that moment."""

    def run():
        os.environ["SHMRING_FAULT"] = f"{moment}:9"
        function()

    return in_child(run)


def moments(end):
    """Each point of theirs, at several passes."""
    return [f"{point}@{n}" for point in IN_CHANNELS[end].split() for n in PASSES]


def assert_killed(pid, moment):
    status = status_of(pid)
    assert status == -9, f"it lived past {moment}, and ended with status {status}"


def content(number):
    """Short, middling and longer than the ring, by turns."""
    return number.to_bytes(8, "little") * (1, 20, 1, 1000)[number % 4]


SENDING, RECEIVING = 0, 1


def pause(doing, number):
    """First the sending end is behind, for fifty messages, then the receiving one: each has to wait, on any machine."""
    if number // 50 % 2 == doing:
        time.sleep(0.001 * random.random())


def send_all(send):
    """All that can be sent before the end: the busier the machine, the longer until an end sleeps."""
    for number in count():
        send(content(number))
        pause(SENDING, number)


def receive_prefix(receiver):
    """All messages that a lost sender had sent."""
    got = 0
    with pytest.raises(PeerLostError):
        while True:
            assert receiver.recv(60) == content(got)
            pause(RECEIVING, got)
            got += 1
    return got


@in_that_build
def test_a_sender_killed_at_any_step_has_sent_whole_messages(rank):
    for moment in moments("sender"):
        sender, receiver = shmring.channel(1 << 12)
        pid = doomed(moment, lambda sender=sender: send_all(sender.send))
        receive_prefix(receiver)
        assert_killed(pid, moment)


@in_that_build
def test_a_message_is_published_by_one_store_and_not_before(rank):
    for moment, nsent in (("announce@1", 0), ("announce@7", 6), ("announced@1", 1), ("announced@7", 7)):
        sender, receiver = shmring.channel()
        pid = doomed(moment, lambda sender=sender: [sender.send_object(i) for i in range(10)])
        assert_killed(pid, moment)
        assert [receiver.recv(60) for _ in range(nsent)] == list(range(nsent))
        with pytest.raises(PeerLostError):
            receiver.recv(60)


@in_that_build
def test_a_receiver_killed_at_any_step_is_lost_to_its_sender(rank):
    for moment in moments("receiver"):
        sender, receiver = shmring.channel(1 << 12)

        def listen(receiver=receiver):
            for number, _ in enumerate(receiver):
                pause(RECEIVING, number)

        pid = doomed(moment, listen)
        with pytest.raises(PeerLostError):
            send_all(lambda message, sender=sender: sender.send(message, 60))
        assert_killed(pid, moment)


@in_that_build
def test_the_receiver_after_a_killed_one_gets_the_messages_that_were_not_released(rank):
    for moment, first in (("give@1", 0), ("give@3", 2), ("given@1", 1), ("given@3", 3)):
        name = f"{moment}-{os.getpid()}-{random.random()}"
        with shmring.open_channel(name, "sender") as sender:
            for number in range(6):
                sender.send_object(number)
            pid = doomed(moment, lambda name=name: list(shmring.open_channel(name, "receiver")))
            assert_killed(pid, moment)
            with shmring.open_channel(name, "receiver") as receiver:
                sender.send_object(6)
                assert [receiver.recv(60) for _ in range(7 - first)] == list(range(first, 7))


@in_that_build
def test_a_receiver_killed_where_it_may_be_disconnected_does_not_hold_up_its_sender(rank):
    for moment in moments("disconnected receiver"):
        sender, (receiver,) = shmring.broadcast_channel(1, 1 << 10, slow_timeout=60 * PATIENCE)
        pid = doomed(moment, lambda receiver=receiver: list(receiver))
        with pytest.raises(PeerLostError):
            while True:
                sender.send(bytes(40))
        assert_killed(pid, moment)


@in_that_build
def test_a_sender_killed_while_it_disconnects_a_receiver_leaves_whole_messages_to_the_others(rank):
    for point in IN_CHANNELS["disconnecting sender"].split():
        moment = f"{point}@1"  # there is one receiver to disconnect
        sender, (receiver, _) = shmring.broadcast_channel(2, 1 << 10, slow_timeout=0.3 * PATIENCE)
        pid = doomed(moment, lambda sender=sender: [sender.send(np.full(5, i), 60 * PATIENCE) for i in count()])
        got = []
        with pytest.raises(PeerLostError):
            while True:
                array = receiver.recv(60)
                assert (array == array[0]).all()
                got.append(int(array[0]))
        assert_killed(pid, moment)
        assert got == list(range(len(got)))


def count_to_fifty(sender):
    with sender:
        for number in range(50):
            sender.send_object(number)


@in_that_build
def test_one_sender_of_a_fan_in_killed_at_any_step_takes_nothing_from_the_others(rank):
    for moment in moments("sender"):
        senders, receiver = shmring.fan_in(2, 1 << 12)
        healthy = in_child(count_to_fifty, senders[1])
        pid = doomed(moment, lambda senders=senders: send_all(senders[0].send))
        seen, lost = [0, 0], []
        with pytest.raises(EndOfStreamError):
            while True:
                try:
                    index, message = receiver.recv_from(60)
                except PeerLostError as error:
                    lost.append(error.rank)
                    continue
                assert message == (seen[1] if index else content(seen[0]))
                pause(RECEIVING, seen[0])
                seen[index] += 1
        assert lost == [0]
        assert seen[1] == 50
        assert status_of(healthy) == 0
        assert_killed(pid, moment)


@in_that_build
def test_the_sender_of_a_broadcast_killed_at_any_step_has_sent_whole_messages_to_each(rank):
    for moment in moments("broadcast sender"):
        sender, receivers = shmring.broadcast_channel(2, 1 << 12)
        other = in_child(lambda receivers=receivers: receive_prefix(receivers[1]))
        pid = doomed(moment, lambda sender=sender: send_all(sender.send))
        receive_prefix(receivers[0])
        assert status_of(other) == 0
        assert_killed(pid, moment)


# ---- queues ----------------------------------------------------------------------------------------------------------


def assert_queue_goes_on(q, rest):
    """It is empty, knows so, takes and gives, and its descriptor shows what is in it."""
    q.put("on", timeout=60 * PATIENCE)
    while (item := q.get(timeout=60 * PATIENCE)) != "on":
        rest.append(item)
    assert q.empty()
    assert q.qsize() == 0
    q.put(bytes(20_000) if q.full() else "once more", timeout=60 * PATIENCE)
    assert multiprocessing.connection.wait([q], 60 * PATIENCE) == [q]
    assert q.get(timeout=60 * PATIENCE) == "once more"
    assert multiprocessing.connection.wait([q], 0) == []


@needs_marks
@in_that_build
def test_a_producer_of_a_queue_killed_at_any_step_takes_nothing_with_it(rank):
    for moment in moments("putter"):
        if moment.startswith("retract"):
            continue
        q = shmring.Queue(capacity_nbytes=1 << 12)
        q.fileno()  # so that consumers clear the signal
        pid = doomed(moment, lambda q=q: send_all(q.put))
        got, is_over = [], False
        while not is_over:
            is_over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            try:
                while True:
                    got.append(q.get(timeout=0.02))
                    pause(RECEIVING, len(got))
            except queue.Empty:
                pass
        assert_killed(pid, moment)
        assert_queue_goes_on(q, got)
        assert got == [content(number) for number in range(len(got))]


@needs_marks
@in_that_build
def test_a_producer_killed_as_it_takes_over_the_lock_of_a_dead_one_leaves_it_to_the_next(rank):
    q = shmring.Queue(capacity_nbytes=1 << 12)
    for moment in ("putting@1", "inherit@1"):
        assert_killed(doomed(moment, lambda: send_all(q.put)), moment)
    assert_queue_goes_on(q, [])


@needs_marks
@in_that_build
def test_a_producer_killed_while_it_clears_away_what_was_given_up_takes_nothing_with_it(rank):
    for n in (1, 2):
        q = shmring.Queue(capacity_nbytes=1 << 10)
        q.put("first")

        def give_up(q=q):
            while True:
                with pytest.raises(queue.Full):
                    q.put(bytes(10_000), timeout=0.01)
                q.put("short", timeout=60 * PATIENCE)

        assert_killed(doomed(f"retract@{n}", give_up), f"retract@{n}")
        got = []
        assert_queue_goes_on(q, got)
        assert got == ["first"] + ["short"] * (n - 1)


@needs_marks
@in_that_build
def test_a_consumer_of_a_queue_killed_at_any_step_leaves_the_rest_in_order(rank):
    for moment in moments("getter"):
        q = shmring.Queue(capacity_nbytes=1 << 12)
        q.fileno()

        def listen(q=q):
            for number in count():
                assert len(q.get()) >= 8
                pause(RECEIVING, number)

        pid = doomed(moment, listen)
        put, is_over = 0, False
        while not is_over:
            is_over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            try:
                while True:
                    q.put(content(put), timeout=0.02)
                    put += 1
                    pause(SENDING, put)
            except queue.Full:
                pass
        assert_killed(pid, moment)
        rest, left = [], q.qsize()
        while not q.empty():
            rest.append(q.get(timeout=1))
        assert len(rest) == left  # what the one killed had taken counts as taken
        assert rest == [content(number) for number in range(put - len(rest), put)]
        assert_queue_goes_on(q, rest)


@needs_marks
@in_that_build
def test_a_producer_finds_room_where_the_only_consumer_was_killed_in_the_middle_of_an_item(rank):
    ncomplete = 0
    for n in range(1, 9):
        for nbytes in range(4_500, 8_000, 500):
            q = shmring.Queue(capacity_nbytes=1 << 12)
            pid = doomed(f"given@{n}", q.get)
            try:
                q.put(bytes(nbytes), timeout=0.05)
            except queue.Full:  # there was no room of the pieces that it had not got
                os.kill(pid, signal.SIGKILL)
                status_of(pid)
            else:
                ncomplete += 1
                if status_of(pid) == -9:
                    assert q.empty()
                    q.put(bytes(3_000), timeout=60 * PATIENCE)
                    assert len(q.get(timeout=60 * PATIENCE)) == 3_000
            assert_queue_goes_on(q, [])
    assert ncomplete


# ---- latest values ---------------------------------------------------------------------------------------------------


def value(number):
    """One with a block and one without by turns; both have an array."""
    array = np.full(5000, number)
    return (number, array, shmring.Block(array)) if number % 2 else (number, array)


def assert_whole(item):
    for array in item[1:]:
        assert (np.asarray(array) == item[0]).all()


def assert_latest_goes_on(latest, first):
    """Its writers write and its readers read; as many leases as there may be are not overwritten."""
    leases = []
    for number in range(first, first + 20):
        assert latest.write(value(number), timeout=60 * PATIENCE) == number
        found = latest.read()
        assert found[0] == number
        assert_whole(found)
        if len(leases) < 4:
            leases.append(latest.lease())
    for number, lease in enumerate(leases, first):
        assert lease.object[0] == number
        assert_whole(lease.object)
        lease.release()


@needs_marks
@in_that_build
def test_a_writer_of_a_latest_value_killed_at_any_step_leaves_the_last_whole_one(rank):
    for moment in moments("writer of a latest value"):
        latest = shmring.Latest()
        pid = doomed(moment, lambda latest=latest: [latest.write(value(number)) for number in count(1)])
        assert_killed(pid, moment)
        point, _, number = moment.partition("@")
        assert latest.version == int(number) - (point != "newest")
        if latest.version % 2:
            with pytest.raises(shmring.BlockLostError, match=f"process {pid}, which held it, has ended"):
                latest.read(0)
        elif latest.version:
            assert_whole(latest.read(0))
        assert_latest_goes_on(latest, latest.version + 1)


@needs_marks
@in_that_build
def test_a_reader_of_a_latest_value_killed_with_a_lease_leaves_its_place_to_others(rank):
    for moment in moments("reader of a latest value"):
        latest = shmring.Latest()
        latest.write(value(1))

        def read(latest=latest):
            while True:
                with latest.lease() as lease:
                    assert_whole(lease.object)

        for _ in range(6):  # more than may lease at a time
            assert_killed(doomed(moment, read), moment)
        assert_latest_goes_on(latest, 2)
