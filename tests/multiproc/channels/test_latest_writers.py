"""`shmring.Latest`: objects, who decides its capacity, readers that learn of the last writer's end, event loops."""

import asyncio
import dataclasses
import multiprocessing
import os
import pickle
import queue
import select
import signal
import time

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.harness import PATIENCE, eventually

import shmring
from shmring import EndOfStreamError, ObjectError, PeerLostError, SegmentError

WAIT_S = 60 * PATIENCE


@dataclasses.dataclass
class Weights:
    step: int
    layers: dict


@pytest.fixture
def name():
    return f"latest-{os.getpid()}"


def files(name):
    return [file for file in os.listdir("/dev/shm") if name.replace("-", "_") in file]


# ---- objects ----


@pytest.mark.parametrize("value", [{"a": 1}, "text", None, 3.5, [1, [2]], (1, "x"), {1, 2}], ids=repr)
def test_an_object_is_read_as_it_was_written(value):
    latest = shmring.Latest()
    latest.write(value)
    assert latest.read() == value
    assert type(latest.read()) is type(value)
    with latest.lease() as lease:
        assert lease.object == value


def test_a_dataclass_with_arrays_crosses_processes():
    latest = shmring.Latest(1 << 22)

    def child():
        layers = {"w": np.arange(100_000.0), "b": np.ones(3, "f4")}
        latest.write(Weights(7, layers))
        layers["w"][:] = 0  # it was copied

    assert status_of(in_child(child)) == 0
    got = latest.read()
    assert got.step == 7
    assert (got.layers["w"] == np.arange(100_000.0)).all()
    assert got.layers["w"].flags.writeable
    got.layers["w"][:] = -1
    assert (latest.read().layers["w"] == np.arange(100_000.0)).all()
    with latest.lease() as lease:
        weights = lease.object.layers["w"]
        assert not weights.flags.writeable
        assert weights[-1] == 99_999
        del weights


def test_arrays_bytes_and_objects_by_turns():
    latest = shmring.Latest()
    for value in (b"bytes", {"an": "object"}, np.arange(4), "text"):
        latest.write(value)
        got = latest.read()
        assert got.tolist() == value.tolist() if isinstance(value, np.ndarray) else got == value


class OnlyThere:
    def __reduce__(self):
        return int, ("not a number",)


def test_an_object_that_cannot_be_unpickled_is_an_error_and_the_next_value_is_read():
    latest = shmring.Latest()
    latest.write(OnlyThere())
    with pytest.raises(ObjectError):
        latest.read()
    with latest.lease() as lease, pytest.raises(ObjectError):
        lease.object  # noqa: B018
    latest.write(b"next")
    assert latest.read() == b"next"


def test_objects_can_be_refused_by_either_side():
    assert shmring.Latest(allow_pickle=True).write([1]) == 1
    name = f"refuses-{os.getpid()}"
    with shmring.Latest(1 << 12, name=name) as writer, shmring.Latest(name=name, allow_pickle=False) as reader:
        writer.write([1])
        with pytest.raises(ObjectError, match="allow_pickle is False"):
            reader.read()
        with pytest.raises(ValueError, match="allow_pickle is False"):
            reader.write([1])
        assert reader.write(b"plain") == 2


@pytest.mark.leaks  # a thread that hands over descriptors
def test_an_object_with_an_open_file_is_refused():
    """It could go to one reader only."""
    latest = shmring.Latest()
    with pytest.raises(ObjectError, match="only to one other process"):
        latest.write([shmring.Queue()])
    assert latest.version == 0


# ---- capacity ----


def test_a_reader_that_comes_first_does_not_decide_the_capacity(name):
    reader = shmring.Latest(name=name)
    assert reader.capacity_nbytes == 0
    assert not reader.poll()
    with pytest.raises(queue.Empty):
        reader.read(0.01)
    with pytest.raises(queue.Empty):
        reader.lease(0)
    writer = shmring.Latest(7 << 20, name=name)
    assert writer.capacity_nbytes >= 7 << 20
    frame = np.arange(6 << 20, dtype="u1")
    writer.write(frame)
    assert (reader.read() == frame).all()
    assert reader.capacity_nbytes == writer.capacity_nbytes
    with reader.lease() as lease:
        assert lease.array[-1] == frame[-1]
    third = shmring.Latest(name=name)
    assert (third.read() == frame).all()
    for latest in (reader, writer, third):
        latest.close()
    assert not files(name)


