"""Point-to-point messages on real processes: exact contents, order, matching, and what is left after errors."""

import asyncio
import os
import pickle
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import compiled
from support.children import in_child, status_of
from support.harness import RANKS, report, run_ranks, start_ranks
from support.inputs import NUMPY_DTYPES, same_bits, values
from support.on_ranks import on_ranks
from support.waits import until_ended, until_idle, until_waiting

import shmring
from shmring import ANY_SOURCE, ANY_TAG
from shmring.collectives.observe.look import LOOK_NBYTES, look
from shmring.core.kernel.reduce import STORES
from shmring.errors import (
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    MessageTimeoutError,
    MessageTooLongError,
    PeerLostError,
)

GROUPS = [n for n in RANKS if n > 1]
hooks = compiled.load("engine_hooks")

TINY = {"pair_queue_nbytes": 4096}  # pieces of 512 bytes
PIECE, QUEUE_NBYTES = 32 << 10, 256 << 10
SHORT = {"pair_queue_nbytes": QUEUE_NBYTES}
# Bytes: none, one, at the ends of a cell, of a line, of a piece, of the whole pair queue, and several pair queues.
SIZES = (0, 1, 39, 40, 41, 64, 65, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 70_000, PIECE - 1, PIECE,
         PIECE + 1, QUEUE_NBYTES, QUEUE_NBYTES + 1, 3 * QUEUE_NBYTES + 7)  # fmt: skip


# ---- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "init",
    [{}, TINY, SHORT, {"stores": 1}, {"stores": 2}, {"stores": 3}],
    ids=["default", "tiny", "short", "streaming", "prefetched", "string"],
)
@on_ranks(*RANKS, init=lambda init: init)
def test_messages_of_every_size_arrive_exactly_between_all_ranks(comm):
    for nbytes in SIZES:
        for src in range(comm.size):
            for dst in range(comm.size):
                expected = values("uint8", nbytes, src, dst, nbytes)
                if comm.rank == src == dst:
                    comm.send(expected, dst, nbytes)
                elif comm.rank == src:
                    assert comm.send(expected, dst, nbytes) is None
                if comm.rank == dst:
                    x = np.full(nbytes, 255, np.uint8)
                    message = comm.recv(x, src, nbytes)
                    assert (message.source, message.tag, message.nbytes) == (src, nbytes, nbytes)
                    assert same_bits(x, expected), (nbytes, src, dst)


@pytest.mark.parametrize("init", [{}, TINY, {"stores": 3}, TINY | {"stores": 3}])
@on_ranks(2, init=lambda init: init)
def test_messages_arrive_from_and_at_any_place_in_a_line(comm):
    room = np.zeros(4096 + 40_000, np.uint8)
    start = -room.ctypes.data % 64
    rng = random.Random(6)
    for i in range(300):
        # Around one piece and several.
        nbytes = max(1, rng.choice((64, 512, 4096, 8192, 16384, 32768)) + rng.randrange(-130, 130))
        offset, expected = start + rng.choices(range(64), k=2)[comm.rank], values("uint8", nbytes, i)
        if comm.rank == 0:
            room[offset : offset + nbytes] = expected
            comm.send(room[offset : offset + nbytes], 1)
        else:
            room[:] = 7
            assert comm.recv(room[offset : offset + nbytes], 0).nbytes == nbytes
            assert same_bits(room[offset : offset + nbytes], expected), (i, nbytes, offset)
            assert (room[:offset] == 7).all()
            assert (room[offset + nbytes :] == 7).all()


