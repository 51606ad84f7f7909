"""`shmring.wait` at receivers alone: one sleep of the calling thread on the waiter words of their rings.

Where ticks are of a minute, a wait that ends was ended by a wake-up.
"""

import errno
import os
import queue
import select
import signal
import threading

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import eventually
from support.limits import refuse_system_call
from support.reading_ends import broadcast, channel, ring_of
from support.threads import beside

import shmring
from shmring import EndOfStreamError, PeerLostError
from shmring.channels.word_sleep import can_sleep_on_words

needs_words = pytest.mark.skipif(not can_sleep_on_words([]), reason="needs futex_waitv")

MOST = 128  # words of one sleep
WAITS_UNTIL_LONG_TICKS = 8  # of a receiver that sleeps at once, by its longest ticks (core/c/backoff.h)


def channels(count):
    """Their senders, and their receivers, both taken by this process."""
    made = [shmring.channel() for _ in range(count)]
    return [sender.take() for sender, _ in made], [receiver.take() for _, receiver in made]


def is_asleep(receiver):
    return ring_of(receiver).consumer.asleep


def assert_asleep(*receivers):
    assert all(map(is_asleep, receivers))


def assert_asleep_for_more(senders, receivers):
    """The wait that the last message has ended withdrew its waiter words before that was received."""
    assert not any(map(len, senders))
    assert_asleep(*receivers)


def in_place():
    """The threads and the descriptors of this process."""
    return set(os.listdir("/proc/self/task")), set(os.listdir("/proc/self/fd"))


@needs_words
@pytest.mark.parametrize("count", [2, 16, MOST])
def test_a_wait_is_one_sleep_without_threads_and_descriptors(count):
    def child():
        senders, receivers = channels(count)
        receivers[-1].poll(0.001)
        before = in_place()
        assert shmring.wait(receivers, 0.01) == []
        assert in_place() == before
        assert not any(map(is_asleep, receivers))
        senders[-1].send(b"x")
        assert shmring.wait(receivers) == [receivers[-1]]
        assert in_place() == before

    assert status_of(in_child(child)) == 0


@pytest.mark.parametrize("count", [2, 16, MOST, MOST + 2])
def test_each_message_wakes_a_wait_that_is_asleep(count, monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")
    senders, receivers = channels(count)
    places = [-1, 0, count // 2] * WAITS_UNTIL_LONG_TICKS

    def send():
        for place in places:
            eventually(lambda: assert_asleep_for_more(senders, receivers))
            senders[place].send(bytes([place % 256]))

    with beside(send):
        for place in places:
            assert shmring.wait(receivers) == [receivers[place]]
            assert receivers[place].recv() == bytes([place % 256])
    for end in senders + receivers:
        end.close()


def fan_in():
    senders, receiver = shmring.fan_in(3)
    return senders[2].send, receiver


def last_of_a_broadcast():
    sender, receivers = shmring.broadcast_channel(3)
    return lambda x: (sender.send(x), [one.recv() for one in receivers[:2]]), receivers[2]


def records():
    sender, receiver = shmring.channel(dtype="f8")
    return lambda x: sender.send(float(x[0])), receiver


def lossy():
    sender, receiver = shmring.channel(1 << 10, when_full="drop_newest")
    return lambda x: [sender.send(x * 400) for _ in range(9)], receiver


def drain(receiver):
    while receiver.poll():
        receiver.recv()


MAKERS = [channel, fan_in, broadcast, last_of_a_broadcast, records, lossy]


@pytest.mark.parametrize("make", MAKERS)
def test_receivers_of_each_kind_are_waited_for_together(make):
    send, end = make()
    others = [maker() for maker in MAKERS]
    ends = [end, *(other for _, other in others), end]
    assert shmring.wait(ends, 0) == []
    timer = threading.Timer(0.05, send, [b"x"])
    timer.start()
    assert shmring.wait(ends) == [end, end]
    timer.join()
    drain(end)
    for one, other in others:
        one(b"y")
        assert shmring.wait(ends) == [other]
        drain(other)


def test_processes_that_send_at_any_moment_wake_the_receiver_for_each_message(seed):
    count, messages = 4, 3000

    def child(sender, number):
        pause = np.random.default_rng(seed + number).exponential(2e-5, messages)
        for i in range(messages):
            select.select([], [], [], pause[i])
            sender.send(i.to_bytes(4, "little"))
        sender.close()

    made = [shmring.channel() for _ in range(count)]
    pids = [in_child(child, sender, number) for number, (sender, _) in enumerate(made)]
    receivers = [receiver for _, receiver in made]
    got = {receiver: [] for receiver in receivers}
    del made
    while receivers:
        for receiver in shmring.wait(receivers):
            try:
                got[receiver].append(int.from_bytes(receiver.recv(0), "little"))
            except EndOfStreamError:
                receivers.remove(receiver)
    assert list(got.values()) == [list(range(messages))] * count
    assert [status_of(pid) for pid in pids] == [0] * count


# ---- ends of the other side ------------------------------------------------------------------------------------------


def test_a_sender_that_closes_wakes_the_wait(monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")
    senders, receivers = channels(3)
    for _ in range(WAITS_UNTIL_LONG_TICKS):
        with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), senders[0].send(b"x"))):
            shmring.wait(receivers)
        receivers[0].recv()
    with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), senders[1].close())):
        assert shmring.wait(receivers) == [receivers[1]]
    with pytest.raises(EndOfStreamError):
        receivers[1].recv()
    assert shmring.wait([receivers[0], receivers[2]], 0) == []


