"""Ends that no process has taken, and none can: a wait for one ends, as that at a pipe whose other end is gone."""

import gc
import os
import pickle
import queue
import threading
from multiprocessing import get_context

import pytest
from support.children import in_child, status_of
from support.harness import eventually, open_files
from support.programs import run_python
from support.threads import at_once

import shmring
from shmring import EndOfStreamError, PeerLostError
from shmring.core.ring.inspect import look

METHODS = ["fork", "spawn", "forkserver"]
# multiprocessing keeps its fork server, and a thread that hands over descriptors
by_every_method = [pytest.mark.leaks, pytest.mark.parametrize("method", METHODS)]


def all_of(marks):
    """A decorator: all of these marks."""

    def mark(test):
        for one in marks:
            test = one(test)
        return test

    return mark


class CannotBeUnpickled:
    def __reduce__(self):
        return os._exit, (3,)


def die(*ends):
    """A worker that fails before it uses what it was given."""
    os._exit(3)


def started(method, target, *args):
    process = get_context(method).Process(target=target, args=args)
    process.start()
    return process


def made(kind):
    """An end to wait at, the ends to give away, and the call that waits for them."""
    if kind == "receiver":
        sender, receiver = shmring.channel()
        return receiver, [sender], receiver.recv
    if kind == "sender":
        sender, receiver = shmring.channel(1 << 10)
        return sender, [receiver], lambda: [sender.send(bytes(400)) for _ in range(9)]
    if kind == "record receiver":
        sender, receiver = shmring.channel(dtype="f8")
        return receiver, [sender], receiver.recv
    if kind == "record sender":
        sender, receiver = shmring.channel(64, dtype="f8")
        return sender, [receiver], lambda: sender.send_many([1.0] * 99)
    if kind == "stream":
        sender, receiver = shmring.channel(1 << 10)
        return sender, [receiver], lambda: sender.send(bytes(1 << 20))
    if kind == "fan-in":
        senders, receiver = shmring.fan_in(2)
        return receiver, senders, receiver.recv
    sender, receivers = shmring.broadcast_channel(2, 1 << 10)
    return sender, receivers, lambda: [sender.send(bytes(400)) for _ in range(9)]


KINDS = ["receiver", "sender", "record receiver", "record sender", "stream", "fan-in", "broadcast"]


@pytest.mark.sample(len(KINDS))
@all_of(by_every_method)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_when_the_process_that_was_given_the_other_end_dies_before_it_uses_it(kind, method):
    end, given, call = made(kind)
    process = started(method, die, *given)
    del given
    with pytest.raises(PeerLostError, match=r"none can|closed or dead"):
        call()
    process.join()
    end.close()


@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_wait_ends_when_the_process_dies_before_it_has_unpickled_the_end(method):
    sender, receiver = shmring.channel()
    process = started(method, die, CannotBeUnpickled(), sender)
    with pytest.raises(PeerLostError, match="none can"):
        receiver.recv()
    assert receiver.peer == "lost"
    assert sender.peer == "here"  # it was passed on, but this process may still take it
    process.join()


@pytest.mark.sample(3)
@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["receiver", "sender", "record receiver"])
def test_an_end_comes_back_from_a_process_that_was_not_started(kind, method):
    end, given, call = made(kind)
    for _ in range(2):
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            started(method, die, *given, lambda: "does not pickle")
        assert end.peer == "absent"
        if hasattr(end, "poll"):
            assert not end.poll()
            assert not end.poll(0.05)
    process = started(method, die, *given)
    with pytest.raises(PeerLostError, match=r"none can|closed or dead"):
        call()
    process.join()


@pytest.mark.leaks
def test_an_end_that_came_back_is_used_here():
    sender, receiver = shmring.channel()
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        started("spawn", die, sender, lambda: "does not pickle")
    assert not receiver.poll()
    sender.send(b"from here")
    assert receiver.recv() == b"from here"


def send_at_last(event, sender):
    event.wait()
    with sender:
        sender.send(b"at last")


@all_of(by_every_method)
def test_a_process_that_is_slow_to_use_its_end_is_waited_for(method):
    sender, receiver = shmring.channel()
    event = get_context(method).Event()
    process = started(method, send_at_last, event, sender)
    del sender
    for _ in range(9):
        with pytest.raises(queue.Empty):
            receiver.recv(0.01)
        assert receiver.peer == "absent"
    event.set()
    assert receiver.recv() == b"at last"
    with pytest.raises(EndOfStreamError):
        receiver.recv()
    process.join()


def pass_on(method, event, sender):
    process = started(method, send_at_last, event, sender)
    os._exit(0 if process.pid else 1)  # without waiting for it


@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_end_that_was_passed_on_twice_is_waited_for(method):
    sender, receiver = shmring.channel()
    event = get_context(method).Event()
    process = started(method, pass_on, method, event, sender)
    process.join()
    with pytest.raises(queue.Empty):
        receiver.recv(0.01)
    event.set()
    assert receiver.recv() == b"at last"


def test_the_sender_of_a_fan_in_that_died_first_is_named_and_the_others_go_on():
    senders, receiver = shmring.fan_in(2)
    dead = in_child(die, senders.pop(0))
    assert os.waitstatus_to_exitcode(os.waitpid(dead, 0)[1]) == 3

    def child():
        with senders[0]:
            senders[0].send(b"from 1")

    assert status_of(in_child(child)) == 0
    found = []
    while len(found) < 2:
        try:
            found.append(receiver.recv())
        except PeerLostError as error:
            found.append(error.rank)
    assert sorted(found, key=str) == [0, b"from 1"]
    receiver.close()