@on_ranks(2)
def test_every_dtype_and_layout_arrives_and_is_described(comm):
    other = 1 - comm.rank
    for name, dtype in NUMPY_DTYPES.items():
        for count in (3, 20_000):
            x, out = values(dtype, count, comm.rank, count), np.zeros(count + 5, dtype)
            message = comm.sendrecv(x, other, out, other)
            assert (message.dtype, message.count, message.nbytes) == (name, count, count * dtype.itemsize)
            assert same_bits(out[:count], values(dtype, count, other, count))
            assert not out[count:].any()
    record = np.dtype([("a", "f4"), ("b", "i8")])
    x, out = np.array([(1.5, comm.rank)] * 9, record), np.zeros(9, record)
    message = comm.sendrecv(x, other, out, other)
    assert (message.dtype, message.count) == (None, x.nbytes)
    assert out["b"].tolist() == [other] * 9
    raw = np.zeros(x.nbytes, np.uint8)  # what is opaque may be taken as bytes
    comm.sendrecv(x, other, raw, other)
    assert raw.tobytes() == out.tobytes()
    strided, swapped = np.zeros((40, 2))[:, 0], np.zeros(40, ">f8")
    comm.sendrecv(np.arange(80.0)[::2], other, strided, other)
    comm.sendrecv(np.arange(40.0).astype(">f8"), other, swapped, other)
    assert strided.tolist() == list(range(0, 80, 2))
    assert swapped.tolist() == list(range(40))
    later = np.zeros((40, 2))[:, 0]
    request = comm.irecv(later, other)
    comm.send(np.arange(40.0), other)
    request.wait()
    assert later.tolist() == list(range(40))


@on_ranks(2, init=TINY)
def test_cells_and_bytes_are_reused_for_ever_and_nothing_overwrites(comm):
    count = 5000
    if comm.rank == 0:
        for i in range(count):
            comm.send(np.full(i % 30, i), 1, i % 3)
    else:
        x = np.zeros(30, np.int64)
        for i in range(count):
            message = comm.recv(x, 0)
            assert (message.count, message.tag) == (i % 30, i % 3)
            assert (x[: message.count] == i).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("stores", [-1, 0, 1, 2, 3])
@on_ranks(2, init=lambda stores: TINY | {"stores": stores})
def test_messages_stay_exact_while_a_pair_queue_tries_how_to_store(comm, stores):
    """A thousand laps round the pair queue: more than two periods of trials, in messages that lie across their ends."""
    lengths = random.Random(5).choices(range(1, 3000), k=2800)
    for i, nbytes in enumerate(lengths):
        x = values("uint8", nbytes, i)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            out = np.zeros(3000, np.uint8)
            assert comm.recv(out, 0).nbytes == nbytes
            assert same_bits(out[:nbytes], x)
    queues = comm.stats()["pair_queues"]
    if comm.rank == 1:
        assert queues == []
        return
    (queue,) = queues
    assert (queue["dst"], queue["nbytes"]) == (1, 4096)
    assert queue["laps"] > 800
    if stores < 0:
        assert sum(us > 0 for us in queue["tried_us"].values()) > 1
    else:
        assert queue["stores"] == STORES[stores]
        assert queue["tried_us"] == {}


@pytest.mark.sample(1)
@on_ranks(2, init={"pair_queue_nbytes": 1 << 19})
def test_messages_stay_exact_in_both_parts_of_a_byte_ring(comm):
    """The small part is tried, full or not; the two together hold what the queue promises."""
    source = values("uint8", 1 << 18, 1)
    out = np.zeros(1 << 18, np.uint8)
    random_sizes = random.Random(6)
    was_tried = False
    while not was_tried:  # when the learner tries it depends on the time that messages take
        for i, nbytes in enumerate(random_sizes.choices(range(1, 150_000), k=900)):
            x = source[i : i + nbytes]
            burst = 1 + i % 3
            for _ in range(burst if comm.rank == 0 else 0):
                comm.send(x, 1, i)
            for _ in range(burst if comm.rank == 1 else 0):
                assert comm.recv(out, 0, i).nbytes == nbytes
                assert same_bits(out[:nbytes], x)
            if comm.rank == 1 and i % 2:
                comm.send(x, 0)
            if comm.rank == 0 and i % 2:
                assert comm.recv(out, 1).nbytes == nbytes
                assert same_bits(out[:nbytes], x)
        (queue,) = comm.stats()["pair_queues"]
        tried = np.array([queue["tried_us"].get("small", 0) > 0])
        was_tried = bool(comm.broadcast(tried, 0)[0])
    assert comm.rank == 0 or "small" not in queue["tried_us"]  # the lower rank alone learns
    for nbytes in (7 << 16, 1 << 16, 1 << 15, 5000):
        count = (7 << 16) // nbytes
        if comm.rank == 0:
            for _ in range(count):
                comm.send(source[:nbytes] if nbytes < source.size else np.tile(source, 2)[:nbytes], 1)
        comm.barrier()  # a send waits for no receive
        for _ in range(count if comm.rank == 1 else 0):
            assert comm.recv(np.empty(7 << 16, np.uint8), 0).nbytes == nbytes


