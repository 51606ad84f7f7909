"""The functions of MPI that XLA calls, called by name, without JAX: messages, and what XLA never asks for."""

import ctypes

import numpy as np
import pytest
from support.on_ranks import on_ranks

from shmring.jax import _mpi, world

LONG = 8 << 20  # bytes, more than a pair queue holds


class Library:
    """shmring.jax._mpi as MPItrampoline sees it, of one communicator."""

    def __init__(self, comm):
        world.connect = lambda activity: (comm.rank, comm.size)
        world.split = lambda color, key: (comm.dup(), "", comm.size)
        self.functions = ctypes.CDLL(_mpi.__file__)
        self.call("Init_thread", None, None, 3, ctypes.byref(ctypes.c_int()))
        self.clique = ctypes.c_size_t()
        self.call("Comm_split", self["COMM_WORLD"], 0, comm.rank, ctypes.byref(self.clique))

    def __getitem__(self, name):
        return ctypes.c_size_t.in_dll(self.functions, f"MPIABI_{name}")

    def call(self, name, *args):
        if code := getattr(self.functions, f"MPIABI_{name}")(*args):
            text, nbytes = ctypes.create_string_buffer(1024), ctypes.c_int()
            self.functions.MPIABI_Error_string(code, text, ctypes.byref(nbytes))
            raise OSError(text.value.decode())

    def post(self, name, x, peer, tag):
        request = ctypes.c_size_t()
        self.call(
            name, ctypes.c_void_p(x.ctypes.data), x.nbytes, self["BYTE"], peer, tag, self.clique, ctypes.byref(request)
        )
        return request

    def send(self, x, peer, tag):
        return self.post("Isend", x, peer, tag)

    def receive(self, x, peer, tag):
        return self.post("Irecv", x, peer, tag)

    def wait(self, request):
        self.call("Wait", ctypes.byref(request), None)
        assert request.value == 0

    def close(self):
        self.call("Comm_free", ctypes.byref(self.clique))


def numbered(rank, tag, nbytes):
    return np.random.default_rng([rank, tag]).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("nbytes", [64, LONG])
@pytest.mark.parametrize("last", ["sends", "receives"])
@on_ranks(2)
def test_tags_in_opposite_orders_find_their_messages(comm, nbytes, last):
    mpi, peer = Library(comm), 1 - comm.rank
    tags = (1, 2) if comm.rank == 0 else (2, 1)
    outs = {tag: np.empty(nbytes, np.uint8) for tag in tags}
    xs = [numbered(comm.rank, tag, nbytes) for tag in tags]
    receives = [mpi.receive(outs[tag], peer, tag) for tag in reversed(tags)]
    sends = [mpi.send(x, peer, tag) for x, tag in zip(xs, tags, strict=True)]
    for request in receives + sends if last == "sends" else sends + receives:
        mpi.wait(request)
    for tag in tags:
        assert np.array_equal(outs[tag], numbered(peer, tag, nbytes))
    mpi.close()


@pytest.mark.parametrize("nbytes", [64, LONG])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@on_ranks(2)
def test_receives_of_one_tag_get_the_messages_in_the_order_in_which_they_were_posted(comm, nbytes, order):
    mpi = Library(comm)
    if comm.rank == 0:
        xs = [numbered(i, 7, nbytes) for i in range(3)]
        requests = [mpi.send(x, 1, 7) for x in xs]
    else:
        outs = [np.empty(nbytes, np.uint8) for _ in range(3)]
        requests = [mpi.receive(out, 0, 7) for out in outs]
    for i in order if comm.rank == 1 else range(3):
        mpi.wait(requests[i])
    if comm.rank == 1:
        assert all(np.array_equal(out, numbered(i, 7, nbytes)) for i, out in enumerate(outs))
    mpi.close()


@on_ranks(3)
def test_messages_of_two_peers_do_not_wait_for_each_other(comm):
    mpi = Library(comm)
    x, out = np.full(LONG, comm.rank, np.uint8), np.empty((3, LONG), np.uint8)
    peers = [rank for rank in range(3) if rank != comm.rank]
    sends = [mpi.send(x, peer, comm.rank) for peer in peers]
    receives = [mpi.receive(out[peer], peer, peer) for peer in peers]
    for request in sends[::-1] + receives:
        mpi.wait(request)
    assert all((out[peer] == peer).all() for peer in peers)
    mpi.close()


@on_ranks(2)
def test_after_an_error_each_request_can_still_be_waited_for(comm):
    mpi = Library(comm)
    peer, x, out = 1 - comm.rank, np.zeros(LONG, np.uint8), np.empty(LONG, np.uint8)
    sends = [mpi.send(x, peer, tag) for tag in (1, 2)]
    receives = [mpi.receive(out, peer, tag) for tag in (1, 2)]
    with pytest.raises(OSError, match=r"rank 5|abort"):
        mpi.send(x, 5, 1)  # there is none: from now on every call on this communicator fails
        mpi.wait(receives[0])
    for request in sends + receives[1:]:
        with pytest.raises(OSError, match="failed"):
            mpi.wait(request)
    with pytest.raises(OSError, match=r"rank 5|abort"):
        mpi.receive(out, peer, 1)
    mpi.close()


@on_ranks(2)
def test_counts_and_types_that_differ_are_refused_and_nothing_is_sent(comm):
    mpi = Library(comm)
    x, out, counts = np.ones(6, np.float32), np.zeros(6, np.float32), (ctypes.c_int * 2)(2, 4)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, out)]
    with pytest.raises(OSError, match="counts that differ"):
        mpi.call("Reduce_scatter", *pointers, counts, mpi["FLOAT"], mpi["SUM"], mpi.clique)
    for count, dtype in [(2, "FLOAT"), (3, "INT32_T")]:
        with pytest.raises(OSError, match="another count or type"):
            mpi.call("Allgather", pointers[0], 3, mpi["FLOAT"], pointers[1], count, mpi[dtype], mpi.clique)
    mpi.call("Reduce_scatter", *pointers, (ctypes.c_int * 2)(3, 3), mpi["FLOAT"], mpi["SUM"], mpi.clique)
    assert out.tolist() == [2, 2, 2, 0, 0, 0]
    mpi.call("Allgather", pointers[0], 3, mpi["FLOAT"], pointers[1], 3, mpi["FLOAT"], mpi.clique)
    assert out.tolist() == [1] * 6
    mpi.close()
