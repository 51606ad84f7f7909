"""Channels between processes: ends are passed on by every start method, taken once, and outlived; names come and go."""

import json
import os
import pickle
import queue
import random
import signal
import stat
import time
from multiprocessing import get_context

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.programs import run_python

import shmring
from shmring import ClosedError, EndOfStreamError, PeerLostError, RoleTakenError, SegmentError
from shmring.core.memory import segment, sweep
from shmring.core.ring.inspect import look


def unique(test):
    """A name for a channel that no other test, or run of tests, has."""
    return f"{test}-{os.getpid()}-{random.random()}"


def path_of(name):
    """Where the name of a channel stands, if it does."""
    return "/dev/shm" + segment.segment_name(f"channel/{name}", "ring")


def echo(receiver, sender):
    """Send back whatever comes, until nothing more does."""
    with receiver, sender:
        for message in receiver:
            sender.send(message)


# ---- whose an end is ----


@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ends_pass_to_processes_of_every_start_method(method):
    sender, theirs_in = shmring.channel(1 << 14)
    theirs_out, receiver = shmring.channel(1 << 14)
    process = get_context(method).Process(target=echo, args=(theirs_in, theirs_out))
    process.start()
    with sender, receiver:
        for i in range(200):
            message = np.arange(i * 50)
            sender.send(message)
            assert (receiver.recv(30) == message).all()
        with pytest.raises(RoleTakenError, match=str(process.pid)) as caught:
            theirs_in.recv()
        assert caught.value.pid == sender.peer_pid == process.pid
        sender.close()
        with pytest.raises(EndOfStreamError):
            receiver.recv(30)
    process.join()
    assert process.exitcode == 0


def test_an_end_belongs_to_the_process_that_uses_it_first():
    sender, receiver = shmring.channel()
    assert (sender.peer, receiver.peer) == ("absent", "absent")

    def child():
        sender.send(b"from the child")
        assert sender.peer == "absent"
        sender.close()

    assert status_of(in_child(child)) == 0
    with pytest.raises(RoleTakenError, match="closed"):
        sender.send(b"too late")
    assert receiver.recv() == b"from the child"
    with pytest.raises(EndOfStreamError):
        receiver.recv()

    def grandchild():
        for call in (receiver.recv, receiver.poll, receiver.peek, receiver.release):
            with pytest.raises(ClosedError, match="forked"):
                call()
        receiver.close()

    assert status_of(in_child(grandchild)) == 0
    assert not receiver.closed


def test_ends_that_were_used_do_not_pickle():
    for dtype in (None, "i8"):
        sender, receiver = shmring.channel(dtype=dtype)
        for end in (sender.take(), receiver.take()):
            with pytest.raises(TypeError, match="never"):
                pickle.dumps(end)
            end.close()
            with pytest.raises(TypeError, match="never"):
                pickle.dumps(end)


def test_a_channel_without_a_name_is_nowhere_to_be_found():
    sender, receiver = shmring.channel()
    assert not os.path.exists("/dev/shm" + sender._channel.memory.name)
    sender.send(b"x")
    assert receiver.recv() == b"x"


# ---- death ----


@pytest.mark.parametrize("dtype", [None, "i8"])
def test_a_killed_sender_is_lost_once_all_it_committed_is_received(dtype):
    sender, receiver = shmring.channel(1 << 12, dtype=dtype)
    content = b"12345678" if dtype is None else 7
    reader, writer = os.pipe()

    def child():
        for _ in range(3):
            sender.send(content)
        sender.reserve(2)[:] = 0
        os.write(writer, b"x")
        signal.pause()

    pid = in_child(child)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    assert receiver.peer == "here"
    os.kill(pid, signal.SIGKILL)
    os.close(reader)
    for _ in range(3):
        assert receiver.recv() == content
    with pytest.raises(PeerLostError, match=str(pid)) as caught:
        receiver.recv()
    assert caught.value.pid == pid
    assert receiver.poll()
    with pytest.raises(PeerLostError):
        receiver.try_recv()
    assert status_of(pid) == -signal.SIGKILL