@on_ranks(2, init={"pair_queue_nbytes": 1 << 19, "stores": 0})
def test_a_send_goes_on_where_its_receiver_stops_in_the_middle(comm):
    """A sender waits a moment for room in the small part, but for no receiver that does something else."""
    x = values("uint8", 7 << 16, 1)
    out = np.zeros(7 << 16, np.uint8)
    if comm.rank == 0:
        hooks.fill_small_part_first(comm, 1)
    for _ in range(300):
        comm.barrier()
        if comm.rank == 0:
            comm.send(x, 1)
            comm.barrier()
        else:
            request = comm.irecv(out, 0)
            request.done()  # takes what has come
            comm.barrier()
            request.wait()
            assert same_bits(out, x)
            out[:] = 0
    assert comm.rank == 1 or comm.stats()["pair_queues"][0]["part"] == "small"


# ---- matching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [8, 100, 5000, 700_000])
@on_ranks(2)
def test_tags_can_be_asked_for_in_any_order(comm, nbytes):
    if comm.rank == 0:
        requests = [comm.isend(np.full(nbytes, tag, np.uint8), 1, tag) for tag in range(20)]
        for request in requests:
            request.wait()
        return
    x = np.zeros(nbytes, np.uint8)
    for tag in [19, 3, 7, *sorted(set(range(20)) - {19, 3, 7}, reverse=True)]:
        assert comm.recv(x, 0, tag).tag == tag
        assert (x == tag).all()


@on_ranks(2)
def test_messages_of_one_tag_do_not_overwrite_each_other_when_put_aside(comm):
    if comm.rank == 0:
        for i, tag in enumerate((5, 1, 5, 2, 5)):
            comm.send(np.array([i]), 1, tag)
    else:
        x = np.zeros(1, np.int64)
        got = []
        for tag in (2, 5, ANY_TAG, 5, ANY_TAG):
            comm.recv(x, 0, tag)
            got.append(int(x[0]))
        assert got == [3, 0, 1, 2, 4]  # of one tag, and of any, always the oldest


@on_ranks(3, 4)
def test_any_source_takes_from_all_in_turn(comm):
    x = np.array([comm.rank])
    if comm.rank:
        for _ in range(100):
            comm.send(x, 0, comm.rank)
    comm.barrier()
    if comm.rank == 0:
        sources = []
        for _ in range(100 * (comm.size - 1)):
            message = comm.recv(x)
            assert x[0] == message.source == message.tag
            sources.append(message.source)
        for i in range(0, len(sources), comm.size - 1):
            assert sorted(sources[i : i + comm.size - 1]) == list(range(1, comm.size))


@on_ranks(2)
def test_receives_get_messages_in_the_order_they_were_made(comm):
    if comm.rank == 0:
        arrays = [np.zeros(1, np.int64) for _ in range(4)]
        requests = [
            comm.irecv(x, src, tag)
            for x, (src, tag) in zip(
                arrays, [(1, ANY_TAG), (ANY_SOURCE, 7), (ANY_SOURCE, ANY_TAG), (1, 7)], strict=True
            )
        ]
        assert not any(request.done() for request in requests)
        comm.barrier()
        for request in reversed(requests):
            assert request.wait().source == 1
        assert [int(x[0]) for x in arrays] == [0, 1, 2, 3]
    else:
        comm.barrier()
        for i in range(4):
            comm.send(np.array([i]), 0, 7)


@on_ranks(2)
def test_probe_describes_what_will_be_received_and_leaves_it_there(comm):
    if comm.rank == 0:
        assert comm.iprobe() is None
        assert comm.probe(1, 3, timeout=0.01) is None
        comm.barrier()
        found = comm.probe(tag=4)
        assert (found.source, found.tag, found.count, found.dtype) == (1, 4, 7, "float32")
        assert comm.iprobe(1, 3) == comm.probe(1, 3) != found
        x = np.zeros(found.count, found.dtype)
        assert comm.recv(x, found.source, found.tag) == found
        assert comm.iprobe(1, 4) is None
        big = comm.probe()
        assert (big.tag, big.count) == (3, 1_000_000)
        y = np.zeros(big.count)
        assert comm.recv(y) == big
        assert (y == 3).all()
    else:
        comm.barrier()
        request = comm.isend(np.full(1_000_000, 3.0), 0, 3)
        comm.isend(np.ones(7, np.float32), 0, 4).wait()
        assert request.done()


