"""Objects with open files: connections, sockets, ends of channels. They arrive, or the sender is refused; never is the
number of a descriptor sent in their place."""

import multiprocessing
import os
import pickle
import socket
import textwrap
from multiprocessing import resource_sharer

import numpy as np
import pytest
from support.children import in_child
from support.harness import PATIENCE
from support.on_ranks import on_ranks
from support.programs import run_in_launcher, run_python

import shmring
import shmring.multiprocessing as mp
from shmring import ObjectError
from shmring.core.objects.codec import dump
from shmring.core.objects.open_files import NOT_ONE, STRANGERS

TIMEOUT_S = 60 * PATIENCE
PAIRS = {
    "connections": multiprocessing.Pipe,
    "ring connections": mp.Pipe,
    "sockets": socket.socketpair,
    "ends": lambda: shmring.channel()[::-1],
    "queues": lambda: (shmring.Queue(),) * 2,
}
KINDS = pytest.mark.parametrize("kind", PAIRS)


@pytest.fixture(autouse=True)
def server():
    """The thread of multiprocessing that hands over open files ends with the test."""
    yield
    resource_sharer.stop(TIMEOUT_S)


def make(kind):
    """Two that are connected: what one sends the other receives. Their numbers are not free in another process."""
    before = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    try:
        return PAIRS[kind]()
    finally:
        for descriptor in before:
            os.close(descriptor)


def send(end):
    if isinstance(end, shmring.Queue):
        end.put(b"hello")
    else:
        end.send(b"hello")


def receive(end):
    if isinstance(end, socket.socket):
        end.settimeout(TIMEOUT_S)
        return end.recv(5)
    if isinstance(end, shmring.Queue):
        return end.get(timeout=TIMEOUT_S)
    if isinstance(end, shmring.Receiver):
        return bytes(end.recv(TIMEOUT_S))
    assert end.poll(TIMEOUT_S)
    return end.recv()


def check(found):
    assert receive(found["end"]) == b"hello"
    assert found["x"].sum() == 3


def answer(get, back):
    check(get())
    back.send(b"ok")


def through_a_queue():
    queue = shmring.Queue()
    return queue.put, lambda: queue.get(timeout=TIMEOUT_S)


def through_a_channel():
    sender, receiver = shmring.channel()
    return sender.send_object, lambda: receiver.recv(TIMEOUT_S)


def through_a_named_channel():
    name = f"files-{os.getpid()}"
    sender = shmring.open_channel(name, "sender")
    return sender.send_object, lambda: shmring.open_channel(name, "receiver").recv(TIMEOUT_S)


def through_a_broadcast_of_one():
    sender, (receiver,) = shmring.broadcast_channel(1)
    return sender.send_object, lambda: receiver.recv(TIMEOUT_S)


@KINDS
@pytest.mark.parametrize(
    "through", [through_a_queue, through_a_channel, through_a_named_channel, through_a_broadcast_of_one]
)
def test_they_arrive_in_a_process_of_the_family(through, kind):
    put, get = through()
    back, done = shmring.channel()
    near, far = make(kind)
    in_child(answer, get, back)
    put({"end": near, "x": np.arange(3)})
    send(far)
    assert bytes(done.recv(TIMEOUT_S)) == b"ok"


@KINDS
@on_ranks(2)
def test_they_arrive_by_messages_and_collectives(comm, kind):
    other = 1 - comm.rank
    for number in range(6):
        near, far = make(kind)
        item = {"end": near, "x": np.arange(3)}
        if number == 0:
            comm.send_object(item, other)
            found = comm.recv_object(other)
        elif number == 1:
            found = [comm.broadcast_object(item if comm.rank == root else None, root=root) for root in (0, 1)][other]
        elif number == 2:
            found = [comm.gather_object(item, root=root) for root in (0, 1)][comm.rank][other]
        elif number == 3:
            found = comm.all_gather_object(item)[other]
        elif number == 4:
            found = [comm.scatter_object([item, item] if comm.rank == root else None, root=root) for root in (0, 1)]
            found = found[other]
        else:
            found = comm.all_to_all_object([item, item])[other]
        send(far)
        check(found)


