"""Leases of the newest value: in place, as long as one likes, and no writer waits."""

import gc
import os
import signal
import time

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE, eventually

import shmring
from shmring import ClosedError

WAIT_S = 60 * PATIENCE
PLACES = 4


def address(array):
    return array.__array_interface__["data"][0]


def test_a_lease_is_the_value_in_place():
    latest = shmring.Latest(1 << 20)
    latest.write(np.arange(1000).reshape(10, 100))
    with latest.lease() as lease, latest.lease() as same:
        assert lease.version == same.version == 1
        assert (lease.dtype, lease.shape) == (np.dtype("i8"), (10, 100))
        assert (lease.array == np.arange(1000).reshape(10, 100)).all()
        assert address(lease.array) == address(same.array)  # no copy
        assert not lease.array.flags.writeable
    with pytest.raises(ValueError, match="over"):
        lease.array  # noqa: B018


def test_what_is_leased():
    latest = shmring.Latest()
    latest.write(b"bytes")
    with latest.lease() as lease:
        assert bytes(lease) == b"bytes"
    latest.write([np.arange(5000), "text"])
    with latest.lease() as lease:
        array, text = lease.object
        assert text == "text"
        assert (array == np.arange(5000)).all()
        del array
    record = shmring.Latest(dtype=[("time", "f8"), ("frame", "u1", (4, 5))])
    record.write((0.5, np.full((4, 5), 7)))
    with record.lease() as lease:
        assert lease["time"] == 0.5
        assert (lease["frame"] == 7).all()


def test_a_leased_value_stays_while_the_writer_goes_on():
    latest = shmring.Latest(1 << 16)
    leases = []
    for number in range(40):
        latest.write(np.full(1000, number))
        if number % 10 == 0:
            leases.append((number, latest.lease()))
    for number, lease in leases:
        assert (lease.array == number).all()
        assert lease.version == number + 1
    for _, lease in leases[::2]:
        lease.release()
    for number in range(40, 80):
        latest.write(np.full(1000, number))
    for number, lease in leases[1::2]:
        assert (lease.array == number).all()
        lease.release()
    assert latest.read()[0] == 79


def test_more_leases_than_places_are_of_copies():
    latest = shmring.Latest(1 << 16)
    held = []
    for number in range(12):
        latest.write([number, np.full(5000, number, "u1")] if number % 2 else np.full(5000, number, "u1"))
        held.append(latest.lease())
    for number, lease in enumerate(held):
        assert lease.version == number + 1
        array = lease.object[1] if number % 2 else lease.array
        assert (array == number).all()
        del array
    del held, lease
    first, second = latest.lease(), latest.lease()
    assert address(first.array[1:] if first.shape else first.object[1]) == address(
        second.array[1:] if second.shape else second.object[1]
    )


def private_nbytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def test_readers_of_a_frame_make_no_copy_of_it():
    frame = np.ones((1080, 1920, 3), np.uint8)
    latest = shmring.Latest(frame.nbytes)
    latest.write(frame)

    def reader():
        before = private_nbytes()
        with latest.lease() as lease:
            assert lease.array.all()
            assert private_nbytes() - before < frame.nbytes // 2

    assert [status_of(pid) for pid in [in_child(reader) for _ in range(3)]] == [0, 0, 0]


def test_a_lease_ends_with_its_last_array():
    latest = shmring.Latest(1 << 16)
    latest.write(np.arange(10))
    views = []
    for _ in range(PLACES):
        lease = latest.lease()
        views.append(lease.array)
        with pytest.raises(BufferError, match="alive"):
            lease.release()
        del lease
    copied = latest.lease()
    assert address(copied.array) != address(views[0])
    for number in range(20):
        latest.write(np.arange(number))
    assert all(view.tolist() == list(range(10)) for view in views)
    del views[2:], copied
    gc.collect()
    with latest.lease() as one, latest.lease() as other:
        assert address(one.array) == address(other.array)


def test_a_block_that_raises_with_arrays_alive_keeps_the_lease_until_they_are_gone():
    latest = shmring.Latest()
    latest.write(np.arange(10))
    with pytest.raises(ZeroDivisionError), latest.lease() as lease:
        view = lease.array
        1 / 0  # noqa: B018
    for number in range(20):
        latest.write(np.arange(number))
    assert view.tolist() == list(range(10))
    with pytest.raises(BufferError), latest.lease() as another:
        kept = another.array
    assert kept.tolist() == list(range(19))