@pytest.mark.parametrize("dtype", [None, "i8"])
@pytest.mark.parametrize("how", ["killed", "closed", "dropped"])
def test_a_waiting_sender_raises_when_its_receiver_goes(dtype, how):
    sender, receiver = shmring.channel(128, dtype=dtype)
    reader, writer = os.pipe()

    def child():
        receiver.take()
        os.write(writer, b"x")
        if how == "killed":
            signal.pause()
        os.read(reader, 1)
        if how == "closed":
            receiver.close()

    pid = in_child(child)
    while sender.peer == "absent":
        time.sleep(0.001)
    if how == "killed":
        os.read(reader, 1)
        os.kill(pid, signal.SIGKILL)
    content = b"12345678" if dtype is None else 5
    with pytest.raises(PeerLostError, match=str(pid)):
        for _ in range(10_000):
            sender.send(content)
    status_of(pid)
    os.close(reader)
    os.close(writer)


# ---- names ----


def test_a_named_channel_meets_and_its_name_goes_with_the_last_end():
    name = unique("meet")

    def child():
        with shmring.open_channel(name, "receiver", 1 << 12) as receiver:
            assert receiver.recv(30) == b"hello"

    pid = in_child(child)
    sender = shmring.open_channel(name, "sender", 1 << 12)
    assert stat.S_IMODE(os.stat(path_of(name)).st_mode) == 0o600
    sender.send(b"hello")
    assert status_of(pid) == 0
    assert os.path.exists(path_of(name))
    sender.close()
    assert not os.path.exists(path_of(name))


def test_an_open_end_is_not_given_twice():
    name = unique("twice")
    with shmring.open_channel(name, "sender") as sender:
        with pytest.raises(RoleTakenError, match=str(os.getpid())) as caught:
            shmring.open_channel(name, "sender")
        assert caught.value.pid == os.getpid()
        with shmring.open_channel(name, "receiver") as receiver:
            sender.send(b"undisturbed")
            assert receiver.recv() == b"undisturbed"


@needs_marks
def test_an_end_can_come_again_and_go_on():
    name = unique("again")
    sender = shmring.open_channel(name, "sender", 1 << 12)

    def child(count):
        receiver = shmring.open_channel(name, "receiver")
        for _ in range(count):
            receiver.recv(30)
        os.kill(os.getpid(), signal.SIGKILL)

    for i in range(10):
        sender.send(b"%d" % i)
    for _ in range(3):
        assert status_of(in_child(child, 3)) == -signal.SIGKILL
    with pytest.raises(PeerLostError):
        sender.send(b"no receiver")
    receiver = shmring.open_channel(name, "receiver")
    assert receiver.recv() == b"9"
    sender.send(b"on we go")
    assert receiver.recv() == b"on we go"
    sender.close()
    with pytest.raises(EndOfStreamError):
        receiver.recv()
    with shmring.open_channel(name, "sender") as sender:
        sender.send(b"another")
        assert receiver.recv() == b"another"
    receiver.close()


# No look comes to its end, which takes 10 ms at most, however fast the other process goes on meanwhile.
ENDLESS_NBYTES = 1 << 28


def wait_until_filled(end):
    """Until a good part of the ring is filled."""
    while look(memoryview(end._channel.mapping)[end._channel.ring_offset :]).fill < 0.5:
        time.sleep(0.0005)


@pytest.mark.parametrize("nlooks", [0, 1, 3])
def test_the_half_of_a_long_message_that_a_dead_sender_left_is_never_seen(nlooks):
    name = unique("half")
    receiver = shmring.open_channel(name, "receiver", 1 << 12)
    pid = in_child(lambda: shmring.open_channel(name, "sender").send(bytes(ENDLESS_NBYTES)))
    for _ in range(nlooks):
        wait_until_filled(receiver)
        assert receiver.try_recv() is None
    wait_until_filled(receiver)
    kill(pid)
    with pytest.raises(PeerLostError):
        receiver.recv()
    with shmring.open_channel(name, "sender") as sender:
        sender.send(b"whole")
        assert receiver.recv() == b"whole"
    receiver.close()


def test_the_half_that_a_dead_receiver_left_is_passed_over():
    name = unique("rest")
    sender = shmring.open_channel(name, "sender", 1 << 12)

    def child():
        receiver = shmring.open_channel(name, "receiver")
        for _ in range(3):
            wait_until_filled(receiver)
            assert receiver.try_recv() is None
        os.kill(os.getpid(), signal.SIGKILL)

    pid = in_child(child)
    with pytest.raises(PeerLostError):
        sender.send(bytes(ENDLESS_NBYTES))
    assert status_of(pid) == -signal.SIGKILL
    with shmring.open_channel(name, "receiver") as receiver:
        assert receiver.try_recv() is None  # the ring is full of what was left
        sender.send(b"whole")
        assert receiver.recv(30) == b"whole"
    sender.close()


