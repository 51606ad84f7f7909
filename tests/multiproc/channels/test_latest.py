"""`shmring.Latest`: the newest value, any number of writers and readers."""

import copy
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time

import numpy as np
import pytest
from support.children import in_child, status_of
from support.emulation import needs_marks
from support.harness import eventually

import shmring
from shmring import ClosedError, SegmentError
from shmring.core.memory.header import HEADER_NBYTES

RECORD = np.dtype([("x", "f8"), ("y", "i4", 3)])
SLOTS = 6
LINE = 128  # bytes between fields that different processes write (core/c/layout.h)


def until(check):
    """Wait until ``check()`` is true."""

    def look():
        assert check()

    eventually(look)


# ---- values ----

ARRAYS = [
    np.arange(6, dtype="f4").reshape(2, 3),
    np.zeros((0, 3)),
    np.array(7),
    np.arange(12)[::2],
    np.array(["2026-01-01"], "M8[D]"),
    np.array([(1.5, (1, 2, 3))], RECORD),
    np.arange(100_000.0),
]


@pytest.mark.parametrize("value", ARRAYS, ids=str)
def test_an_array_is_read_as_it_was_written(value):
    latest = shmring.Latest(1 << 20)
    assert latest.write(value) == 1
    got = latest.read()
    assert (got.dtype, got.shape) == (value.dtype, value.shape)
    assert (got == value).all()
    assert got.flags.writeable
    assert got.flags.aligned


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 200, bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_are_read_as_bytes(value):
    latest = shmring.Latest()
    latest.write(value)
    assert latest.read() == bytes(value)
    assert type(latest.read()) is bytes


def test_a_value_is_read_any_number_of_times_and_only_the_newest():
    latest = shmring.Latest()
    assert latest.version == 0
    for number in range(1, 20):
        assert latest.write(b"%d" % number) == number
    assert [latest.read() for _ in range(3)] == [b"19"] * 3
    assert latest.read_version() == (b"19", 19)
    assert latest.version == 19


def test_what_was_read_is_a_copy():
    latest = shmring.Latest()
    latest.write(np.zeros(3))
    got = latest.read()
    got += 1
    latest.write(np.full(3, 9.0))
    assert (got == 1).all()
    assert (latest.read() == 9).all()


def test_records():
    latest = shmring.Latest(dtype=RECORD)
    latest.write((2.5, (1, 2, 3)))
    got = latest.read()
    assert got["x"] == 2.5
    assert got["y"].tolist() == [1, 2, 3]
    number = shmring.Latest(dtype="f8")
    number.write(3)
    assert number.read() == 3.0
    assert isinstance(number.read(), np.float64)
    with pytest.raises(ValueError, match="one record"):
        number.write([1, 2])
    with pytest.raises((TypeError, ValueError)):
        number.write("x")
    assert number.version == 1


def test_what_does_not_fit_or_is_none_is_refused_and_the_value_stays():
    latest = shmring.Latest(100, allow_pickle=False)
    latest.write(b"kept")
    with pytest.raises(ValueError, match=r"2000 bytes.*at most 384.*capacity_nbytes"):
        latest.write(bytes(2000))
    for wrong in ("text", {"a": 1}, None, np.array([object()])):
        with pytest.raises(ValueError, match="allow_pickle is False"):
            latest.write(wrong)
    with pytest.raises(ValueError, match=r"at most 384"):
        shmring.Latest(100).write(["x" * 400])
    with pytest.raises(shmring.ObjectError):
        shmring.Latest().write(lambda: None)
    assert latest.read_version() == (b"kept", 1)


def test_bad_arguments():
    for wrong in ({"capacity_nbytes": 0}, {"capacity_nbytes": 1 << 60}):
        with pytest.raises(ValueError, match="capacity_nbytes"):
            shmring.Latest(**wrong)
    for wrong in ({"capacity_nbytes": "1"}, {"name": ""}, {"name": 5}, {"dtype": "no such"}, {"dtype": object}):
        with pytest.raises(TypeError):
            shmring.Latest(**wrong)
    latest = shmring.Latest()
    with pytest.raises(queue.Empty):
        latest.read(0)
    with pytest.raises(ValueError, match="timeout"):
        latest.read(-1)
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match=f"after={wrong}"):
            latest.read(0, after=wrong)
    with pytest.raises(RuntimeError, match="made already"):
        latest.__init__()


# ---- waiting ----