@on_ranks(1, 2)
def test_a_rank_can_send_to_itself_at_any_size(comm):
    for nbytes in (0, 8, 5 << 20):
        x, y = values("uint8", nbytes, 1), np.zeros(nbytes, np.uint8)
        request = comm.irecv(y, comm.rank, 1)
        comm.send(x, comm.rank, 2)
        comm.send(x, comm.rank, 1)
        assert request.wait().nbytes == nbytes
        assert same_bits(x, y)
        comm.recv(np.zeros(nbytes, np.uint8), comm.rank)
        comm.sendrecv(x, comm.rank, np.zeros_like(x), comm.rank)


# ---- no deadlock -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize(("nbytes", "times"), [(8, 256), (QUEUE_NBYTES, 1), (PIECE, 8), (1000, 256)])
@on_ranks(*GROUPS)
def test_everyone_may_send_first_up_to_what_a_pair_queue_holds(comm, nbytes, times):
    others = [r for r in range(comm.size) if r != comm.rank]
    for i in range(times):
        for dst in others:
            comm.send(np.full(nbytes, comm.rank, np.uint8), dst, i)
    x = np.zeros(nbytes, np.uint8)
    for src in others:
        for i in range(times):
            comm.recv(x, src, i)
            assert (x == src).all()


@pytest.mark.sample(3)
@pytest.mark.parametrize("nbytes", [8, 8 << 20])
@on_ranks(*GROUPS)
def test_sendrecv_round_a_ring_never_deadlocks(comm, nbytes):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out = np.full(nbytes, comm.rank, np.uint8), np.zeros(nbytes, np.uint8)
    for turn in range(1, comm.size + 1):
        assert comm.sendrecv(x, right, out, left, tag=turn).tag == turn
        assert (out == (comm.rank - turn) % comm.size).all()
        x, out = out, x
    assert (x == comm.rank).all()


@on_ranks(*RANKS)
def test_many_requests_at_once_all_proceed_whichever_is_waited_for_first(comm):
    nbytes = 1 << 20
    xs = [np.full(nbytes, 16 * comm.rank + dst, np.uint8) for dst in range(comm.size)]
    outs = [np.zeros(nbytes, np.uint8) for _ in xs]
    requests = [comm.irecv(out, src) for src, out in enumerate(outs)]
    requests += [comm.isend(x, dst) for dst, x in enumerate(xs)]
    for request in requests[:: 1 if comm.rank % 2 else -1]:
        request.wait()
    assert all((out == 16 * src + comm.rank).all() for src, out in enumerate(outs))


# ---- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 100, 300_000])
@on_ranks(2)
def test_a_message_that_does_not_fit_is_an_error_of_the_receiver_and_nothing_is_lost(comm, count):
    if comm.rank == 0:
        comm.isend(np.arange(count, dtype=np.int32), 1, 1).wait()
        comm.isend(np.arange(3.0), 1, 2).wait()
        return
    comm.probe(0, 1)
    for _ in range(2):
        with pytest.raises(MessageTooLongError, match=f"{4 * count} bytes") as caught:
            comm.recv(np.zeros(count - 1, np.int32), 0, 1)
        assert (caught.value.source, caught.value.tag, caught.value.nbytes) == (0, 1, 4 * count)
        with pytest.raises(TypeError, match=r"int32.*float32"):
            comm.recv(np.zeros(count, np.float32), 0, 1)
    small = comm.irecv(np.zeros(1, np.int32))
    assert isinstance(small.exception(), MessageTooLongError)
    y = np.zeros(3)
    assert comm.recv(y, 0, 2).tag == 2  # nothing behind it is lost, and it is not itself
    assert y.tolist() == [0, 1, 2]
    with pytest.raises(MessageTooLongError):
        comm.recv(np.zeros(1, np.int32))
    x = np.zeros(count + 3, np.int32)
    comm.recv(x, 0)
    assert (x[:count] == np.arange(count)).all()