def test_a_stale_name_is_replaced():
    name = unique("stale")

    def child():
        sender = shmring.open_channel(name, "sender")
        sender.send(b"old")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(in_child(child)) == -signal.SIGKILL
    assert [x.status for x in sweep.leftovers() if "/dev/shm" + x.name == path_of(name)] == ["stale"]
    with shmring.open_channel(name, "receiver") as receiver:
        assert not receiver.poll()
    assert not os.path.exists(path_of(name))


def test_a_forked_child_does_not_keep_the_name():
    name = unique("forked")
    reader, writer = os.pipe()
    sender = shmring.open_channel(name, "sender")
    pid = in_child(lambda: os.read(reader, 1))
    sender.close()
    assert not os.path.exists(path_of(name))
    os.write(writer, b"x")
    assert status_of(pid) == 0
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("squat", ["link", "open", "directory"])
def test_squatters_are_refused(squat, tmp_path):
    name = unique("squat")
    path = path_of(name)
    if squat == "link":
        os.symlink(tmp_path / "target", path)
    elif squat == "open":
        with open(path, "wb") as file:
            file.truncate(1 << 20)
        os.chmod(path, 0o666)
    else:
        os.mkdir(path)
    try:
        with pytest.raises(SegmentError):
            shmring.open_channel(name, "sender")
    finally:
        (os.rmdir if squat == "directory" else os.unlink)(path)


def test_ends_of_different_settings_are_refused():
    name = unique("disagree")
    with shmring.open_channel(name, "sender", dtype="i8"):
        for other in ({}, {"dtype": "f8"}, {"dtype": "i8", "when_full": "drop_newest"}):
            with pytest.raises(SegmentError, match="is open with"):
                shmring.open_channel(name, "receiver", **other)
        shmring.open_channel(name, "receiver", dtype="i8").close()
    with shmring.open_channel(name, "sender"), pytest.raises(SegmentError, match="is open with dtype=None"):
        shmring.open_channel(name, "receiver", dtype="f8")  # NumPy: None == dtype("f8")


