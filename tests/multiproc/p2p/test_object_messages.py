"""Objects from one rank to one other."""

import contextlib
import os
import signal
from functools import partial

import numpy as np
import pytest
from support.harness import eventually, is_stopped, start_ranks
from support.on_ranks import on_ranks
from support.threads import at_once

from shmring.errors import (
    BrokenError,
    CollectiveTimeoutError,
    MessageError,
    MessageTimeoutError,
    ObjectError,
    PeerLostError,
)

OBJECTS = [
    None,
    {"a": [1, 2.5, "three"], "b": b"\x00" * 1000},
    np.arange(10),
    {"big": np.arange(300_000, dtype=np.float64).reshape(300, 1000), "small": np.arange(5), "none": np.empty(0)},
    [np.full(100_000, i, np.int16) for i in range(3)],
]


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and (a == b).all()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@on_ranks(1, 2, 3, 4)
def test_objects_go_round_unchanged(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for number, obj in enumerate(OBJECTS):
        if comm.rank == 0:
            comm.send_object(obj, right, tag=number)
            back = comm.recv_object(left, tag=number)
        else:
            back = comm.recv_object(left)
            comm.send_object(back, right, tag=number)
        assert same(obj, back), number
        if number == 3:
            back["big"] += 1  # writable, and its own
    comm.barrier()


ARRAYS = [
    np.arange(4.0),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    np.arange(4, dtype=np.longdouble),
    np.frombuffer(b"cos\nsystem\n(S'false'\ntR.", np.uint8),
]


@on_ranks(2)
def test_an_array_is_never_taken_for_an_object_nor_an_object_for_an_array(comm):
    if comm.rank == 0:
        for x in ARRAYS:
            comm.send(x, 1, 7)
            comm.send_object({"x": np.ones(50_000)}, 1, 7)
            comm.send(x, 1, 7)
    else:
        for sent in ARRAYS:
            x = np.zeros_like(sent)
            with pytest.raises(MessageError, match=r"an array of .*recv\(\)"):
                comm.recv_object(0, 7)
            comm.recv(x, 0, 7)
            assert (x == sent).all()
            message = comm.probe(0, 7)
            assert message.is_object
            assert message.dtype is None
            for room in (np.empty(1 << 20, np.uint8), np.empty(1 << 20, "V1"), np.empty(0)):
                with pytest.raises(TypeError, match=r"is a Python object.*recv_object\(\)"):
                    comm.recv(room, 0, 7)
                with pytest.raises(TypeError, match="is a Python object"):
                    comm.irecv(room, 0, 7).wait()
            assert comm.recv_object(0, 7)["x"].sum() == 50_000
            comm.recv(x, 0, 7)
            assert (x == sent).all()
    comm.barrier()


@contextlib.contextmanager
def stopped(pid):
    """A process is stopped in here."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: assert_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def assert_stopped(pid):
    assert is_stopped(pid)


@on_ranks(2, init={"pair_queue_nbytes": 65536})
def test_a_timeout_in_the_middle_of_an_object_loses_nothing(comm):
    if comm.rank == 1:
        for timeout in (0, 0.01):
            with pytest.raises(MessageTimeoutError, match="nothing is lost"):
                comm.recv_object(0, timeout=timeout)
    pids = comm.all_gather_object(os.getpid())
    big = {"one": np.arange(1 << 18), "two": np.arange(1 << 17), "text": "x" * 300_000}
    nobjects = 5
    if comm.rank == 0:
        for _ in range(nobjects):
            comm.send_object(big, 1)
        comm.send_object("next", 1)
    else:
        for _ in range(nobjects):
            comm.probe(0)
            with stopped(pids[0]), pytest.raises(MessageTimeoutError):
                comm.recv_object(0, timeout=0)  # takes what has arrived
            while True:
                with contextlib.suppress(MessageTimeoutError):
                    assert same(comm.recv_object(0, timeout=0), big)
                    break
        assert comm.recv_object(0) == "next"
    comm.barrier()


@on_ranks(2)
def test_a_half_sent_object_breaks_the_communicator(comm):
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeoutError):
            comm.send_object([np.zeros(1 << 20)], 1, timeout=0.05)
        with pytest.raises(BrokenError):
            comm.barrier()
    else:
        with pytest.raises(BrokenError):
            comm.barrier()


@on_ranks(2)
def test_parts_of_objects_that_threads_send_do_not_mix(comm):
    if comm.rank == 0:
        at_once(*[partial(comm.send_object, [n, np.full(40_000, n)], 1) for n in range(8)])
    else:
        got = [comm.recv_object() for _ in range(8)]
        assert sorted(n for n, _ in got) == list(range(8))
        assert all((x == n).all() for n, x in got)
    comm.barrier()


class Trap:
    def __reduce__(self):
        return int, ("no number",)


@on_ranks(2)
def test_what_does_not_pickle_or_unpickle_harms_nothing_else(comm):
    if comm.rank == 0:
        with pytest.raises(ObjectError, match="cannot pickle"):
            comm.send_object(lambda: 0, 1)
        comm.send_object(Trap(), 1)
        comm.send_object("after", 1)
    else:
        with pytest.raises(ObjectError, match="cannot unpickle what rank 0 sent: ValueError"):
            comm.recv_object(0)
        assert comm.recv_object(0) == "after"
    comm.barrier()


@on_ranks(2, init={"allow_pickle": False})
def test_a_communicator_without_pickle_refuses_objects(comm):
    with pytest.raises(ValueError, match="allow_pickle=False"):
        comm.send_object(1, 0)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        comm.recv_object()
    comm.barrier()


def die_before_sending(comm):
    if comm.rank == 0:
        os._exit(3)
    comm.recv_object(0)


def test_a_dead_sender_is_named():
    outcome = start_ranks(2, die_before_sending).outcomes()[1]
    assert type(outcome.error) is PeerLostError
    assert outcome.error.rank == 0
