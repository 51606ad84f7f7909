"""Objects from one rank to one other."""

import numpy as np
import pytest
from support.harness import run_ranks, start_ranks

from shmring.errors import MessageError, ObjectError, PeerLostError

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


def pass_round(comm):
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


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_objects_go_round_unchanged(n):
    run_ranks(n, pass_round)


def mix_with_arrays(comm):
    if comm.rank == 0:
        comm.send(np.arange(4.0), 1, 7)
        comm.send_object({"x": np.ones(50_000)}, 1, 7)
        comm.send(np.arange(4.0), 1, 7)
    else:
        x = np.zeros(4)
        with pytest.raises(MessageError, match=r"array of float64.*recv\(\)"):
            comm.recv_object(0, 7)
        comm.recv(x, 0, 7)
        assert comm.recv_object(0, 7)["x"].sum() == 50_000
        comm.recv(x, 0, 7)
        assert x.tolist() == [0, 1, 2, 3]
    comm.barrier()


def test_an_array_where_an_object_is_expected_stays_receivable():
    run_ranks(2, mix_with_arrays)


class Trap:
    def __reduce__(self):
        return int, ("no number",)


def fail_to_pickle(comm):
    if comm.rank == 0:
        with pytest.raises(ObjectError, match="cannot pickle"):
            comm.send_object(lambda: 0, 1)
        comm.send_object(Trap(), 1)
        comm.send_object("after", 1)
    else:
        with pytest.raises(ObjectError, match="cannot be unpickled here: ValueError"):
            comm.recv_object(0)
        assert comm.recv_object(0) == "after"
    comm.barrier()


def test_what_does_not_pickle_or_unpickle_harms_nothing_else():
    run_ranks(2, fail_to_pickle)


def refuse(comm):
    with pytest.raises(ValueError, match="allow_pickle=False"):
        comm.send_object(1, 0)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        comm.recv_object()
    comm.barrier()


def test_a_communicator_without_pickle_refuses_objects():
    run_ranks(2, refuse, init={"allow_pickle": False})


def die_before_sending(comm):
    if comm.rank == 0:
        import os

        os._exit(3)
    comm.recv_object(0)


def test_a_dead_sender_is_named():
    outcome = start_ranks(2, die_before_sending).outcomes()[1]
    assert type(outcome.error) is PeerLostError
    assert outcome.error.rank == 0