@on_ranks(2)
def test_a_message_that_cannot_be_copied_into_the_array_is_an_error_of_its_request(comm):
    if comm.rank == 0:
        comm.barrier()
        comm.send(np.arange(4.0), 1)
        comm.send(np.arange(4.0), 1)
        return
    x, y = np.ones((4, 2))[:, 0], np.zeros(4)  # strided: the message is copied into it when it is complete
    called = []
    request = comm.irecv(x, 0)
    request.add_done_callback(called.append)
    x.flags.writeable = False
    comm.barrier()
    comm.recv(y, 0)  # finishes the other request, whose error is not its own
    assert y.tolist() == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            request.wait()
    assert isinstance(request.exception(), ValueError)
    assert called == [request]
    assert x.tolist() == [1] * 4


@on_ranks(2)
def test_bad_arguments_raise_before_anything_is_sent(comm):
    x = np.zeros(3)
    frozen = x.copy()
    frozen.flags.writeable = False
    for error, call in [
        (ValueError, lambda: comm.send(x, comm.size)),
        (ValueError, lambda: comm.send(x, ANY_SOURCE)),
        (ValueError, lambda: comm.send(x, 0, -1)),
        (ValueError, lambda: comm.send(x, 0, 1 << 31)),
        (ValueError, lambda: comm.recv(x, comm.size)),
        (ValueError, lambda: comm.recv(x, 0, -2)),
        (ValueError, lambda: comm.recv(x, 0, timeout=-1)),
        (TypeError, lambda: comm.recv(frozen, 0)),
        (TypeError, lambda: comm.send([1, 2], 0)),
        (TypeError, lambda: comm.isend(np.array([None]), 0)),
        (ValueError, lambda: comm.sendrecv(x, 0, x, 0)),
        (ValueError, lambda: comm.sendrecv(x[1:], 0, x[:2], 0)),
    ]:
        with pytest.raises(error):
            call()
    assert comm.iprobe() is None
    comm.barrier()


# ---- time ------------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_receive_that_times_out_leaves_everything_as_it_was(comm):
    x = np.zeros(4)
    if comm.rank == 1:
        comm.barrier()
        comm.send(np.arange(4.0), 0)
        return
    with pytest.raises(MessageTimeoutError, match="a message from rank 1 with tag 3"):
        comm.recv(x, 1, 3, timeout=0.02)
    with pytest.raises(MessageTimeoutError, match="any rank") as caught:
        comm.recv(x, timeout=0)
    assert isinstance(caught.value, TimeoutError)
    request = comm.irecv(x)
    with pytest.raises(MessageTimeoutError):
        request.wait(0.02)
    assert not request.done()
    comm.barrier()
    assert request.wait().source == 1
    assert x.tolist() == [0, 1, 2, 3]


@on_ranks(2)
def test_a_message_that_was_half_in_when_time_ran_out_can_still_be_received(comm):
    count = 1_000_000
    if comm.rank == 0:
        request = comm.isend(np.arange(count), 1)
        assert not request.done()  # so much of it is in the pair queue as has room
        comm.barrier()
        comm.barrier()
        request.wait()
        return
    comm.barrier()
    with pytest.raises(MessageTimeoutError):
        comm.recv(np.zeros(count, np.int64), timeout=0.05)
    comm.barrier()
    x = np.zeros(count, np.int64)
    assert comm.recv(x).count == count
    assert (x == np.arange(count)).all()


@pytest.mark.parametrize("how", ["withdrawn", "broken"])
@on_ranks(2, init=TINY)
def test_a_send_that_times_out_is_withdrawn_unless_it_had_begun(comm, how):
    x = np.zeros(900, np.uint8)  # four fit, wherever in a line they begin, and a fifth does not
    if comm.rank == 1:
        if how == "withdrawn":
            comm.barrier()
        for _ in range(4):
            comm.recv(x, 0)
        if how == "withdrawn":
            assert comm.recv(x, 0).tag == 9
        else:
            comm.barrier()  # there is room for the beginning of a message
            with pytest.raises(CollectiveTimeoutError):
                comm.barrier()
        return
    for _ in range(4):
        comm.send(x, 1)
    if how == "withdrawn":
        with pytest.raises(MessageTimeoutError, match="rank 1 to receive a message"):
            comm.send(x, 1, timeout=0.05)
        comm.barrier()
        comm.send(x, 1, 9)
    else:
        comm.barrier()
        with pytest.raises(CollectiveTimeoutError) as caught:
            comm.send(np.zeros(100_000, np.uint8), 1, timeout=0.2)
        assert caught.value.late == (1,)
        with pytest.raises(CollectiveTimeoutError):
            comm.send(x, 1)