def test_a_receiver_of_a_broadcast_that_died_first_is_left_behind():
    sender, receivers = shmring.broadcast_channel(2, 1 << 10)
    kept = receivers.pop(0)
    dead = in_child(die, receivers.pop())
    os.waitpid(dead, 0)
    for i in range(20):
        sender.send(bytes([i]) * 400)
        assert kept.recv()[0] == i
    assert [one.state for one in sender.receivers] == ["here", "lost"]


def test_an_end_that_another_thread_may_still_take_is_waited_for():
    sender, receiver = shmring.channel()
    os.waitpid(in_child(die), 0)
    received = []
    thread = threading.Thread(target=lambda: received.append(receiver.recv()))
    thread.start()
    eventually(lambda: assert_awaited(receiver))
    sender.send(b"from a thread")
    thread.join()
    assert received == [b"from a thread"]


def assert_awaited(receiver):
    assert look(memoryview(receiver._channel.mapping)[receiver._channel.ring_offset :]).consumer.asleep


def test_an_end_of_a_channel_that_was_never_passed_on_is_waited_for():
    sender, receiver = shmring.channel()
    del sender
    with pytest.raises(queue.Empty):
        receiver.recv(0.01)


@pytest.mark.parametrize("passes", ["recv", "poll", "try_recv", "iteration"])
def test_every_call_finds_that_nothing_will_come(passes):
    sender, receiver = shmring.channel()
    os.waitpid(in_child(die), 0)
    del sender
    if passes == "poll":
        assert receiver.poll(None)
        return
    with pytest.raises(PeerLostError):
        {"recv": receiver.recv, "try_recv": receiver.try_recv, "iteration": receiver.__next__}[passes]()


def test_a_waiting_sibling_learns_it_when_no_process_has_the_end_any_longer():
    sender, receiver = shmring.channel()

    def sibling():
        nonlocal sender
        del sender
        with pytest.raises(PeerLostError):
            receiver.recv()

    waiting = in_child(sibling)
    os.waitpid(in_child(die, sender), 0)
    eventually(lambda: assert_awaited(receiver))
    del sender
    assert status_of(waiting) == 0


def test_files_of_ends_that_are_gone_are_closed():
    gc.collect()
    before = open_files().keys()
    for _ in range(3):
        _sender, _receiver = shmring.channel()
        os.waitpid(in_child(die), 0)
    del _sender, _receiver
    assert open_files().keys() <= before  # the collector may have closed what earlier tests have left


SENT_BY_ANOTHER_THREAD = """
import _thread, ctypes, os, threading, time
import shmring

sender, receiver = shmring.channel()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)

def send(_=None):
    time.sleep(0.2)
    sender.send(b"x")

def start_thread_of_c():
    # The thread has no state of Python's until it calls this function, and `threading` never learns of it.
    kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(send))
    thread = ctypes.c_ulong()
    assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, kept[0], None) == 0

kept = []
{start}
assert threading.active_count() == 1
print(receiver.recv())
"""


@pytest.mark.parametrize("start", ["start_thread_of_c()", "_thread.start_new_thread(send, ())"])
def test_a_thread_that_is_not_known_to_the_threading_module_is_waited_for(start):
    assert run_python("-c", SENT_BY_ANOTHER_THREAD.format(start=start)) == "b'x'\n"


ALONE = """
import os
import shmring

sender, receiver = shmring.channel()
_, watched = shmring.channel()
watched.fileno()
assert watched.try_recv() is None  # starts the waiter thread; the keeper is there, too
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
assert len(os.listdir("/proc/self/task")) > 2
try:
    receiver.recv()
except shmring.PeerLostError as error:
    print(error)
"""


def test_threads_of_shmring_do_not_count():
    assert "none can" in run_python("-c", ALONE)


def test_threads_make_and_drop_channels_at_once():
    def make_and_drop():
        for _ in range(200):
            sender, receiver = shmring.channel(64)
            sender.send(b"x")
            assert receiver.recv() == b"x"

    at_once(*[make_and_drop] * 4)
    assert status_of(in_child(make_and_drop)) == 0  # a fork goes through the list of those that are left


def close(end):
    end.close()


@pytest.mark.sample(1)
@all_of(by_every_method)
def test_the_memory_goes_with_ends_that_were_passed_on(method):
    gone = []
    for _ in range(2):
        ends = shmring.channel(1 << 20)
        memory = os.fstat(ends[0]._channel.memory.descriptor)
        processes = [started(method, close, end) for end in ends]
        for process in processes:
            process.join()
            assert process.exitcode == 0
        for end in ends:
            end.close()
        del ends, end
        gc.collect()
        gone.append(memory)
        open_now = [os.stat(f"/proc/self/fd/{number}") for number in open_files()]
        assert not [one for one in open_now for old in gone if os.path.samestat(one, old)]


@all_of(by_every_method)
def test_closed_ends_keep_no_descriptor_for_processes_that_have_started(method):
    ends = shmring.channel(1 << 20)
    memory = os.fstat(ends[0]._channel.memory.descriptor)

    def descriptors():
        return sum(os.path.samestat(os.stat(f"/proc/self/fd/{number}"), memory) for number in open_files())

    processes = [started(method, close, end) for end in ends]
    for process, end in zip(processes, ends, strict=True):
        process.join()
        end.close()
    assert descriptors() <= 2  # of the memory itself, and of the locks of this process
