"""Channels with several senders or receivers: each message once, in its sender's order, fairly; an end that is slow or
dead does not block the others."""

import asyncio
import gc
import os
import pickle
import queue
import random
import signal
import threading
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE
from support.threads import at_once, beside

import shmring
from shmring import ClosedError, DisconnectedError, EndOfStreamError, PeerLostError, RoleTakenError, list_channels


def wait_for(condition):
    """Until it holds; the test's watchdog is pytest's."""
    while not condition():
        time.sleep(0.001)


# ---- fan-in ----


def send_numbers(sender, index, count, seed):
    """Send numbered messages of all kinds and lengths."""
    generator = random.Random(seed + index)
    with sender:
        for number in range(count):
            nbytes = generator.choice([8, 16, 100, 1000, 20_000])
            way = generator.random()
            if way < 0.6:
                sender.send(np.full(nbytes // 8, index << 32 | number))
            elif way < 0.8:
                sender.send_object((index, number))
            else:
                sender.send_many([(index << 32 | number).to_bytes(8, "little")])
            if generator.random() < 0.02:
                time.sleep(generator.random() / 300)


def read(message):
    """Whose it is, and which."""
    if isinstance(message, tuple):
        return message
    if isinstance(message, bytes):
        number = int.from_bytes(message, "little")
    else:
        number = int(message[0])
        assert (message == number).all()
    return number >> 32, number & 0xFFFFFFFF


@pytest.mark.parametrize("nsenders", [1, 2, 3, 7])
def test_a_fan_in_gives_each_message_once_and_those_of_a_sender_in_order(nsenders, seed):
    senders, receiver = shmring.fan_in(nsenders, 1 << 12)
    count = 400
    pids = [in_child(send_numbers, sender, i, count, seed) for i, sender in enumerate(senders)]
    seen = [0] * nsenders
    with receiver:
        for message in receiver:
            index, number = read(message)
            assert number == seen[index]
            assert receiver.last_sender == index
            seen[index] += 1
        assert receiver.peers == ["closed"] * nsenders
        assert receiver.peer_pids == pids
    assert seen == [count] * nsenders
    assert [status_of(pid) for pid in pids] == [0] * nsenders


def test_a_fan_in_takes_turns():
    senders, receiver = shmring.fan_in(3)
    for sender in senders[:2]:
        sender.send_many([b"x"] * 10)
    order = [receiver.recv_from() for _ in range(6)]
    assert order == [(0, b"x"), (1, b"x")] * 3
    senders[2].send(b"late")
    assert (2, b"late") in [receiver.recv_from() for _ in range(3)]
    assert len(receiver) == 20 - 8


def test_a_fan_in_of_records_gives_arrays_of_one_sender_each():
    kind = np.dtype([("sender", "i4"), ("what", "f8")])
    senders, receiver = shmring.fan_in(2, 1 << 12, dtype=kind)
    for i, sender in enumerate(senders):
        batch = np.zeros(5, kind)
        batch["sender"] = i
        sender.send_many(batch)
    first, second = receiver.next_ready().recv_many(), receiver.next_ready().recv_many()
    assert {int(first["sender"][0]), int(second["sender"][0])} == {0, 1}
    assert len(first) == len(second) == 5
    senders[1].send((7, 0.5))
    assert receiver.recv(10)["sender"] == 7
    out = np.zeros(4, kind)
    senders[0].send((8, 0.5))
    assert receiver.next_ready(10).recv_into(out) == 1
    assert out["sender"][0] == 8


def test_a_dead_sender_is_reported_once_after_what_it_committed_and_the_others_go_on():
    senders, receiver = shmring.fan_in(3)
    reader, writer = os.pipe()

    def die():
        for i in range(5):
            senders[1].send_object(i)
        os.write(writer, b"x")
        signal.pause()

    pid = in_child(die)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    kill(pid)
    os.close(reader)
    senders[0].send(b"alive")
    got = [receiver.recv(30) for _ in range(6)]
    assert sorted(x for x in got if x != b"alive") == list(range(5))
    with pytest.raises(PeerLostError, match=str(pid)) as caught:
        receiver.recv(30)
    assert caught.value.rank == 1
    assert caught.value.pid == pid
    with pytest.raises(queue.Empty):
        receiver.recv(0)
    senders[0].send(b"on")
    assert receiver.recv(30) == b"on"
    for i in (0, 2):
        senders[i].take().close()
    with pytest.raises(EndOfStreamError):
        receiver.recv(30)


def test_the_place_of_a_dead_sender_is_taken_by_a_new_one():
    (dying, other), receiver = shmring.fan_in(2)
    pid = in_child(lambda: (dying.send(b"last"), signal.pause()))
    assert receiver.recv_from(60 * PATIENCE) == (0, b"last")
    with pytest.raises(ValueError, match="'here'"):
        receiver.new_sender(0)
    kill(pid)
    with pytest.raises(PeerLostError):
        receiver.recv(60 * PATIENCE)
    for number in (-1, 2, "0"):
        with pytest.raises(ValueError, match="must be from 0 to 1"):
            receiver.new_sender(number)
    successor = receiver.new_sender(0)
    with pytest.raises(ValueError, match="'absent'"):
        receiver.new_sender(0)
    pid = in_child(lambda: (successor.send(b"again"), successor.close()))
    other.send(b"on")
    assert sorted(receiver.recv_from(60 * PATIENCE) for _ in range(2)) == [(0, b"again"), (1, b"on")]
    assert status_of(pid) == 0
    other.close()
    with pytest.raises(EndOfStreamError):
        receiver.recv(60 * PATIENCE)
    receiver.new_sender(1).send(b"after the end")
    assert receiver.recv_from(60 * PATIENCE) == (1, b"after the end")
    receiver.close()


def test_a_sender_in_the_middle_of_a_long_message_delays_no_other():
    senders, receiver = shmring.fan_in(2, 1 << 12)
    pid = in_child(lambda: (senders[0].send(bytes(1 << 20)), senders[0].close()))
    wait_for(lambda: receiver.peers[0] == "here")
    time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    senders[1].send(b"short")
    assert receiver.recv(30) == b"short"
    os.kill(pid, signal.SIGCONT)
    assert receiver.recv(30) == bytes(1 << 20)
    assert status_of(pid) == 0


def test_a_fan_in_sleeps_and_is_woken_by_any_sender():
    senders, receiver = shmring.fan_in(4)
    for sender in random.sample(senders, 4):
        with beside(lambda sender=sender: (time.sleep(0.05), sender.send(b"wake"))):
            assert receiver.recv(30) == b"wake"
    used = time.process_time()
    with pytest.raises(queue.Empty):
        receiver.recv(0.3)
    print(f"{time.process_time() - used:.4f} s of processor time in 0.3 s of waiting")


def test_a_sender_wakes_the_receiver_of_a_fan_in_between_two_ticks(monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")
    (sender, _), receiver = shmring.fan_in(2)
    # Ticks double from 1 ms on: they end after 0.5 s, 1.0 s, 2.1 s, ... A machine may be late itself now and then.
    for sent_s, late_s in ((0.55, 0.95), (1.1, 1.9), (2.2, 3.7), (4.4, 7.9), (8.6, 16.0)):
        late = threading.Timer(late_s, lambda: None)
        timers = [threading.Timer(sent_s, sender.send, (b"wake",)), late]
        for timer in timers:
            timer.start()
        assert receiver.recv(30) == b"wake"
        is_late = late.finished.is_set()
        late.cancel()
        for timer in timers:
            timer.join()
        if not is_late:
            return
    pytest.fail("the receiver slept on until its tick was over")


def test_a_fan_in_lends_and_polls():
    senders, receiver = shmring.fan_in(2)
    assert not receiver.poll()
    senders[1].send(np.arange(5.0))
    assert receiver.poll(10)
    ready = receiver.next_ready(0)
    assert receiver.last_sender == 1
    lease = ready.peek()
    assert lease.array.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="lease"):
        receiver.recv(0)
    ready.release()
    assert not receiver.poll()
    with pytest.raises(queue.Empty):
        receiver.next_ready(0)


def test_a_message_that_poll_has_assembled_is_received():
    senders, receiver = shmring.fan_in(2, 1 << 16)
    pid = in_child(lambda: (senders[0].send(bytes(300_000)), time.sleep(60 * PATIENCE)))
    assert receiver.poll(60 * PATIENCE)
    assert receiver.recv(5 * PATIENCE) == bytes(300_000)
    kill(pid)


def test_a_broadcast_that_may_not_wait_sends_all_of_a_message_or_nothing():
    sender, (receiver,) = shmring.broadcast_channel(1, 1 << 12)
    sender.send_many([bytes(1500)] * 2)
    for _ in range(3):
        assert not sender.try_send(bytes(2000))
        assert sender.receivers[0].behind < 0.8
    with pytest.raises(ValueError, match="too long"):
        sender.send(bytes(1 << 13), timeout=0)
    assert receiver.recv_many() == [bytes(1500)] * 2
    assert sender.try_send(bytes(2000))
    assert receiver.recv() == bytes(2000)


@pytest.mark.sample(1)
@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ends_of_fan_in_and_broadcast_pass_to_processes_of_every_start_method(method, seed):
    senders, receiver = shmring.fan_in(2, 1 << 14)
    broadcast, receivers = shmring.broadcast_channel(2, 1 << 14)
    context = get_context(method)
    processes = [context.Process(target=relay_sums, args=(receivers[i], senders[i])) for i in range(2)]
    for process in processes:
        process.start()
    with broadcast, receiver:
        for i in range(50):
            broadcast.send(np.arange(i))
        broadcast.close()
        sums = [[], []]
        while not all(len(each) == 50 for each in sums):
            index, total = receiver.recv_from(60)
            sums[index].append(total)
        assert sums == [[sum(range(i)) for i in range(50)]] * 2
        with pytest.raises(EndOfStreamError):
            receiver.recv(60)
    for process in processes:
        process.join()
        assert process.exitcode == 0


def relay_sums(receiver, sender):
    """Send back the sum of each array that comes."""
    with receiver, sender:
        for array in receiver:
            sender.send_object(int(array.sum()))


@pytest.mark.leaks
def test_the_receiver_of_a_fan_in_and_the_sender_of_a_broadcast_pass_on_too():
    senders, receiver = shmring.fan_in(2)
    broadcast, receivers = shmring.broadcast_channel(2)
    process = get_context("spawn").Process(target=gather_and_say, args=(receiver, broadcast))
    process.start()
    for i, sender in enumerate(senders):
        sender.send_object(i + 1)
        sender.close()
    assert [one.recv(60) for one in receivers] == [3, 3]
    process.join()
    assert process.exitcode == 0
    with pytest.raises(RoleTakenError):
        receiver.recv()
    with pytest.raises(RoleTakenError):
        broadcast.send(b"x")


def gather_and_say(receiver, broadcast):
    """Receive to the end, and send the sum."""
    with receiver, broadcast:
        broadcast.send_object(sum(receiver))


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_several_ends_of_one_memory_pass_to_one_process(method):
    senders, receiver = shmring.fan_in(2)
    broadcast, receivers = shmring.broadcast_channel(2)
    process = get_context(method).Process(target=relay_all, args=(receivers, senders))
    process.start()
    with broadcast:
        broadcast.send_object("one for all")
    assert sorted(receiver.recv_from(60) for _ in range(2)) == [(0, "one for all"), (1, "one for all")]
    process.join()
    assert process.exitcode == 0
    with receiver, pytest.raises(EndOfStreamError):
        receiver.recv(60)


def relay_all(receivers, senders):
    """Send what each receiver gets through the sender at the same place; each end closes without the others."""
    for receiver, sender in zip(receivers, senders, strict=True):
        with receiver, sender:
            sender.send_object(receiver.recv(60))


def test_used_multi_rings_do_not_pickle_and_closed_ones_say_so():
    senders, receiver = shmring.fan_in(2)
    broadcast, _receivers = shmring.broadcast_channel(2)
    for end in (receiver.take(), broadcast.take()):
        with pytest.raises(TypeError, match="never"):
            pickle.dumps(end)
    for end in (receiver, broadcast):
        end.close()
        end.close()
        assert end.closed
    with pytest.raises(ClosedError):
        receiver.recv()
    with pytest.raises(ClosedError):
        broadcast.send(b"x")
    with pytest.raises(PeerLostError):
        senders[0].send(b"x")


def test_a_fan_belongs_to_one_process():
    senders, receiver = shmring.fan_in(2)
    broadcast, receivers = shmring.broadcast_channel(2)
    receiver.take()
    broadcast.send(b"x")

    def child():
        with pytest.raises(ClosedError, match="forked"):
            receiver.recv(0)
        with pytest.raises(ClosedError, match="forked"):
            broadcast.send(b"y")

    assert status_of(in_child(child)) == 0
    senders[0].send(b"undisturbed")
    assert receiver.recv(0) == b"undisturbed"
    broadcast.send(b"z")
    assert receivers[1].recv_many() == [b"x", b"z"]


# ---- broadcast ----


def follow(receiver, slow, seed):
    """Check that all messages come, in order."""
    generator = random.Random(seed)
    number = 0
    for message in receiver:
        value = message[0] if isinstance(message, tuple) else int.from_bytes(bytes(message[:4]), "little")
        assert value == number
        if not isinstance(message, tuple):
            assert bytes(message) == value.to_bytes(4, "little") * (len(message) // 4)
        number += 1
        if generator.random() < slow:
            time.sleep(generator.random() / 300)
    assert number == 500


@pytest.mark.parametrize("nreceivers", [1, 2, 3, 7])
def test_a_broadcast_gives_every_receiver_every_message(nreceivers, seed):
    sender, receivers = shmring.broadcast_channel(nreceivers, 1 << 12)
    pids = [in_child(follow, receiver, 0.02 * (i == 0), seed) for i, receiver in enumerate(receivers)]
    generator = random.Random(seed)
    with sender:
        for number in range(500):
            nbytes = generator.choice([4, 8, 100, 1000, 20_000])
            content = number.to_bytes(4, "little") * (nbytes // 4)
            way = generator.random()
            if way < 0.4:
                assert sender.send(content) == nreceivers
            elif way < 0.6:
                assert sender.send_many([content]) == 1
            elif way < 0.8:
                sender.send_object((number, b"x" * nbytes))
            elif nbytes < 1000:
                sender.reserve(nbytes)[:] = np.frombuffer(content, np.uint8)
                if generator.random() < 0.3:
                    sender.abort()
                    sender.reserve(nbytes)[:] = np.frombuffer(content, np.uint8)
                assert sender.commit() == nreceivers
            else:
                sender.send(np.frombuffer(content, np.uint8))
    assert [status_of(pid) for pid in pids] == [0] * nreceivers


def test_a_broadcast_of_records_moves_arrays():
    sender, receivers = shmring.broadcast_channel(3, 1 << 10, dtype="i8")

    def send():
        with sender:
            assert sender.send_many(np.arange(10_000)) == 10_000
            sender.reserve(3)[:] = 5
            sender.commit(2)
            sender.send(1)

    assert at_once(send, *[partial(sum, one) for one in receivers])[1:] == [sum(range(10_000)) + 11] * 3


def test_a_broadcast_leases_as_many_as_a_numpy_integer():
    for dtype in (None, "i8"):
        sender, _ = shmring.broadcast_channel(2, 1 << 10, dtype=dtype)
        assert sender.reserve(np.int64(3)).shape == (3,)
        sender.abort()
        sender.close()


@needs_marks
def test_receivers_that_die_or_close_never_block_the_sender():
    sender, receivers = shmring.broadcast_channel(3, 1 << 10)
    pid = in_child(lambda: (receivers[0].recv(), os.kill(os.getpid(), signal.SIGKILL)))
    sender.send(b"x" * 100)
    assert status_of(pid) == -signal.SIGKILL
    receivers[1].take()
    receivers[1].close()
    sent = 1
    for _ in range(100):
        assert sender.send(b"x" * 100) == 1
        sent += 1
        while len(receivers[2]) > 3:
            receivers[2].recv()
    assert [look.state for look in sender.receivers] == ["lost", "closed", "here"]
    receivers[2].close()
    with pytest.raises(PeerLostError, match="all 3"):
        sender.send(b"x")


def test_a_waiting_sender_notices_that_a_receiver_died():
    sender, receivers = shmring.broadcast_channel(2, 1 << 10)
    pid = in_child(lambda: (receivers[0].take(), signal.pause()))
    wait_for(lambda: sender.receivers[0].state == "here")
    for _ in range(7):
        sender.send(b"x" * 120)
        receivers[1].recv()
    with beside(lambda: (time.sleep(0.1), kill(pid))):
        for _ in range(20):
            assert sender.send(b"y" * 120, 30) >= 1
            receivers[1].recv()
    assert sender.receivers[0].state == "lost"


def test_a_broadcast_whose_timeout_passed_was_received_by_none():
    sender, receivers = shmring.broadcast_channel(2, 1 << 10)
    sent = 0
    with pytest.raises(queue.Full, match="receiver 1"):
        while True:
            sender.send(sent.to_bytes(100, "little"), 0.05)
            sent += 1
            receivers[0].recv()
    assert not sender.try_send(bytes(100))
    with pytest.raises(queue.Full):
        sender.send(bytes(5000), 0.05)  # a long one, some of which had gone out
    assert len(receivers[1]) == sent
    for number in range(sent):
        assert receivers[1].recv(0) == number.to_bytes(100, "little")
    assert not receivers[1].poll()
    sender.send(b"next")
    assert [one.recv(10) for one in receivers] == [b"next"] * 2


# ---- slow receivers of a broadcast ----


@pytest.mark.parametrize("dtype", [None, "i8"])
def test_a_slow_receiver_is_disconnected_and_gets_an_error(dtype):
    sender, (quick, slow) = shmring.broadcast_channel(2, 1 << 10, dtype=dtype, slow_timeout=0.01)
    sent = 0
    while sender.send(sent if dtype else sent.to_bytes(40, "little")) == 2:
        sent += 1
        quick.recv(0)
    assert [look.state for look in sender.receivers] == ["here", "disconnected"]
    for call in (slow.recv, slow.recv_many, slow.peek, lambda: slow.recv_into(np.zeros(9, dtype or np.uint8))):
        with pytest.raises(DisconnectedError, match=r"0\.01 s"):
            call()
    assert slow.poll()
    assert not slow.ended
    assert slow.peer == "lost"
    assert quick.recv(0) == (sent if dtype else sent.to_bytes(40, "little"))
    sender.close()
    with pytest.raises(DisconnectedError):
        slow.recv()
    with pytest.raises(EndOfStreamError):
        quick.recv()
    slow.close()


def test_a_send_with_a_shorter_timeout_disconnects_no_receiver():
    sender, (receiver,) = shmring.broadcast_channel(1, 1 << 10, slow_timeout=60 * PATIENCE)
    while sender.try_send(bytes(100)):
        pass
    with pytest.raises(queue.Full):
        sender.send(bytes(100), 0.001)
    assert sender.receivers[0].state == "absent"
    assert receiver.recv(0) == bytes(100)
    assert sender.send(bytes(100)) == 1


def test_a_receiver_that_no_process_takes_is_disconnected_and_one_that_takes_it_later_is_told():
    sender, (absent,) = shmring.broadcast_channel(1, 1 << 10, slow_timeout=0.01)
    with pytest.raises(PeerLostError, match="disconnected"):
        while True:
            sender.send(bytes(100))
    with pytest.raises(DisconnectedError):
        absent.recv()


def test_a_lease_is_whole_though_its_receiver_was_disconnected():
    sender, (receiver,) = shmring.broadcast_channel(1, 1 << 10, slow_timeout=0.01)
    sender.send(b"kept" * 10)
    lease = receiver.peek()
    with pytest.raises(PeerLostError):
        while True:
            sender.send(b"next" * 10)
    assert bytes(lease.array) == b"kept" * 10
    receiver.release()
    with pytest.raises(DisconnectedError):
        receiver.peek()


def test_a_long_message_goes_on_without_the_receiver_that_stops_in_the_middle_of_it():
    sender, (quick, slow) = shmring.broadcast_channel(2, 1 << 12, slow_timeout=0.3 * PATIENCE)
    content = np.arange(10_000)
    with beside(sender.send, content) as sending:
        slow.try_recv()  # takes the pieces that are there
        assert (quick.recv(60 * PATIENCE) == content).all()
    assert sending.result == 1
    with pytest.raises(DisconnectedError):
        slow.recv()


def test_a_send_in_an_event_loop_disconnects_slow_receivers_too():
    async def run(sender, message):
        while True:
            await sender.send_async(message)

    for dtype, message in ((None, bytes(40)), ("i8", np.arange(30))):
        sender, (_, slow) = shmring.broadcast_channel(2, 1 << 10, dtype=dtype, slow_timeout=0.01)
        with pytest.raises(PeerLostError):
            asyncio.run(run(sender, message))
        with pytest.raises(DisconnectedError):
            slow.recv()


def eight_words(number):
    """A message of which sixteen fill a ring of 1024 bytes."""
    return number.to_bytes(8, "little") * 7


def test_a_receiver_that_holds_each_message_delays_a_send_by_one_release_and_starves_no_other():
    sender, (quick, slow) = shmring.broadcast_channel(2, 1 << 10)
    sent = 0
    while sender.try_send(eight_words(sent)):
        sent += 1
    assert quick.recv_many() == [eight_words(number) for number in range(sent)]
    for held in range(3 * sent):
        lease = slow.peek(0)
        assert not sender.try_send(eight_words(sent))
        with pytest.raises(queue.Full, match="receiver 1"):
            sender.send(eight_words(sent), 0.001)
        assert bytes(lease.array) == eight_words(held)
        slow.release()
        assert sender.send(eight_words(sent), 60 * PATIENCE) == 2
        assert quick.recv(0) == eight_words(sent)
        sent += 1


def test_a_receiver_that_holds_a_message_delays_one_send_by_the_slow_timeout_and_starves_no_other():
    sender, (quick, slow) = shmring.broadcast_channel(2, 1 << 10, slow_timeout=0.1)
    sender.send(eight_words(0))
    lease = slow.peek(0)
    for number in range(1, 100):
        assert quick.recv(0) == eight_words(number - 1)
        reached = sender.send(eight_words(number), 60 * PATIENCE)
        assert reached == (2 if number < 16 else 1)
    assert bytes(lease.array) == eight_words(0)


def lag(receiver, in_place, seed):
    """Check each message that comes before the sender disconnects this receiver."""
    generator = random.Random(seed)
    expected = 0
    try:
        while True:
            if in_place:
                message = bytes(receiver.peek())
                receiver.release()
            else:
                message = receiver.recv()
            assert message == expected.to_bytes(8, "little") * (len(message) // 8)
            expected += 1
            if generator.random() < 0.01:
                time.sleep(generator.random() / 1000)
    except DisconnectedError:
        return
    except EndOfStreamError:
        assert expected == 2000


def test_receivers_that_are_disconnected_at_any_moment_see_whole_messages_in_order(seed):
    generator = random.Random(seed)
    for attempt in range(10):
        sender, receivers = shmring.broadcast_channel(3, 1 << 11, slow_timeout=0)
        pids = [in_child(lag, receiver, i == 1, seed + i + attempt) for i, receiver in enumerate(receivers)]
        wait_for(lambda sender=sender: all(look.state == "here" for look in sender.receivers))
        with sender:
            for number in range(2000):
                try:
                    sender.send(number.to_bytes(8, "little") * generator.choice([1, 20, 60, 400]))
                except PeerLostError:
                    break
        assert [status_of(pid) for pid in pids] == [0] * 3


def test_a_sender_killed_at_any_moment_leaves_whole_messages_to_all(seed):
    generator = random.Random(seed)
    for _ in range(10):
        sender, receivers = shmring.broadcast_channel(2, 1 << 11)

        def send_to_all(sender=sender):
            number = 0
            while True:
                sender.send(number.to_bytes(8, "little") * generator.choice([1, 20, 1000]))
                number += 1

        pid = in_child(send_to_all)
        wait_for(lambda receivers=receivers: all(receiver.peer == "here" for receiver in receivers))
        deadline = time.monotonic() + 0.02 * generator.random()
        last = [-1, -1]
        ended = 0
        while ended < 2:
            if time.monotonic() > deadline and deadline:
                os.kill(pid, signal.SIGKILL)
                deadline = 0
            ended = 0
            for i, receiver in enumerate(receivers):
                try:
                    message = receiver.try_recv()
                except PeerLostError:
                    ended += 1
                    continue
                if message is not None:
                    assert message[:8] == (last[i] + 1).to_bytes(8, "little")
                    assert message == message[:8] * (len(message) // 8)
                    last[i] += 1
        status_of(pid)


@pytest.mark.parametrize("bad", [(0,), (-1,), (1.5,), (True,), (2000,), (2, 10), (2, 1 << 12, "explode")])
@pytest.mark.parametrize(
    ("make", "policy"), [(shmring.broadcast_channel, "slow_timeout"), (shmring.fan_in, "when_full")]
)
def test_bad_arguments_of_fan_in_and_broadcast_are_refused(make, policy, bad):
    with pytest.raises((TypeError, ValueError)):
        make(*bad[:2], **dict(zip([policy], bad[2:], strict=False)))


def test_fan_in_and_broadcast_release_their_memory():
    gc.collect()  # what earlier tests have left
    before = mapped()
    for _ in range(20):
        senders, receiver = shmring.fan_in(3)
        sender, receivers = shmring.broadcast_channel(3)
        senders[1].send(b"x")
        sender.send(b"x")
        assert receiver.recv() == receivers[2].recv() == b"x"
    del senders, receiver, sender, receivers
    gc.collect()
    assert mapped() <= before  # a thread of an earlier test may have ended meanwhile, and unmapped its own


def mapped():
    """The files in shared memory that this process has mapped, by their numbers."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {line[4] for line in lines if line[5:] and line[5].startswith(("/dev/shm/", "/memfd:"))}


def test_shmring_info_lists_every_ring():
    before = {look.name for look in list_channels()}  # what earlier tests have left to the collector
    senders, receiver = shmring.fan_in(2)
    broadcast, receivers = shmring.broadcast_channel(2)
    senders[1].send(b"x")
    receiver.take()
    broadcast.send(b"y")
    receivers[0].recv()
    found = [look for look in list_channels() if look.name not in before]
    looks = [(look.name.partition(", ")[2], look.ring) for look in found]
    states = sorted((name, ring.producer.state, ring.consumer.state) for name, ring in looks)
    assert states == [
        ("", "absent", "here"),
        ("", "here", "here"),
        ("receiver 0", "here", "here"),
        ("receiver 1", "here", "absent"),
    ]