def test_a_lease_outlives_its_object():
    latest = shmring.Latest()
    latest.write(np.arange(10))
    lease = latest.lease()
    latest.close()
    with pytest.raises(ClosedError):
        latest.lease()
    del latest
    gc.collect()
    assert lease.array.tolist() == list(range(10))


def test_it_waits_as_reading_does():
    latest = shmring.Latest()
    pid = in_child(lambda: (time.sleep(0.1), latest.write(b"first"), time.sleep(WAIT_S)))
    with latest.lease(WAIT_S) as lease:
        assert bytes(lease) == b"first"
    assert not latest.poll()
    kill(pid)
    with pytest.raises(shmring.PeerLostError):
        latest.lease(WAIT_S, after=1)


@pytest.mark.parametrize("length", [16, 5000, 40_000])
def test_no_lease_is_torn_while_writers_and_readers_go_on(length):
    latest, stop = shmring.Latest(max(64, length * 8)), shmring.Latest(dtype="i8")
    latest.write(np.zeros(length))

    def write(start):
        number = start
        while stop.version == 0:
            number += 2
            latest.write(np.full(length, number, float))

    def lease(hold_s):
        last, held = 0, []
        while stop.version == 0:
            one = latest.lease()
            assert one.version >= last
            last = one.version
            held.append((float(one.array[0]), one))
            if len(held) > 1:
                value, old = held.pop(0)
                time.sleep(hold_s)
                assert (old.array == value).all()
                old.release()

    def copy():
        while stop.version == 0:
            value = latest.read()
            assert (value == value[0]).all()

    pids = [in_child(write, 0), in_child(write, 1), in_child(lease, 0), in_child(lease, 0.002), in_child(copy)]
    until = latest.version + 1000
    eventually(lambda: assert_true(latest.version > until))
    stop.write(1)
    assert [status_of(pid) for pid in pids] == [0] * 5


def assert_true(value):
    assert value


@needs_marks
def test_places_of_killed_readers_are_free_and_no_writer_waits_for_stopped_ones():
    latest = shmring.Latest(1 << 12)
    latest.write(np.full(100, 1))
    done = shmring.Queue()

    def hold():
        held = latest.lease()
        done.put(held.version)
        os.kill(os.getpid(), signal.SIGSTOP)  # by itself: not in the middle of `put`

    pids = []
    for number in range(2, PLACES + 2):
        pids.append(in_child(hold))
        assert done.get(timeout=WAIT_S) == number - 1
        os.waitpid(pids[-1], os.WUNTRACED)
        latest.write(np.full(100, number))
    with latest.lease() as one, latest.lease() as other:
        assert address(one.array) != address(other.array)  # copies
    for number in range(50):
        latest.write(np.full(100, number))  # none of these waits
    for pid in pids:
        kill(pid)
    with latest.lease() as one, latest.lease() as other:
        assert address(one.array) == address(other.array)
        for number in range(50):
            latest.write(np.full(100, 1000 + number))
        assert (one.array == 49).all()


@needs_marks
def test_readers_killed_at_any_moment_leave_whole_values():
    latest = shmring.Latest(1 << 15)
    latest.write(np.zeros(4000))

    def lease():
        while True:
            with latest.lease() as one:
                assert one.array[0] == one.array[-1]

    for number in range(40):
        pid = in_child(lease)
        for step in range(10 * (number % 4)):
            latest.write(np.full(4000, step))
        kill(pid)
        latest.write(np.full(4000, number))
        with latest.lease() as one:
            assert (one.array == number).all()


def test_a_forked_child_does_not_end_its_parents_lease():
    latest = shmring.Latest(1 << 12)
    latest.write(np.arange(100))
    lease = latest.lease()

    def child():
        nonlocal lease
        assert lease.array[5] == 5
        lease.release()

    assert status_of(in_child(child)) == 0
    for number in range(20):
        latest.write(np.full(100, number))
    assert lease.array.tolist() == list(range(100))


def test_the_lease_of_a_channel_is_released_by_itself_too():
    sender, receiver = shmring.channel()
    sender.send(b"first")
    sender.send(b"second")
    lease = receiver.peek()
    assert bytes(lease) == b"first"
    assert lease.version == 0
    lease.release()
    assert receiver.recv() == b"second"
    with pytest.raises(ValueError, match="over"):
        lease.release()
    writable = sender.reserve(3)
    with pytest.raises(ValueError, match="writable"):
        writable.release()
    sender.abort()