def test_a_reader_that_waits_in_another_process_gets_the_first_value(name):
    def child():
        with shmring.Latest(name=name) as reader:
            assert reader.read(WAIT_S).tolist() == [1] * 100_000

    pids = [in_child(child) for _ in range(3)]
    eventually(lambda: assert_true(files(name)))
    time.sleep(0.05)
    with shmring.Latest(1 << 20, name=name) as writer:
        writer.write(np.ones(100_000))
        assert [status_of(pid) for pid in pids] == [0] * 3


def assert_true(value):
    assert value


def test_another_capacity_is_an_error_when_it_is_opened(name):
    with shmring.Latest(1 << 20, name=name) as latest:
        for wrong in (1 << 10, 1 << 21):
            with pytest.raises(SegmentError, match=rf"open with capacity_nbytes={1 << 20}, not {wrong}"):
                shmring.Latest(wrong, name=name)
        shmring.Latest(1 << 20, name=name).close()
        latest.write(b"it works")
    assert not files(name)


def test_a_writer_without_a_capacity_decides_by_its_first_value(name):
    with shmring.Latest(name=name) as writer:
        writer.write(bytes(64 << 10))
        with pytest.raises(ValueError, match="larger capacity_nbytes"):
            writer.write(bytes(70 << 10))
        with pytest.raises(SegmentError, match="open with capacity_nbytes=65536"):
            shmring.Latest(1 << 20, name=name)


def test_many_that_decide_at_once_agree(name):
    first = shmring.Latest(name=name)  # the name stays

    def child(number):
        try:
            latest = shmring.Latest(1000 * (1 + number % 2), name=name)
        except SegmentError:  # another one was quicker
            return
        latest.write(bytes(900))

    for _ in range(5):
        pids = [in_child(child, number) for number in range(6)]
        assert [status_of(pid) for pid in pids] == [0] * 6
        assert first.read(WAIT_S) == bytes(900)
    first.close()


def test_a_forked_child_finds_the_slots_that_were_decided_after_the_fork(name):
    latest, event = shmring.Latest(name=name), multiprocessing.get_context("fork").Event()

    def child():
        assert event.wait(WAIT_S)
        assert latest.read(WAIT_S) == bytes(200_000)
        latest.write(b"from the child")

    pid = in_child(child)
    writer = shmring.Latest(200_000, name=name)
    writer.write(bytes(200_000))
    event.set()
    assert status_of(pid) == 0
    assert latest.read() == b"from the child"
    latest.close()
    writer.close()


def read_named(latest, results):
    results.put([latest.read(WAIT_S), latest.capacity_nbytes])


@pytest.mark.leaks  # multiprocessing keeps its fork server
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_named_one_pickles_as_its_name(name, method):
    results = shmring.Queue()
    with shmring.Latest(1 << 20, name=name) as latest:
        process = multiprocessing.get_context(method).Process(target=read_named, args=(latest, results))
        process.start()
        latest.write(["for the child"])
        assert results.get(timeout=WAIT_S) == [["for the child"], latest.capacity_nbytes]
        process.join()
        text = pickle.dumps(latest)
    assert len(text) < 256
    with pickle.loads(text) as again:  # the name was gone: it is made anew, as large
        assert again.version == 0
        again.write(bytes(1 << 20))


# ---- the last writer ----


def write_and_leave(latest, how):
    latest.write(b"last")
    if how == "closed":
        latest.close()
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("how", ["closed", "ended", "killed"])
def test_a_reader_that_waits_learns_once_that_the_last_writer_is_gone(how, is_named, name):
    latest = shmring.Latest(1 << 12, name=name if is_named else None)
    pid = in_child(lambda: write_and_leave(shmring.Latest(name=name) if is_named else latest, how))
    assert latest.read(WAIT_S) == b"last"
    with pytest.raises(
        EndOfStreamError if how == "closed" else PeerLostError, match="last process that wrote"
    ) as found:
        latest.read(WAIT_S, after=1)
    if how != "closed":
        assert found.value.pid == pid
    status_of(pid)
    assert latest.read() == b"last"  # it stays
    with pytest.raises(queue.Empty):
        latest.read(0.05, after=1)  # it is waited for another one
    another = in_child(lambda: (time.sleep(0.1), latest.write(b"next"), time.sleep(WAIT_S)))
    assert latest.read(WAIT_S, after=1) == b"next"
    with pytest.raises(queue.Empty):
        latest.read(0.05, after=2)
    kill(another)
    with pytest.raises(PeerLostError):
        latest.read(WAIT_S, after=2)
    latest.close()


