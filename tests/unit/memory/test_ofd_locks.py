"""Open-file-description locks: exclusive and shared, between threads, after close and after fork."""

import os
import threading
import time

import pytest

from shmring.core.memory import ofd_locks


@pytest.fixture
def files(tmp_path):
    """Three open files of one path."""
    path = tmp_path / "locked"
    path.touch()
    opened = [os.open(path, os.O_RDWR) for _ in range(3)]
    yield opened
    for fd in opened:
        os.close(fd)


def test_an_exclusive_lock_excludes_other_open_files_of_the_same_process(files):
    one, two, _ = files
    assert ofd_locks.lock(one, 0)
    assert ofd_locks.lock(one, 0)  # its own is no conflict
    assert not ofd_locks.lock(two, 0)
    assert ofd_locks.is_locked(two, 0)
    assert not ofd_locks.is_locked(one, 0)
    ofd_locks.unlock(one, 0)
    assert ofd_locks.lock(two, 0)


def test_bytes_are_independent_and_need_not_exist(files):
    one, two, _ = files
    assert ofd_locks.lock(one, 0)
    assert ofd_locks.lock(two, 1)
    assert not ofd_locks.lock(two, 0)
    assert os.fstat(one).st_size == 0


def test_shared_locks_exclude_only_exclusive_ones(files):
    one, two, three = files
    assert ofd_locks.lock(one, 0, shared=True)
    assert ofd_locks.lock(two, 0, shared=True)
    assert ofd_locks.is_locked(three, 0)
    assert not ofd_locks.lock(three, 0)
    assert not ofd_locks.lock(one, 0)  # to exclusive: the other one is shared
    ofd_locks.unlock(two, 0)
    assert ofd_locks.lock(one, 0)
    assert ofd_locks.lock(one, 0, shared=True)  # and back
    assert ofd_locks.lock(two, 0, shared=True)


def test_closing_another_descriptor_of_the_file_releases_nothing(files, tmp_path):
    one, two, _ = files
    assert ofd_locks.lock(one, 0)
    os.close(os.open(tmp_path / "locked", os.O_RDWR))
    assert not ofd_locks.lock(two, 0)


def test_waiting_ends_with_the_lock_or_with_patience(files):
    one, two, _ = files
    assert ofd_locks.lock(one, 0)
    started = time.monotonic()
    assert not ofd_locks.lock(two, 0, patience_s=0.05)
    assert time.monotonic() - started >= 0.05
    waiting = threading.Timer(0.05, ofd_locks.unlock, (one, 0))
    waiting.start()
    assert ofd_locks.lock(two, 0, patience_s=30)
    waiting.join()


@pytest.mark.parametrize("how", ["close", "unlock"])
def test_a_forked_child_keeps_the_lock_until_its_copy_is_closed_or_the_parent_unlocks(tmp_path, how):
    path = tmp_path / "inherited"
    path.touch()
    one, two = (os.open(path, os.O_RDWR) for _ in range(2))
    assert ofd_locks.lock(one, 0)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        os.read(ours, 1)  # until the parent closes its end
        os._exit(0)
    os.close(ours)
    try:
        if how == "unlock":
            ofd_locks.unlock(one, 0)
            assert ofd_locks.lock(two, 0)
        os.close(one)
        if how == "close":
            assert not ofd_locks.lock(two, 0)
    finally:
        os.close(theirs)
        os.waitpid(child, 0)
    assert ofd_locks.lock(two, 0)  # with the child its copy is closed
    os.close(two)
