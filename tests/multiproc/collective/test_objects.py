"""Python objects in collectives: every kind and size, in step whatever fails."""

import os
import threading
from itertools import product

import numpy as np
import pytest
from support.harness import RANKS, run_ranks
from support.on_ranks import on_ranks
from support.threads import at_once

from shmring import Communicator
from shmring.collectives.calls.object_transfer import OBJECT_HEADER_NBYTES, PIECE_NBYTES, _rounded
from shmring.errors import AbortedError, MismatchError, ObjectError

GROUPS = [2, 3, 4]

# Bytes of an array: none; in the label, at its end, in the letter, beside it; at the ends of pieces; many pieces.
SIZES = (0, 1, 30, 40, 57, 90, 200, 4096, 65_535, 65_536, PIECE_NBYTES - 1, PIECE_NBYTES, PIECE_NBYTES + 1, 1_000_003)


def thing(rank, key, nbytes=0):
    """An object that every rank can make again."""
    rng = np.random.default_rng([rank, key, nbytes])
    array = rng.integers(0, 256, nbytes, np.uint8)
    text, half = "ä" * (key % 7), array[: nbytes // 2].copy()
    return {"rank": rank, "key": key, "text": text, "array": array, "more": [half, None]}


def is_same(a, b):
    assert a["rank"] == b["rank"]
    assert (a["key"], a["text"], a["more"][1]) == (b["key"], b["text"], b["more"][1])
    assert a["array"].dtype == np.uint8
    assert a["array"].tobytes() == b["array"].tobytes()
    assert a["more"][0].tobytes() == b["more"][0].tobytes()
    assert a["array"].flags.writeable
    return True


def send_things(comm, sizes, key):
    """Every call, with objects of these sizes by rank."""
    rank, size = comm.rank, comm.size
    root = key % size
    things = [thing(r, key, sizes[r % len(sizes)]) for r in range(size)]
    mine = things[rank]
    pairs = [[thing(a * 100 + b, key, sizes[(a + b) % len(sizes)]) for b in range(size)] for a in range(size)]

    got = comm.broadcast_object(mine if rank == root else "ignored", root)
    assert is_same(got, things[root])
    assert (got is mine) == (rank == root)

    got = comm.gather_object(mine, root=root)
    assert (got is None) == (rank != root)
    assert got is None or (len(got) == size and all(map(is_same, got, things)) and got[root] is mine)

    got = comm.all_gather_object(mine)
    assert len(got) == size
    assert all(map(is_same, got, things))
    assert got[rank] is mine

    got = comm.scatter_object(pairs[root] if rank == root else None, root=root)
    assert is_same(got, pairs[root][rank])

    got = comm.all_to_all_object(pairs[rank])
    assert all(is_same(got[r], pairs[r][rank]) for r in range(size))


@pytest.mark.sample(1)
@on_ranks(*RANKS)
def test_objects_of_all_sizes_arrive_alike_and_unlike(comm):
    for key, nbytes in enumerate(SIZES):
        send_things(comm, [nbytes], key)
    for key in range(len(SIZES)):
        send_things(comm, [SIZES[key], 5, SIZES[-key], 0], 50 + key)


@pytest.mark.long
@on_ranks(2, 3)
def test_arrays_of_50_mb_inside_dicts_arrive(comm):
    send_things(comm, [50_000_000], 1)
    send_things(comm, [3, 20_000_001], 2)


class Counted(Communicator):
    """A communicator that counts the bytes passed to its collectives."""

    moved = 0

    def _count(self, x):
        self.moved += 0 if x is None else x.nbytes

    def gather(self, x, *args, **kwargs):
        self._count(x)
        return super().gather(x, *args, **kwargs)

    def scatter(self, x, *args, **kwargs):
        self._count(x)
        return super().scatter(x, *args, **kwargs)

    def all_to_all(self, x, *args, **kwargs):
        self._count(x)
        return super().all_to_all(x, *args, **kwargs)


def send_one_large(comm, call, nbytes):
    comm = Counted(comm._engine)
    large, objs = np.zeros(nbytes, np.uint8), [comm.rank] * comm.size
    if call == "gather":
        got = comm.gather_object(large if comm.rank == 1 else 1)
        assert got is None or got[1].nbytes == nbytes
    elif call == "scatter":
        objs[2] = large
        got = comm.scatter_object(objs if comm.rank == 0 else None)
        assert comm.rank != 2 or got.nbytes == nbytes
    else:
        if comm.rank == 1:
            objs[2] = large
        got = comm.all_to_all_object(objs)
        assert comm.rank != 2 or got[1].nbytes == nbytes
    for program in comm.stats()["programs"]:
        assert np.sum(program["nbytes"]) <= PIECE_NBYTES  # one piece of the large object, nothing of other ranks
    return comm.moved


@pytest.mark.parametrize("call", ["gather", "scatter", "all_to_all"])
def test_a_large_object_of_one_rank_makes_no_other_rank_send_more(call):
    nbytes = 5_000_000
    moved = sum(run_ranks(4, send_one_large, call, nbytes))
    assert nbytes <= moved < nbytes + 65_536


def send_kinds(comm):
    import datetime
    import decimal

    kinds = [
        None,
        True,
        1 << 300,
        1e-300,
        2j,
        "",
        "a" * 300_000,
        b"b" * 300_000,
        bytearray(300_000),
        (),
        [[]],
        {1: {2}},
        datetime.datetime(2026, 1, 2),
        decimal.Decimal("1.10"),
        OSError(2, "no"),
        np.float32,
        np.int8(3),
        send_kinds,
    ]
    for obj in kinds:
        got = comm.all_gather_object(obj)
        assert len(got) == comm.size
        for one in got:
            assert type(one) is type(obj)
            assert repr(one) == repr(obj)
    return True


def test_objects_of_every_kind_arrive():
    run_ranks(3, send_kinds)


@on_ranks(3)
def test_received_arrays_are_writable_and_outlive_the_communicator(comm):
    x = np.arange(200_000) if comm.rank == 0 else None
    first = comm.broadcast_object(x)
    comm.broadcast_object(np.zeros(200_000, np.int64) if comm.rank == 0 else None)  # through the same slots
    assert (first == np.arange(200_000)).all()
    first += 1  # of this rank alone
    comm.barrier()
    assert first[0] == 1
    if comm.rank == 0:
        assert first is x
    else:
        assert first.base is not None
    comm.close()
    assert first.sum() == sum(range(1, 200_001))


# -- what fails -------------------------------------------------------------------------------------------------------


CALLS = ("broadcast", "gather", "all_gather", "scatter", "all_to_all")


def call_by_name(comm, call, obj, root=0):
    if call == "broadcast":
        return comm.broadcast_object(obj, root)
    if call == "gather":
        return comm.gather_object(obj, root)
    if call == "all_gather":
        return comm.all_gather_object(obj)
    if call == "scatter":
        return comm.scatter_object([obj] * comm.size, root)
    return comm.all_to_all_object([obj] * comm.size)


class Unpicklable:
    def __reduce__(self):
        raise LookupError("keep me here")


@on_ranks(*GROUPS)
def test_what_one_rank_cannot_pickle_is_an_error_on_all_and_they_stay_in_step(comm):
    bad = comm.size - 1
    for call, obj in product(CALLS, (Unpicklable(), {"a": np.zeros(1_000_000), "b": Unpicklable()}, threading.Lock())):
        with pytest.raises(ObjectError, match=f"rank {bad} cannot pickle") as caught:
            call_by_name(comm, call, obj if comm.rank == bad else thing(0, 0, 500_000), root=bad)
        assert caught.value.rank == bad
        assert (caught.value.__cause__ is not None) == (comm.rank == bad)
        # Still in step: the very same call, and another one.
        call_by_name(comm, call, thing(0, 0, 500_000), root=bad)
        assert comm.all_gather_object(comm.rank) == list(range(comm.size))
    assert not comm.is_broken


def refuse_elsewhere(pid):
    if os.getpid() != pid:
        raise LookupError("not to be made here")
    return pid


class Homesick:
    """Can be pickled everywhere and unpickled at home only."""

    def __reduce__(self):
        return refuse_elsewhere, (os.getpid(),)


@on_ranks(*GROUPS)
def test_what_a_receiver_cannot_unpickle_is_its_own_error_and_all_stay_in_step(comm):
    bad = comm.size - 1
    obj = Homesick() if comm.rank == bad else 1
    sent = f"cannot unpickle what rank {bad} sent: LookupError: not to"
    for call in CALLS:
        root = 0 if call == "gather" else bad
        if comm.rank == root if call == "gather" else comm.rank != bad:
            with pytest.raises(ObjectError, match=sent) as caught:
                call_by_name(comm, call, obj, root)
            assert caught.value.rank == bad
            assert isinstance(caught.value.__cause__, LookupError)
        else:
            call_by_name(comm, call, obj, root)
        assert comm.all_gather_object(comm.rank) == list(range(comm.size))


@on_ranks(*GROUPS, init={"allow_pickle": False})
def test_allow_pickle_false_refuses_before_anything_is_sent(comm):
    for call in CALLS:
        with pytest.raises(ValueError, match="allow_pickle=False"):
            call_by_name(comm, call, 1)
    x = np.ones(3)
    comm.all_reduce(x)  # nothing was sent
    assert x[0] == comm.size


@on_ranks(2)
def test_bad_arguments_leave_the_communicator_in_step(comm):
    for root in (-1, comm.size):
        with pytest.raises(ValueError, match="root="):
            comm.broadcast_object(1, root)
        with pytest.raises(ValueError, match="root="):
            comm.gather_object(1, root)
    with pytest.raises(TypeError):
        comm.broadcast_object(1, root="0")
    with pytest.raises(ValueError, match="one per rank"):
        comm.all_to_all_object([1] * (comm.size + 1))
    with pytest.raises(TypeError, match="sequence"):
        comm.all_to_all_object("ab")
    with pytest.raises(ValueError, match="one per rank"):
        comm.scatter_object([], root=comm.rank)
    with pytest.raises(ValueError, match="timeout"):
        comm.all_gather_object(1, timeout=-1)
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))