# ---- death and other ends --------------------------------------------------------------------------------------------


# How the others notice a rank that dies in or before a message is in tests/faults.


def send_and_die(comm, source):
    x = np.zeros(3)
    if comm.rank == 0:
        comm.send(np.arange(3.0), 1)
        os.kill(os.getpid(), signal.SIGKILL)
    elif comm.rank == 1:
        until_ended(comm._engine.segments[0].header.pid)
        comm.recv(x, source)
        assert x.tolist() == [0, 1, 2]
        comm.recv(x, source)
    else:
        comm.recv(x, 1)  # which will never send, because of rank 0: the error comes from rank 1


@pytest.mark.parametrize("source", [0, ANY_SOURCE])
def test_survivors_get_what_the_dead_had_sent_and_name_it(source):
    for outcome in start_ranks(3, send_and_die, source).outcomes()[1:]:
        assert type(outcome.error) is PeerLostError, outcome
        assert outcome.error.rank == 0


def until_closed(comm, rank):
    while not look(bytes(memoryview(comm._engine.segments[rank].mapping)[:LOOK_NBYTES])).has_left:
        time.sleep(0.001)


@pytest.mark.parametrize("count", [3, 20_000])
@on_ranks(2)
def test_what_a_rank_had_sent_before_it_closed_is_still_received(comm, count):
    if comm.rank == 0:
        comm.send(np.arange(count), 1, 1)
        comm.close()
        return
    x = np.zeros(count, np.int64)
    assert comm.probe(0).count == count
    until_closed(comm, 0)
    comm.recv(x, ANY_SOURCE if count == 3 else 0)
    assert (x == np.arange(count)).all()
    with pytest.raises(PeerLostError, match=r"rank 0 .* closed") as caught:
        comm.recv(x)
    assert caught.value.rank == 0
    with pytest.raises(PeerLostError):
        comm.send(x, 0)


@on_ranks(3)
def test_a_rank_that_closed_disturbs_only_ranks_that_need_it(comm):
    if comm.rank == 0:
        comm.close()
        return
    x = np.zeros(1)
    until_closed(comm, 0)
    if comm.rank == 1:
        until_waiting(comm, 2)
        comm.send(np.ones(1), 2)
    else:
        assert comm.recv(x, 1).source == 1
        comm.send(x, 1)
    if comm.rank == 1:
        comm.recv(x)


def stop_in_the_middle(comm, count):
    x = np.arange(count)
    if comm.rank == 0:
        report("going")
        for _ in range(200):
            comm.send(x, 1)
    else:
        y = np.zeros_like(x)
        for _ in range(200):
            y[:] = 0
            comm.recv(y, 0)
            assert (x == y).all()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_waited_for(victim):
    gang = start_ranks(2, stop_in_the_middle, 200_000)
    gang.wait_for("going", [0])
    gang.stop(victim)
    time.sleep(0.2)  # longer than its peer spins
    gang.resume(victim)
    gang.results()


# ---- threads, processes, tasks ---------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_blocked_receive_shuts_out_no_other_thread(comm):
    other = 1 - comm.rank
    got = np.zeros(1)
    thread = threading.Thread(target=lambda: comm.recv(got, other, 99))
    thread.start()
    until_waiting(comm, comm.rank)
    x = np.zeros(50_000)
    for i in range(20):  # sends, receives and collectives, all while the thread is blocked
        comm.send(np.full(50_000, i), other, 1)
        assert comm.recv(x.view(np.int64), other, 1).count == 50_000
        y = np.ones(5)
        comm.all_reduce(y)
        assert y[0] == 2
    assert thread.is_alive()
    comm.barrier()
    comm.send(np.ones(1), other, 99)
    thread.join()
    assert got[0] == 1