def test_a_reader_waits_for_the_first_value_and_for_a_newer_one():
    latest = shmring.Latest()
    with pytest.raises(queue.Empty):
        latest.read(0.01)
    got = []

    def read():
        version = 0
        while version < 3:
            value, version = latest.read_version(60, after=version)
            got.append((value, version))

    thread = threading.Thread(target=read)
    thread.start()
    for number in (1, 2, 3):
        latest.write(b"%d" % number)
        until(lambda number=number: (b"%d" % number, number) in got)
    thread.join()
    with pytest.raises(queue.Empty):
        latest.read(0, after=3)


def test_any_number_of_readers_is_woken():
    latest, done = shmring.Latest(), shmring.Queue()

    def child():
        version = 0
        while version < 50:
            _, version = latest.read_version(60, after=version)
        done.put(version)

    pids = [in_child(child) for _ in range(4)]
    for number in range(50):
        latest.write(b"%d" % number)
        time.sleep(0.001 * (number % 3))  # so that readers sleep, and sometimes do not
    assert [done.get(timeout=60) for _ in pids] == [50] * 4
    assert [status_of(pid) for pid in pids] == [0] * 4


# ---- several processes ----


def read_in_child(latest, results):
    results.put(latest.read(60).tolist())


@pytest.mark.sample(1)
@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_readers_come_late_by_every_start_method(method):
    context = multiprocessing.get_context(method)
    latest, results = shmring.Latest(), shmring.Queue()
    latest.write(np.arange(3))
    processes = [context.Process(target=read_in_child, args=(latest, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [[0, 1, 2]] * 2
    for process in processes:
        process.join()
        assert process.exitcode == 0


@pytest.mark.parametrize("length", [1, 3, 5000, 40_000])
def test_no_reader_sees_a_torn_value_nor_an_older_one(length):
    latest = shmring.Latest(max(64, length * 8))
    latest.write(np.zeros(length))
    stop = shmring.Latest(dtype="i8")

    def write(start):
        number = start
        while stop.version == 0:
            number += 2
            latest.write(np.full(length, number, float))

    def read():
        last = 0
        while stop.version == 0:
            value, version = latest.read_version()
            assert (value == value[0]).all()
            assert version >= last
            last = version

    pids = [in_child(write, 0), in_child(write, 1), in_child(read), in_child(read)]
    read_until = latest.version + 300
    until(lambda: latest.version > read_until)
    stop.write(1)
    assert [status_of(pid) for pid in pids] == [0] * 4


@needs_marks
def test_a_writer_killed_at_any_moment_leaves_a_whole_value_and_the_next_one_goes_on():
    latest = shmring.Latest(1 << 16)
    for attempt in range(30):
        before = latest.version

        def write(attempt=attempt):
            while True:
                latest.write(np.full(8000, attempt))

        pid = in_child(write)
        until(lambda least=before + attempt: latest.version > least)
        os.kill(pid, signal.SIGKILL)
        assert status_of(pid) == -signal.SIGKILL
        value, version = latest.read_version()
        assert (value == attempt).all()
        assert len(value) == 8000
        assert latest.write(b"whole", timeout=60) == version + 1
        assert latest.read() == b"whole"


def test_a_writer_waits_for_another_one_as_long_as_its_timeout():
    latest = shmring.Latest(1 << 25)
    big = np.zeros(1 << 22)
    outcomes = set()
    stop = threading.Event()

    def write():
        while not stop.is_set():
            latest.write(big)

    thread = threading.Thread(target=write)
    thread.start()

    def is_refused():
        try:
            latest.write(b"x", timeout=0)
            outcomes.add("written")
        except queue.Full:
            outcomes.add("refused")
        return "refused" in outcomes

    until(is_refused)
    stop.set()
    thread.join()
    latest.write(b"x", timeout=0)
    assert latest.read() == b"x"


# ---- names ----


def test_processes_find_a_value_by_its_name_and_the_last_removes_it():
    name = f"latest-{os.getpid()}"
    with shmring.Latest(1000, name=name) as first:
        first.write(b"there")

        def child():
            with shmring.Latest(name=name) as second:
                assert second.read() == b"there"
                assert second.capacity_nbytes == first.capacity_nbytes
                second.write(b"back")

        assert status_of(in_child(child)) == 0
        assert first.read() == b"back"
        with pytest.raises(SegmentError, match="has dtype=None, not float64"):
            shmring.Latest(name=name, dtype="f8")
        with pytest.raises(SegmentError, match="open with capacity_nbytes=1024, not 9000"):
            shmring.Latest(9000, name=name)
        with pickle.loads(pickle.dumps(first)) as same:
            assert same.read() == b"back"
            assert same.capacity_nbytes == first.capacity_nbytes
        assert any(f"latest_{os.getpid()}" in file for file in os.listdir("/dev/shm"))
    assert not any(f"latest_{os.getpid()}" in file for file in os.listdir("/dev/shm"))
    with shmring.Latest(name=name) as again:
        assert again.version == 0


def test_a_closed_one_is_of_no_use():
    latest = shmring.Latest()
    latest.close()
    latest.close()
    assert latest.closed
    for call in (latest.read, lambda: latest.write(b""), lambda: latest.version, latest.__enter__):
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(latest)
    assert repr(shmring.Latest.__new__(shmring.Latest)) == "<shmring.Latest, not made>"
    with pytest.raises(ClosedError, match="never made"):
        shmring.Latest.__new__(shmring.Latest).read()


def test_it_is_no_channel_for_inspection():
    before = {look.name for look in shmring.list_channels()}  # what earlier tests have left to the collector
    latest = shmring.Latest()
    assert latest.version == 0
    assert {look.name for look in shmring.list_channels()} <= before


# ---- what another process wrote ----


def words_of(latest):
    memory = latest.__reduce__()[1][0]
    return np.frombuffer(memory.mapping, np.uint64)[HEADER_NBYTES // 8 :]


def slot_of(latest, version):
    """The words of a slot: version, word, nbytes."""
    room = latest.capacity_nbytes
    words = words_of(latest)
    start = (len(words) * 8 - SLOTS * (LINE + room)) // 8 + (int(words[0]) & 7) * (LINE + room) // 8
    assert words[0] >> 3 == version  # the newest
    return words[start : start + (LINE + room) // 8]


FORGED = {
    "longer than its slot": (2, 1 << 40),
    "one byte longer": (2, None),
    "of no kind": (1, 1 << 63),
    "an object whose header is longer than it": (1, 4 << 32),
    "a piece of a stream": (1, 5 << 32),
    "a stream": (1, 1 << 56 | 2 << 32),
    "an array of a dtype that does not exist": (1, 3 << 32 | 250 << 40 | 1 << 48),
    "an array of half an element": (2, 7),
    "an array of 255 dimensions": (1, 3 << 32 | 1 << 40 | 255 << 48),
    "an array with a description that is longer than it": (1, 3 << 32 | 255 << 40 | 1 << 48),
    "never written": (0, 77),
}


@pytest.mark.parametrize("place", FORGED)
def test_what_is_no_value_is_an_error(place):
    latest = shmring.Latest()
    latest.write(np.full(4, 1 << 62))
    field, content = FORGED[place]
    slot_of(latest, 1)[field] = latest.capacity_nbytes + 1 if content is None else content
    with pytest.raises(SegmentError, match=r"corrupted|does not exist"):
        latest.read()
    latest.write(b"next")
    assert latest.read() == b"next"


def test_a_newest_version_that_was_never_written_is_an_error():
    latest = shmring.Latest()
    words_of(latest)[0] = 12344
    with pytest.raises(SegmentError, match="corrupted"):
        latest.read()


def test_a_value_of_another_dtype_is_an_error():
    latest = shmring.Latest(dtype="f8")
    latest.write(1.0)
    slot_of(latest, 1)[1] = 2 << 32
    with pytest.raises(SegmentError, match="corrupted"):
        latest.read()


def test_a_slot_that_does_not_exist_is_an_error():
    latest = shmring.Latest()
    words_of(latest)[0] = 1 << 3 | 7
    for call in (latest.read, latest.lease):
        with pytest.raises(SegmentError, match="corrupted"):
            call()


@pytest.mark.parametrize("room", [0, 100, 1 << 20, 1 << 61, (1 << 64) - 128])
def test_slots_of_another_size_are_refused(room):
    latest = shmring.Latest()
    latest.write(b"x")
    words_of(latest)[2] = room
    with pytest.raises(SegmentError, match="corrupted"):
        copy.copy(latest).read()
    with pytest.raises(SegmentError, match="corrupted"):
        copy.copy(latest).lease()


def test_a_header_of_something_else_is_refused():
    latest = shmring.Latest()
    memory = latest.__reduce__()[1][0].memory

    class Forged:
        header = memory.header._replace(params=(*memory.header.params[:2], 1, 0))
        mapping, nbytes = memory.mapping, memory.nbytes

    with pytest.raises(SegmentError, match="invalid sizes"):
        type(latest.__reduce__()[1][0])(Forged)
