"""`shmring.wait` at ends of all kinds."""

import multiprocessing
import os
import queue
import socket
import threading

import pytest
from support.children import in_child, status_of
from support.reading_ends import broadcast, channel, fan_in, shared_queue

import shmring
import shmring.multiprocessing
from shmring import ClosedError


def records():
    sender, receiver = shmring.channel(dtype="f8")
    return lambda x: sender.send(float(x[0])), receiver


def connection():
    reader, writer = multiprocessing.Pipe(False)
    return writer.send_bytes, reader


def ring_connection():
    reader, writer = shmring.multiprocessing.Pipe(False)
    return writer.send_bytes, reader


def sockets():
    ours, theirs = socket.socketpair()
    return theirs.send, ours


MAKERS = [channel, fan_in, broadcast, records, shared_queue, connection, ring_connection, sockets]


@pytest.mark.parametrize("make", MAKERS)
def test_the_end_that_has_something_is_returned_and_the_others_are_not(make):
    send, end = make()
    _others = [maker() for maker in MAKERS]
    ends = [other for _, other in _others] + [end]
    assert shmring.wait(ends, 0) == []
    assert shmring.wait(ends, 0.01) == []
    send(b"x")
    assert shmring.wait(ends) == [end]
    assert shmring.wait(ends) == [end]  # nothing was taken
    assert shmring.wait([end], 5) == [end]


@pytest.mark.parametrize("make", MAKERS)
def test_a_wait_is_ended_by_what_another_process_sends(make):
    send, end = make()
    _others = [maker() for maker in MAKERS]
    go, gone = os.pipe()

    def child():
        os.read(go, 1)
        send(b"x")
        if hasattr(send, "__self__") and hasattr(send.__self__, "close"):
            send.__self__.close()
        os.read(go, 1)  # after its end no process but the parent could send to the other ends: they would be ready

    pid = in_child(child)
    timer = threading.Timer(0.05, os.write, (gone, b"x"))
    timer.start()
    ends = [other for _, other in _others] + [end]
    found = shmring.wait(ends)
    timer.join()
    os.write(gone, b"x")
    assert found == [end]
    assert status_of(pid) == 0
    os.close(go)
    os.close(gone)


def test_several_are_returned_in_their_order_and_one_given_twice_is_returned_twice():
    made = [maker() for maker in MAKERS]
    for send, _ in made:
        send(b"x")
    ends = [end for _, end in made]
    assert shmring.wait(ends) == ends
    assert shmring.wait([ends[0], ends[0], ends[-1], ends[-1]]) == [ends[0], ends[0], ends[-1], ends[-1]]


def test_the_end_of_a_stream_is_ready():
    sender, receiver = shmring.channel()
    _other = shmring.channel()
    sender.take().close()
    assert shmring.wait([_other[1], receiver]) == [receiver]
    with pytest.raises(ValueError, match="nothing to wait for"):
        shmring.wait([])


def test_a_timeout_may_be_longer_than_a_poll_can_be():
    (sender, receiver), (_other, idle) = shmring.channel(), shmring.channel()
    sleeping = threading.Timer(0.1, sender.send, [b"late"])
    sleeping.start()
    assert shmring.wait([receiver, idle], 1e12) == [receiver]
    sleeping.join()


def test_what_cannot_be_waited_for_is_refused():
    sender, receiver = shmring.channel()
    for wrong in (sender, object(), None):
        with pytest.raises(TypeError, match="neither a receiver"):
            shmring.wait([receiver, wrong])
    for number in (-1, 1 << 31, 1 << 40):
        with pytest.raises(ValueError, match=f"cannot wait for {number}: a descriptor"):
            shmring.wait([receiver, number], 0)
    assert shmring.wait([receiver], -1) == []  # as 0
    receiver.close()
    with pytest.raises(ClosedError):
        shmring.wait([receiver, shmring.Queue()], 1)


def test_several_processes_wait_for_one_queue():
    tasks, results = shmring.Queue(), shmring.Queue()

    def child():
        _sender, other = shmring.channel()
        while True:
            assert shmring.wait([other, tasks]) == [tasks]
            try:
                item = tasks.get_nowait()
            except queue.Empty:  # another process was quicker
                continue
            results.put(item)
            if item is None:
                return

    pids = [in_child(child) for _ in range(3)]
    for item in [*range(200), None, None, None]:
        tasks.put(item)
    got = [results.get(timeout=60) for _ in range(203)]
    assert sorted(x for x in got if x is not None) == list(range(200))
    assert [status_of(pid) for pid in pids] == [0, 0, 0]


def wait_in_child(tasks, results):
    _sender, other = shmring.channel()
    results.put(shmring.wait([other, tasks]) == [tasks] and tasks.get_nowait())


@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_queue_is_waited_for_in_a_process_that_was_not_forked(method):
    context = multiprocessing.get_context(method)
    tasks, results = shmring.Queue(), shmring.Queue()
    process = context.Process(target=wait_in_child, args=(tasks, results))
    process.start()
    tasks.put("there")
    assert results.get(timeout=60) == "there"
    process.join()


def test_a_queue_is_not_ready_once_its_items_were_got():
    one, (_sender, other) = shmring.Queue(), shmring.channel()
    for item in range(5):
        assert shmring.wait([one, other], 0) == []
        one.put(item)
        one.put(item)
        assert shmring.wait([one, other]) == [one]
        assert one.get() == one.get() == item