@needs_marks
@pytest.mark.parametrize("make", [shmring.channel, lambda: shmring.fan_in(1)])
def test_a_killed_sender_is_noticed(make):
    ends, receiver = make()
    sender = ends[0] if isinstance(ends, list) else ends
    (_idle,), others = channels(1)

    def child():
        sender.send(b"last")
        signal.pause()

    pid = in_child(child)
    assert shmring.wait([*others, receiver]) == [receiver]
    assert receiver.recv() == b"last"
    with beside(lambda: (eventually(lambda: assert_asleep(*others)), kill(pid))):
        assert shmring.wait([*others, receiver]) == [receiver]
    with pytest.raises(PeerLostError):
        receiver.recv()


def test_a_sender_that_no_process_can_take_any_more_is_noticed():
    sender, receiver = shmring.channel()
    (_idle,), others = channels(1)
    reader, writer = os.pipe()
    pid = in_child(os.read, reader, 1)
    del sender
    with beside(lambda: (eventually(lambda: assert_asleep(*others)), os.write(writer, b"x"))):
        assert shmring.wait([*others, receiver]) == [receiver]
    with pytest.raises(PeerLostError):
        receiver.recv()
    assert status_of(pid) == 0
    os.close(reader)
    os.close(writer)


def test_a_receiver_that_its_sender_has_disconnected_is_ready():
    (_idle,), others = channels(1)
    sender, (kept, slow) = shmring.broadcast_channel(2, 1 << 10, slow_timeout=0.01)
    for _ in range(9):
        sender.send(b"x" * 400)
        kept.recv()
    assert shmring.wait([*others, kept, slow]) == [slow]
    with pytest.raises(shmring.DisconnectedError):
        slow.recv()


# ---- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, MOST + 2])
def test_ctrl_c_ends_the_wait_and_leaves_the_ends_as_they_were(count):
    made = [shmring.channel() for _ in range(count)]

    def child():
        for _, receiver in made:
            receiver.take()
        receivers = [receiver for _, receiver in made]
        with pytest.raises(KeyboardInterrupt):
            shmring.wait(receivers)
        assert not any(map(is_asleep, receivers)) or count > MOST  # there the waiter thread sleeps
        made[1][0].send(b"x")
        assert shmring.wait(receivers) == [receivers[1]]
        assert receivers[1].recv() == b"x"

    pid = in_child(child)
    eventually(lambda: assert_asleep(made[0][1], made[-1][1]))
    os.kill(pid, signal.SIGINT)
    assert status_of(pid) == 0


def test_ends_are_busy_while_a_thread_waits_for_them():
    senders, receivers = channels(2)
    (first, second), fan = shmring.fan_in(2)
    ends = [*receivers, fan]

    def refused():
        eventually(lambda: assert_asleep(*receivers))
        for call in (
            *(receiver.recv for receiver in receivers),
            fan.recv,
            fan.poll,
            fan.close,
            receivers[1].close,
            receivers[1].fileno,
            lambda: shmring.wait(ends),
            lambda: shmring.wait([fan, shmring.channel()[1]]),
        ):
            with pytest.raises(RuntimeError, match="one thread at a time"):
                call()
        second.send(b"x")

    with beside(refused):
        assert shmring.wait(ends) == [fan]
    assert fan.recv() == b"x"
    for sender in (*senders, first):
        sender.send(b"y")
    assert [end.recv() for end in shmring.wait(ends)] == [b"y"] * 3
    for end in (*ends, *senders, first, second):
        end.close()