@on_ranks(3)
def test_an_object_for_several_ranks_is_refused_on_all(comm):
    near, _far = multiprocessing.Pipe()
    with pytest.raises(ObjectError, match="to one other process"):
        comm.broadcast_object(near if comm.rank == 0 else None)
    with pytest.raises(ObjectError, match="to one other process"):
        comm.all_gather_object(near if comm.rank == 1 else 0)
    for found in (
        comm.gather_object(near, root=1),
        comm.scatter_object([near] * 3 if comm.rank == 0 else None, root=0),
    ):
        assert (comm.rank != 1 and found is None) or found
    assert comm.all_reduce_object(1) == 3


def test_a_broadcast_to_several_refuses_them():
    sender, receivers = shmring.broadcast_channel(2)
    near, far = multiprocessing.Pipe()
    with pytest.raises(ObjectError, match="to one other process"):
        sender.send_object([near])
    far.send(1)
    assert near.recv() == 1
    sender.send_object([1])
    assert [receiver.recv(TIMEOUT_S) for receiver in receivers] == [[1], [1]]


@pytest.mark.leaks
@KINDS
def test_what_is_refused_stays_whole(kind):
    near, far = make(kind)
    for _ in range(3):
        with pytest.raises(ObjectError, match="within one program"):
            dump([1, near], refusal=STRANGERS)
    send(far)
    assert receive(near) == b"hello"
    for end in {near, far}:
        end.close()


def test_a_refused_end_can_still_be_taken_here():
    sender, receiver = shmring.channel()
    with pytest.raises(ObjectError):
        dump(sender, refusal=NOT_ONE)
    in_child(lambda: sender.send(b"x"))
    assert bytes(receiver.recv(TIMEOUT_S)) == b"x"


STRANGERS_PROGRAM = textwrap.dedent("""
    import multiprocessing, socket, pytest, shmring
    with shmring.init() as comm:
        name = "files-" + comm.broadcast_object(str(__import__("os").getpid()))
        channel = shmring.open_channel(name, ["sender", "receiver"][comm.rank])
        comm.barrier()
        if comm.rank == 0:
            for end in (multiprocessing.Pipe()[0], socket.socketpair()[0], shmring.channel()[0], shmring.Queue()):
                for send in (comm.send_object, channel.send_object):
                    with pytest.raises(shmring.ObjectError, match="within one program"):
                        send(*(end, 1)[:1 + (send == comm.send_object)])
        with pytest.raises(shmring.ObjectError, match="within one program"):
            comm.all_gather_object(multiprocessing.Pipe()[0])
        if comm.rank == 0:
            channel.send_object([1])
        else:
            assert channel.recv() == [1]
        comm.barrier()
""")


def test_ranks_that_a_launcher_starts_refuse_them(tmp_path):
    program = tmp_path / "strangers.py"
    program.write_text(STRANGERS_PROGRAM)
    run_in_launcher(2, program)


def connection(comm):
    return multiprocessing.Pipe()[0]


def an_end(comm):
    return shmring.channel()[0]


@pytest.mark.parametrize("result", [connection, an_end])
def test_a_result_of_spawn_is_refused(result):
    with pytest.raises(TypeError, match="only while its sender runs"):
        shmring.spawn(result, 2, start_method="fork", timeout=TIMEOUT_S)


def test_a_result_of_an_interactive_program_is_refused():
    pytest.importorskip("cloudpickle")
    program = """
import multiprocessing, shmring
def result(comm): return (lambda: 0), multiprocessing.Pipe()[0]
try: shmring.spawn(result, 1, start_method="fork", timeout=60)
except Exception as error: print(error)
"""
    assert "only while its sender runs" in run_python("-c", program)


def test_results_arrive_as_before():
    found = shmring.spawn(several_results, 1, start_method="fork", timeout=TIMEOUT_S)[0]
    assert found[0].flags.writeable
    assert found[1](2) == 4


def several_results(comm):
    x = np.arange(3)
    x.flags.writeable = False
    return x, (2).__mul__


def test_reducers_registered_later_are_used():
    class Local:
        pass

    with pytest.raises(ObjectError):
        dump(Local(), refusal=None)
    multiprocessing.reduction.register(Local, lambda _: (int, (5,)))
    try:
        assert pickle.loads(dump(Local(), refusal=None).stream) == 5
        multiprocessing.reduction.register(Local, lambda _: (int, (6,)))
        assert pickle.loads(dump(Local(), refusal=None).stream) == 6
    finally:
        del multiprocessing.reduction.ForkingPickler._extra_reducers[Local]
