"""Queues that processes find by a name."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import time

import pytest
from support.children import in_child, kill, status_of
from support.harness import PATIENCE, eventually

import shmring
from shmring import ClosedError, SegmentError

WAIT_S = 60 * PATIENCE


@pytest.fixture
def name(request):
    return f"jobs-{os.getpid()}"


def files(name):
    return [file for file in os.listdir("/dev/shm") if name.replace("-", "_") in file]


def test_unrelated_programs_share_a_queue_by_its_name_and_the_last_removes_it(name):
    with_name = shmring.Queue(name=name)
    script = f"import shmring; q = shmring.Queue(name={name!r}); q.put([q.get(timeout={WAIT_S}), 'from a program'])"
    with_name.put("for a program")
    program = subprocess.run([sys.executable, "-c", script], check=True)
    assert program.returncode == 0
    assert with_name.get(timeout=WAIT_S) == ["for a program", "from a program"]
    assert files(name)
    assert name in repr(with_name)
    with_name.close()
    with_name.close()
    assert not files(name)
    with pytest.raises(ClosedError):
        with_name.put(1)


def test_items_stay_as_long_as_somebody_has_the_name_open(name):
    first = shmring.Queue(name=name)
    first.put("kept")
    second = shmring.Queue(name=name)
    first.close()
    assert second.get(timeout=0) == "kept"
    second.put("gone with the last")
    second.close()
    third = shmring.Queue(name=name)
    assert third.empty()
    third.close()


def test_what_is_given_must_agree(name):
    q = shmring.Queue(3, capacity_nbytes=1 << 12, name=name)
    for agrees in ({}, {"maxsize": 3}, {"capacity_nbytes": 1 << 12}, {"capacity_nbytes": 4000}):
        same = shmring.Queue(name=name, **agrees)
        assert not same.full()
        same.close()
    with pytest.raises(SegmentError, match="open with maxsize=3, not 4"):
        shmring.Queue(4, name=name)
    with pytest.raises(SegmentError, match="open with capacity_nbytes=4096, not 8192"):
        shmring.Queue(capacity_nbytes=8000, name=name)
    for wrong in ("", 5, b"x"):
        with pytest.raises(TypeError, match="name="):
            shmring.Queue(name=wrong)
    q.put("it works")
    assert q.get() == "it works"
    q.close()
    assert not files(name)


def test_small_capacities_agree(name):
    for nbytes in (64, 100, 128, 129, 300):
        one = shmring.Queue(capacity_nbytes=nbytes, name=name)
        other = shmring.Queue(capacity_nbytes=nbytes, name=name)
        other.put(b"x")
        assert one.get() == b"x"
        one.close()
        other.close()


def test_a_latest_value_or_channel_of_the_same_name_is_another_thing(name):
    with shmring.Latest(name=name) as latest, shmring.open_channel(name, "sender") as sender:
        q = shmring.Queue(name=name)
        latest.write(b"latest")
        sender.send(b"channel")
        q.put("queue")
        assert q.get() == "queue"
        q.close()


def serve(q, results):
    results.put(q.get(timeout=WAIT_S))


@pytest.mark.leaks  # multiprocessing keeps its fork server
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_pickles_as_its_name(name, method):
    q, results = shmring.Queue(2, capacity_nbytes=1 << 12, name=name), shmring.Queue()
    process = multiprocessing.get_context(method).Process(target=serve, args=(q, results))
    process.start()
    q.put("job")
    assert results.get(timeout=WAIT_S) == "job"
    process.join()
    for same in (pickle.loads(pickle.dumps(q)), copy.copy(q)):
        q.put("again")
        assert same.get(timeout=WAIT_S) == "again"
        same.close()
    q.close()


def test_a_consumer_waits_for_producers_that_come_and_go(name):
    q = shmring.Queue(name=name)
    for number in range(3):

        def child(number=number):
            mine = shmring.Queue(name=name)
            time.sleep(0.1)
            mine.put(number)

        pid = in_child(child)
        assert q.get() == number
        assert status_of(pid) == 0
    q.close()


def test_a_name_whose_processes_were_all_killed_is_made_anew(name):
    def child():
        q = shmring.Queue(name=name, capacity_nbytes=1 << 12)
        q.put("lost")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(in_child(child)) == -signal.SIGKILL
    assert files(name)
    q = shmring.Queue(name=name, capacity_nbytes=1 << 13)
    assert q.empty()
    q.put("new")
    assert q.get() == "new"
    q.close()
    assert not files(name)


def test_a_name_whose_processes_were_all_killed_is_removed_by_info_clean(name):
    def child():
        q, latest = shmring.Queue(name=name), shmring.Latest(1 << 12, name=name)
        q.put("lost")
        latest.write("lost")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(in_child(child)) == -signal.SIGKILL
    assert len(files(name)) == 2
    subprocess.run([sys.executable, "-m", "shmring", "info", "--json", "--clean"], check=True, capture_output=True)
    assert not files(name)


def test_a_link_or_a_file_of_others_is_refused(name):
    q = shmring.Queue(name=name)
    (file,) = files(name)
    q.close()
    path = f"/dev/shm/{file}"
    os.symlink("/etc/passwd", path)
    try:
        with pytest.raises(SegmentError, match="symbolic link"):
            shmring.Queue(name=name)
    finally:
        os.unlink(path)
    with open(path, "w") as stream:
        stream.write("open to others")
    os.chmod(path, 0o666)
    try:
        with pytest.raises(SegmentError, match="open to others"):
            shmring.Queue(name=name)
    finally:
        os.unlink(path)


# ---- descriptors: each process has its own ----


def readable(q, timeout=0):
    return bool(select.select([q], [], [], timeout)[0])


def drain(q):
    try:
        while True:
            q.get_nowait()
    except queue.Empty:
        pass


def test_a_descriptor_is_readable_when_another_process_puts(name):
    q = shmring.Queue(name=name)
    assert not readable(q)

    def child():
        mine = shmring.Queue(name=name)
        for number in range(3):
            while not readable(mine, WAIT_S) or not mine.poll():
                pass
            assert mine.get_nowait() == number
            drain(mine)

    pid = in_child(child)
    for number in range(3):
        time.sleep(0.05)
        q.put(number)
        eventually(lambda: assert_empty(q))
    assert status_of(pid) == 0
    q.put("here")
    assert readable(q, WAIT_S)
    assert q.get() == "here"
    assert not q.poll()
    assert not readable(q)
    q.close()


def assert_empty(q):
    assert q.empty()


def test_several_processes_are_woken_by_their_descriptors(name):
    q, done = shmring.Queue(name=name), shmring.Queue()

    def child():
        mine = shmring.Queue(name=name)
        while True:
            readable(mine, WAIT_S)
            try:
                item = mine.get_nowait()
            except queue.Empty:
                continue
            if item is None:
                return
            done.put(item)

    pids = [in_child(child) for _ in range(3)]
    for number in range(60):
        q.put(number)
        if number % 10 == 0:
            time.sleep(0.01)
    assert sorted(done.get(timeout=WAIT_S) for _ in range(60)) == list(range(60))
    for _ in pids:
        q.put(None)
    assert [status_of(pid) for pid in pids] == [0] * 3
    q.close()


def test_it_is_awaited_and_waited_for_among_others(name):
    q, other = shmring.Queue(name=name), shmring.Queue()

    def child():
        mine = shmring.Queue(name=name)
        time.sleep(0.1)
        mine.put("for the task")
        time.sleep(0.1)
        mine.put(bytes(20 << 20))  # longer than the ring
        time.sleep(0.1)
        mine.put("for wait")

    pid = in_child(child)

    async def main():
        return [await asyncio.wait_for(q.get_async(), WAIT_S), len(await asyncio.wait_for(q.get_async(), WAIT_S))]

    assert asyncio.run(main()) == ["for the task", 20 << 20]
    assert shmring.wait([other, q], WAIT_S) == [q]
    assert q.get_nowait() == "for wait"
    assert shmring.wait([other, q], 0.01) == []
    assert status_of(pid) == 0
    q.close()


def test_a_forked_child_has_a_descriptor_of_its_own(name):
    q = shmring.Queue(name=name)
    assert not readable(q)

    def child():
        assert not readable(q)
        assert readable(q, WAIT_S)
        assert q.get(timeout=0) == "for the child"
        q.close()  # the name stays its parent's
        assert files(name)

    pid = in_child(child)
    time.sleep(0.2)
    q.put("for the child")
    assert status_of(pid) == 0
    q.close()


def test_a_consumer_killed_while_it_waits_leaves_the_queue_to_others(name):
    q = shmring.Queue(name=name)
    for number in range(5):
        pid = in_child(lambda: shmring.Queue(name=name).get())
        time.sleep(0.02 * number)
        kill(pid)
    q.put("still here")
    assert q.get(timeout=WAIT_S) == "still here"
    q.close()