def test_an_end_in_a_call_of_another_thread_leaves_the_others_as_they_were():
    senders, receivers = channels(3)

    def wait():
        eventually(lambda: assert_asleep(receivers[2]))
        with pytest.raises(RuntimeError, match="one thread at a time"):
            shmring.wait(receivers)
        senders[0].send(b"x")
        assert receivers[0].recv() == b"x"
        senders[2].send(b"y")

    with beside(wait):
        assert receivers[2].recv() == b"y"


def test_an_open_lease_is_refused_as_by_every_call():
    senders, receivers = channels(2)
    senders[0].send(b"x")
    lease = receivers[0].peek()
    with pytest.raises(ValueError, match="lease is still open"):
        shmring.wait(receivers)
    del lease
    receivers[0].release()
    assert shmring.wait(receivers, 0) == []


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [slice(1), slice(None)])
def test_a_descriptor_that_an_event_loop_has_is_right_after_a_wait(asks, monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")
    senders, receivers = channels(3)
    poller = select.poll()
    for receiver in receivers[asks]:
        poller.register(receiver.fileno(), select.POLLIN)
    for _ in range(20):
        assert shmring.wait(receivers, 0.001) == []
        with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), senders[0].send(b"x"))):
            assert shmring.wait(receivers) == [receivers[0]]
        assert receivers[0].recv() == b"x"
        assert not any(receiver.poll() for receiver in receivers)
        assert poller.poll(0) == []
        senders[0].send(b"y")
        assert [descriptor for descriptor, _ in poller.poll()] == [receivers[0].fileno()]
        assert receivers[0].recv() == b"y"


def test_a_list_with_other_ends_is_waited_for_by_descriptors():
    senders, receivers = channels(2)
    tasks = shmring.Queue()
    for _ in range(2):
        with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), senders[1].send(b"x"))):
            assert shmring.wait([*receivers, tasks]) == [receivers[1]]
        assert receivers[1].recv() == b"x"
        with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), tasks.put(1))):
            assert shmring.wait([*receivers, tasks]) == [tasks]
        assert tasks.get() == 1
        with beside(lambda: (eventually(lambda: assert_asleep(*receivers)), senders[0].send(b"y"))):
            assert shmring.wait(receivers) == [receivers[0]]
        assert receivers[0].recv() == b"y"


FUTEX_WAITV = 449  # the system call's number on every processor


@needs_words
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_without_the_system_call_the_wait_is_by_descriptors(error):
    made = [shmring.channel() for _ in range(4)]

    def child():
        receivers = [receiver.take() for _, receiver in made]
        assert shmring.wait(receivers, 0.001) == []
        threads, descriptors = in_place()
        if not refuse_system_call(FUTEX_WAITV, error):
            os._exit(77)
        assert shmring.wait(receivers, 0.001) == []
        assert len(in_place()[0]) == len(threads) + 1
        assert len(in_place()[1]) == len(descriptors) + 4
        os.write(ready, b"x")
        assert shmring.wait(receivers) == [receivers[2]]
        assert receivers[2].recv() == b"x"
        with pytest.raises(queue.Empty):
            receivers[2].recv(0)

    reading, ready = os.pipe()
    pid = in_child(child)
    os.close(ready)
    if os.read(reading, 1):
        made[2][0].send(b"x")
    os.close(reading)
    status = status_of(pid)
    if status == 77:
        pytest.skip("a process may not install a seccomp filter here")
    assert status == 0


# ---- long messages ---------------------------------------------------------------------------------------------------


def test_a_long_message_that_comes_in_pieces_is_ready_when_it_is_whole():
    sender, receiver = shmring.channel(1 << 14)
    (_idle,), others = channels(1)
    message = os.urandom(1 << 20)
    with beside(sender.send, message):
        assert shmring.wait([receiver, *others]) == [receiver]
        assert receiver.recv(0) == message