@on_ranks(2)
def test_a_forked_child_can_neither_receive_nor_harm(comm):
    comm.sendrecv(np.zeros(9), 1 - comm.rank, np.zeros(9))

    def child():
        with pytest.raises(ClosedError, match="parent"):
            comm.recv(np.zeros(1), timeout=0)

    assert status_of(in_child(child)) == 0
    comm.sendrecv(np.zeros(9), 1 - comm.rank, np.zeros(9))


@on_ranks(2)
def test_requests_can_be_awaited_and_call_back(comm):
    other = 1 - comm.rank
    x = np.zeros(300_000)
    called = []

    async def shift():
        comm.isend(np.full(300_000, comm.rank), other)
        return await comm.irecv(x, other)

    # An int64 message into a float64 array: what await raises is what recv would raise.
    with pytest.raises(TypeError, match="int64"):
        asyncio.run(shift())
    request = comm.irecv(x.view(np.int64), other)
    with pytest.raises(TypeError, match="takes a callable, not int"):
        request.add_done_callback(1)
    request.add_done_callback(called.append)
    assert request.result().count == 300_000
    assert (x.view(np.int64) == other).all()
    assert called == [request]
    request.add_done_callback(called.append)
    assert len(called) == 2
    assert request.exception() is None

    async def swap():
        y = np.zeros(300_000)
        receiving, sending = comm.irecv(y, other), comm.isend(x, other)
        assert await sending is None
        return await receiving, y

    message, y = asyncio.run(swap())
    assert message.source == other
    assert (y.view(np.int64) == comm.rank).all()


@on_ranks(4)
def test_a_rank_that_waits_for_a_message_sleeps(comm):
    pids = comm.all_gather_object(os.getpid())
    if comm.rank == 0:
        until_waiting(comm, *range(1, comm.size))
        until_idle(*pids[1:])
        for dst in range(1, comm.size):
            comm.send(np.zeros(1), dst)
    else:
        comm.recv(np.zeros(1), 0)


# ---- memory ----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_hundreds_of_communicators_leave_no_descriptors_and_no_mappings(comm, long_run):
    times = 200 if long_run else 30
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    before = len(os.listdir("/proc/self/fd"))
    for i in range(times):
        session = f"{comm.name}-many"
        with shmring.init(rank=comm.rank, size=comm.size, session=session, pair_queue_nbytes=4096) as other:
            x = np.zeros(1, np.int64)
            other.sendrecv(np.array([i]), right, x, left)
            assert x[0] == i
    assert len(os.listdir("/proc/self/fd")) == before
    assert "-many" not in Path("/proc/self/maps").read_text()


def memory_of(comm):
    return os.fstat(comm._engine.segments[comm.rank].descriptor).st_blocks * 512


def use_one_pair_queue(comm, count):
    before = memory_of(comm)
    comm.iprobe()
    comm.barrier()
    if comm.rank == 0:
        comm.send(np.zeros(count), 1)
    elif comm.rank == 1:
        comm.recv(np.zeros(count))
    comm.barrier()
    return memory_of(comm) - before


@pytest.mark.parametrize(("count", "nbytes"), [(3, 256 * 64), (300, 256 * 64 + QUEUE_NBYTES)])
def test_only_pair_queues_in_use_have_memory_and_bytes_only_if_messages_are_long(count, nbytes):
    assert run_ranks(3, use_one_pair_queue, count, init=SHORT) == [nbytes, 0, 0]


# ---- traffic ---------------------------------------------------------------------------------------------------------