@pytest.mark.parametrize(
    "bad",
    [
        {"capacity_nbytes": 63},
        {"capacity_nbytes": 1.5},
        {"capacity_nbytes": True},
        {"when_full": "explode"},
        {"dtype": object},
        {"dtype": "V0"},
        {"dtype": [("x" * 50 + str(i), "i1") for i in range(100)]},
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing(bad):
    name = unique("bad")
    with pytest.raises((TypeError, ValueError)):
        shmring.channel(**bad)
    with pytest.raises((TypeError, ValueError)):
        shmring.open_channel(name, "sender", **bad)
    assert not os.path.exists(path_of(name))
    for wrong, role in (("", "sender"), (3, "sender"), ("x", "chief")):
        with pytest.raises((TypeError, ValueError)):
            shmring.open_channel(wrong, role)


# ---- the look from outside ----


def test_shmring_info_shows_the_channels_of_other_processes():
    sender, receiver = shmring.channel(1 << 12)
    for _ in range(5):
        sender.send(b"12345678")
    receiver.take()
    inspect = ["-m", "shmring", "info", "--channels", "--interval", "0.01"]
    text = run_python(*inspect)
    assert sender._channel.memory.name in text
    assert f"sender   {os.getpid()} here: 5 messages" in text
    (found,) = [x for x in json.loads(run_python(*inspect, "--json")) if x["name"] == sender._channel.memory.name]
    assert (found["is_named"], found["ring"]["producer"]["messages"], found["waiting"]) == (False, 5, "")


# ---- exact sequences ----


def send_numbers(sender, count, seed):
    """Send numbered messages of random length, in random ways, in bursts."""
    generator = random.Random(seed)
    sent = 0
    while sent < count:
        nbytes = generator.choice([8, 8, 16, 24, 40, 100, 1000, 5000])
        burst = min(generator.randint(1, 5), count - sent)
        messages = [(sent + i).to_bytes(8, "little") * (nbytes // 8) for i in range(burst)]
        way = generator.random()
        if way < 0.4:
            for message in messages:
                sender.send(message)
        elif way < 0.7:
            assert sender.send_many(messages) == burst
        else:
            burst = 0
            for message in messages:
                if len(message) <= sender.longest_nbytes:
                    sender.reserve(len(message))[:] = np.frombuffer(message, np.uint8)
                    if generator.random() < 0.1:
                        sender.abort()
                        sender.reserve(len(message))[:] = np.frombuffer(message, np.uint8)
                    sender.commit()
                else:
                    sender.send(message)
                burst += 1
        sent += burst
        if generator.random() < 0.01:
            time.sleep(generator.random() / 500)
    sender.close()


def receive_numbers(receiver, seed):
    """Check that all come, whole and in order."""
    generator = random.Random(seed)
    got = 0

    def check(message):
        nonlocal got
        message = bytes(message)
        assert message == got.to_bytes(8, "little") * (len(message) // 8), got
        got += 1

    try:
        while True:
            way = generator.random()
            if way < 0.4:
                check(receiver.recv())
            elif way < 0.6:
                for message in receiver.recv_many(generator.randint(1, 5)):
                    check(message)
            elif way < 0.8:
                check(receiver.peek())
                receiver.release()
            else:
                out = bytearray(5000)
                check(out[: receiver.recv_into(out)])
            if generator.random() < 0.01:
                time.sleep(generator.random() / 500)
    except EndOfStreamError:
        return got


@pytest.mark.sample(3)
@pytest.mark.parametrize("capacity", [64, 128, 1 << 10, 1 << 16])
def test_two_processes_see_the_exact_sequence(capacity, seed):
    sender, receiver = shmring.channel(capacity)
    count = min(4000, 8 * capacity)  # a small ring takes many pieces, each of which waits for the other process
    pid = in_child(send_numbers, sender, count, seed)
    assert receive_numbers(receiver, seed + 1) == count
    assert status_of(pid) == 0


def test_a_killed_sender_leaves_whole_messages_at_whatever_instant(seed):
    generator = random.Random(seed)
    name = unique("kill")
    receiver = shmring.open_channel(name, "receiver", 1 << 10)
    for _ in range(40):
        pid = in_child(lambda: send_numbers(shmring.open_channel(name, "sender"), 1 << 40, seed))
        time.sleep(generator.random() * 0.01)
        kill(pid)  # a sender that is absent now will not come
        last = -1
        with pytest.raises((PeerLostError, queue.Empty)):
            while True:
                message = receiver.recv(0 if receiver.peer == "absent" else None)
                number = int.from_bytes(message[:8], "little")
                assert message == number.to_bytes(8, "little") * (len(message) // 8)
                assert number == last + 1
                last = number
    receiver.close()


def test_a_killed_receiver_leaves_the_rest_to_the_next_one_at_whatever_instant(seed):
    generator = random.Random(seed)
    name = unique("next")
    pid = in_child(send_without_end, name, seed)
    last = -1
    for _ in range(30):
        reader, writer = os.pipe()
        listener = in_child(write_numbers, name, writer)
        time.sleep(0.002 + generator.random() * 0.01)
        kill(listener)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            numbers = [int(line) for line in file.read().split(b"\n")[:-1]]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[0] > last
        last = numbers[-1] if numbers else last
    kill(pid)
    with shmring.open_channel(name, "receiver"):
        pass


def send_without_end(name, seed):
    """Send without end, while receivers attach and die."""
    sender = shmring.open_channel(name, "sender", 1 << 10)
    generator = random.Random(seed)
    number = 0
    while True:
        try:
            sender.send(number.to_bytes(8, "little") * generator.choice([1, 2, 5, 100, 400]), 0.1)
            number += 1
        except (PeerLostError, queue.Full):
            number += 1
            time.sleep(0.0005)


def write_numbers(name, writer):
    """Receive, check, and write down the numbers."""
    receiver = shmring.open_channel(name, "receiver", 1 << 10)
    while True:
        message = receiver.recv()
        number = message[:8]
        assert message == number * (len(message) // 8)
        os.write(writer, b"%d\n" % int.from_bytes(number, "little"))