WAYS = {
    "call": lambda comm, odd: comm.all_gather_object(1) if odd else comm.gather_object(1),
    "root": lambda comm, odd: comm.gather_object(1, root=int(odd)),
    "array": lambda comm, odd: (
        comm.all_gather(np.zeros(OBJECT_HEADER_NBYTES, np.uint8)) if odd else comm.all_gather_object(1)
    ),
    "other": lambda comm, odd: comm.barrier() if odd else comm.broadcast_object(1),
}


def disagree(comm):
    found = {}
    for way, call in WAYS.items():
        with comm.dup() as group:
            with pytest.raises((MismatchError, AbortedError)) as caught:
                call(group, comm.rank == comm.size - 1)
                group.barrier()
                group.barrier()
            assert group.is_broken
            found[way] = type(caught.value)
    return found


@pytest.mark.parametrize("n", GROUPS)
def test_ranks_that_disagree_about_the_call_get_errors_and_no_objects(n):
    by_rank = run_ranks(n, disagree)
    assert all(MismatchError in [found[way] for found in by_rank] for way in WAYS)


@on_ranks(3)
def test_what_breaks_off_between_two_collectives_ends_the_communicator_everywhere(comm):
    # Between the label and the rest there is Python: what is raised there must not leave ranks out of step.
    if comm.rank == 0:
        comm.broadcast = None  # the rest of all_gather_object goes by it
        with pytest.raises(TypeError):
            comm.all_gather_object(np.zeros(1_000_000))
    else:
        with pytest.raises(AbortedError, match="rank 0 aborted: TypeError"):
            comm.all_gather_object(np.zeros(1_000_000))
    assert comm.is_broken


@on_ranks(2)
def test_threads_of_a_rank_take_turns_by_whole_calls(comm):
    # One call on objects is several collectives; those of two threads must not mix.
    def work():
        for _ in range(30):
            got = comm.all_gather_object(np.full(100_000, comm.rank))
            assert all((x == r).all() for r, x in enumerate(got))

    at_once(*[work] * 3)
    assert not comm.is_broken


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 70_000, PIECE_NBYTES])
def test_pieces_are_rounded_to_few_sizes_and_never_cut(nbytes):
    assert nbytes <= _rounded(nbytes) < max(4097, 2 * nbytes)
    assert _rounded(_rounded(nbytes)) == _rounded(nbytes)


def test_pieces_have_few_sizes():
    assert len({_rounded(nbytes) for nbytes in range(PIECE_NBYTES + 1)}) < 9