def traffic(comm, seed, count):
    """All know the whole traffic; each plays its part in an order of its own, so that all kinds of calls meet."""
    plan = random.Random(seed)
    size = comm.size
    messages = [
        (plan.randrange(size), plan.randrange(size), plan.randrange(3), plan.choice((0, 8, 40, 41, 900, 9_000, 70_000)))
        for _ in range(count)
    ]
    mine = random.Random(f"{seed}-{comm.rank}")
    sends = [(i, m) for i, m in enumerate(messages) if m[0] == comm.rank]
    expected = {}  # (source, tag) -> numbers and lengths, in the order sent
    for i, (src, dst, tag, nbytes) in enumerate(messages):
        if dst == comm.rank:
            expected.setdefault((src, tag), []).append((i, nbytes))
    pending, receiving = [], []
    left = sum(map(len, expected.values()))
    while sends or left or pending or receiving:
        roll = mine.random()
        if sends and roll < 0.5:
            i, (_, dst, tag, nbytes) = sends.pop(0)
            pending.append(comm.isend(np.full(nbytes, i % 251, np.uint8), dst, tag))
        elif left and roll < 0.7:
            src, tag = mine.choice([key for key, value in expected.items() if value])
            i, nbytes = expected[src, tag].pop(0)
            x = np.zeros(70_000, np.uint8)
            receiving.append((comm.irecv(x, src, tag), x, i, nbytes))
            left -= 1
        elif left and not receiving and (found := comm.iprobe(tag=mine.randrange(-1, 3))):
            i, nbytes = expected[found.source, found.tag].pop(0)
            x = np.zeros(nbytes, np.uint8)
            assert comm.recv(x, found.source, found.tag) == found
            assert found.nbytes == nbytes
            assert (x == i % 251).all()
            left -= 1
        else:
            for request, x, i, nbytes in receiving:
                if request.done():
                    assert request.result().nbytes == nbytes
                    assert (x[:nbytes] == i % 251).all()
                    assert not x[nbytes:].any()
            receiving = [each for each in receiving if not each[0].done()]
            pending = [each for each in pending if not each.done()]
            os.sched_yield()  # or ranks that share a processor would poll in vain until their time on it is over
    comm.barrier()
    assert comm.iprobe() is None


@pytest.mark.sample(4)
@pytest.mark.parametrize("init", [{}, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("n", RANKS)
def test_random_traffic_arrives_as_in_the_model(n, init, seed, long_run):
    run_ranks(n, traffic, seed, 5000 if long_run else 300, init=init)


def test_messages_compare_and_pickle():
    outcome = run_ranks(1, lambda_free_message)[0]
    again = pickle.loads(pickle.dumps(outcome))
    assert again == outcome
    assert hash(again) == hash(outcome)
    assert repr(outcome) == "Message(source=0, tag=5, nbytes=24, dtype='float64')"
    assert outcome != 5
    error = MessageTooLongError("long", 1, 2, 3)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def lambda_free_message(comm):
    comm.send(np.zeros(3), 0, 5)
    return comm.recv(np.zeros(3))


@on_ranks(2)
def test_a_flood_of_other_messages_does_not_outlast_a_timeout(comm):
    if comm.rank == 0:
        with pytest.raises(BrokenError):  # rank 1 aborts when it has seen enough
            while True:
                comm.send(np.zeros(1), 1, tag=6)
    else:
        with pytest.raises(MessageTimeoutError):
            comm.recv(np.zeros(1), 0, tag=5, timeout=0.05)
        assert comm.iprobe(0, 5) is None
        comm.abort("enough")


@on_ranks(2, init=SHORT)
def test_an_exchange_that_cannot_send_in_time_keeps_the_message_it_received(comm):
    x, out = np.full(1 << 20, comm.rank, np.uint8), np.empty(4, np.uint8)
    if comm.rank == 0:
        filler = comm.isend(x, 1, 1)  # fills the pair queue: nothing more can be sent
        with pytest.raises(MessageTimeoutError):
            comm.sendrecv(x, 1, out, 1, tag=2, timeout=0.3)
        assert comm.recv(out, 1).nbytes == 4
        assert out.tolist() == [1] * 4
        comm.barrier()
        with pytest.raises(MessageTimeoutError):
            comm.sendrecv(x, 1, out, 1, tag=2, out_tag=7, timeout=0.3)
        assert [comm.recv(out, 1).tag for _ in range(4)] == [5, 7, 7, 6]  # in the order in which they were sent
        comm.barrier()
        comm.send(x[:0], 1, 3)
        filler.wait()
    else:
        comm.send(x[:4], 0)
        assert comm.probe(0, timeout=None).tag == 1
        comm.barrier()
        for tag in (5, 7, 7, 6):
            comm.send(x[:4], 0, tag)
        comm.barrier()
        for tag in (1, 3):
            comm.recv(x, 0, tag)
    comm.barrier()