def test_a_writer_that_is_left_is_enough():
    latest = shmring.Latest()
    stays = in_child(lambda: (latest.write(b"first"), time.sleep(0.5), latest.write(b"third")))
    latest.read(WAIT_S)
    kills = in_child(lambda: (latest.write(b"second"), os.kill(os.getpid(), signal.SIGKILL)))
    assert status_of(kills) == -signal.SIGKILL
    assert latest.read(WAIT_S, after=2) == b"third"
    assert status_of(stays) == 0


def test_writers_that_come_again_and_again_are_no_reason_to_raise_while_they_live():
    latest = shmring.Latest(dtype="i8")
    pid = in_child(lambda: [latest.write(number) for number in range(3000)] and time.sleep(0.2))
    version = 0
    while version < 3000:
        _, version = latest.read_version(WAIT_S, after=version)
    status_of(pid)


def test_a_value_that_no_other_process_has_any_more_is_not_waited_for():
    def program():
        latest = shmring.Latest()
        assert status_of(in_child(lambda: None)) == 0
        for _ in range(2):
            with pytest.raises(PeerLostError, match="can come"):
                latest.read()
        with pytest.raises(queue.Empty):
            latest.read(0.01)

    assert status_of(in_child(program)) == 0


# ---- event loops, and waiting for several ----


def readable(latest, timeout=0):
    return bool(select.select([latest], [], [], timeout)[0])


def test_its_descriptor_tells_of_newer_values_and_of_the_end():
    latest = shmring.Latest()
    assert not readable(latest)

    def child():
        time.sleep(0.1)
        latest.write(b"first")
        time.sleep(WAIT_S)

    pid = in_child(child)
    assert readable(latest, WAIT_S)
    assert latest.poll()
    assert latest.newer(0) == b"first"
    assert not latest.poll()
    assert not readable(latest, 0.05)
    kill(pid)
    assert readable(latest, WAIT_S)
    with pytest.raises(PeerLostError):
        latest.newer(0)
    with pytest.raises(queue.Empty):
        latest.newer(0)
    assert not readable(latest)
    latest.write(b"second")
    assert readable(latest, WAIT_S)
    latest.close()
    with pytest.raises(ValueError, match="closed"):
        latest.fileno()


def test_it_is_waited_for_among_others():
    latest, q = shmring.Latest(), shmring.Queue()
    sender, receiver = shmring.channel()
    assert shmring.wait([latest, q, receiver], 0.01) == []
    pid = in_child(lambda: (time.sleep(0.1), latest.write({"a": 1}), time.sleep(WAIT_S)))
    assert shmring.wait([q, latest, receiver], WAIT_S) == [latest]
    assert latest.newer(0) == {"a": 1}
    assert shmring.wait([q, latest, receiver], 0.01) == []
    sender.send(b"x")
    assert shmring.wait([latest, receiver], WAIT_S) == [receiver]
    assert receiver.recv() == b"x"
    kill(pid)
    assert shmring.wait([latest], WAIT_S) == [latest]
    with pytest.raises(PeerLostError):
        latest.newer(0)
    assert shmring.wait([latest, q], 0.05) == []


def test_tasks_await_it_and_several_may():
    latest = shmring.Latest(dtype="i8")

    def child():
        for number in range(1, 6):
            time.sleep(0.02)
            latest.write(number)
        time.sleep(0.2)

    async def follow(results):
        while True:
            try:
                results.append(int(await asyncio.wait_for(latest.newer_async(), WAIT_S)))
            except PeerLostError:
                return

    async def main():
        results = []
        await follow(results)
        return results

    pid = in_child(child)
    got = asyncio.run(main())
    assert got == sorted(set(got))
    assert got[-1] == 5
    assert status_of(pid) == 0

    async def two():
        tasks = [asyncio.ensure_future(latest.newer_async()) for _ in range(2)]
        await asyncio.sleep(0.05)
        latest.write(9)
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return [int(task.result()) for task in done]

    assert asyncio.run(two())[0] == 9
