"""The harness itself: what the other tests rely on when they say that nothing hung, leaked or failed."""

import contextlib
import multiprocessing
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import compiled, harness
from support.harness import RankError, eventually, report, run_processes, start_processes, start_ranks
from support.on_ranks import on_ranks

import shmring
from shmring.core.memory.spelling import segment_name
from shmring.launch.run import run


def raise_in_turn(rank, path):
    """Rank 0 once rank 1 has ended."""
    if rank == 1:
        path.symlink_to(f"/proc/{os.getpid()}")
    while rank == 0 and not (path.is_symlink() and "State:\tZ" in (path / "status").read_text()):
        time.sleep(0.005)
    raise KeyError(f"rank {rank}")


def test_the_first_failure_is_raised_with_the_outcomes_of_all_ranks(tmp_path):
    with pytest.raises(KeyError, match="rank 1") as caught:
        run_processes(2, raise_in_turn, tmp_path / "rank 1")
    story = str(caught.value.__cause__)
    assert "in raise_in_turn" in story
    assert "KeyError: 'rank 0'" in story
    assert "KeyError: 'rank 1'" in story


def raise_in_a_thread(rank):
    thread = threading.Thread(target=int, args=("no number",))
    thread.start()
    thread.join()


def test_what_a_thread_of_a_rank_raises_fails_the_rank():
    with pytest.raises(ValueError, match="no number"):
        run_processes(1, raise_in_a_thread)


def sleep_in_rank_one(rank):
    if rank == 1:
        time.sleep(1000)


def test_the_watchdog_shows_where_a_rank_hangs_and_ends_it():
    timeouts = (0.2 * 4**k for k in range(100))  # until the ranks come so far

    @eventually
    def _():
        with pytest.raises(RankError, match=r"ranks \[1\] hung(.|\n)*in sleep_in_rank_one"):
            run_processes(2, sleep_in_rank_one, timeout=next(timeouts))


@on_ranks(2)
def fail_on_rank_one(comm):
    assert comm.rank == 0, "on purpose"


def test_a_test_that_ranks_run_fails_with_the_assertion_of_a_rank():
    with pytest.raises(AssertionError, match="on purpose"):
        fail_on_rank_one()


def report_and_sleep(rank):
    report("here")
    time.sleep(1000 if rank == 1 else 0.01)
    return rank


def test_a_stopped_rank_is_ended_by_the_watchdog_too():
    gang = start_processes(2, report_and_sleep)
    gang.wait_for("here")
    gang.stop(1)
    assert gang.outcomes(timeout=0.2)[1].stuck


def call_for_ever(comm):
    report("going")
    while True:
        comm.barrier()


def test_of_ranks_that_are_killed_together_none_notices_that_another_one_is_dead(monkeypatch):
    kill = harness.Gang.kill
    monkeypatch.setattr(harness.Gang, "kill", lambda *args: (kill(*args), time.sleep(0.1)))
    gang = start_ranks(3, call_for_ever)
    gang.wait_for("going")
    assert gang.survivors_of(0, 1, 2) == []


def leave(rank, status):
    os._exit(status)


def test_a_rank_that_exits_without_a_word_is_a_failure():
    with pytest.raises(RankError, match="left with status 3"):
        run_processes(2, leave, 3)
    outcomes = start_processes(1, leave, 0).outcomes()
    assert outcomes[0].status == 0


def test_ranks_left_running_by_a_test_are_ended():
    gang = start_processes(2, report_and_sleep)
    assert harness.end_all() == [gang]
    assert all(outcome.stuck or outcome.ok for outcome in gang.outcomes())


def test_a_name_left_in_shared_memory_is_a_failure():
    before = harness.shared_names(), harness.open_files(), set(threading.enumerate())
    with standing("/dev/shm" + segment_name("meta", 0)):
        with pytest.raises(pytest.fail.Exception, match="left in shared memory"):
            harness.fail_on_leaks(*before, patience=0)


LEAK = """
import os, sys
from shmring.core.memory.spelling import segment_name
open("/dev/shm" + segment_name(sys.argv[1] + os.environ.get("RANK", ""), "r0"), "x").close()
"""


def leak(rank, session):
    sys.argv[1:] = [session]
    exec(LEAK)


@pytest.mark.parametrize("started_by", ["a rank", "a child", "launch.run", *multiprocessing.get_all_start_methods()])
@pytest.mark.leaks  # the fork server's pipe
def test_names_left_by_any_process_that_a_test_starts_are_found(started_by):
    before = harness.shared_names()
    session = f"meta{secrets.token_hex(4)}"
    if started_by == "a rank":
        run_processes(1, leak, session)
    elif started_by == "a child":
        subprocess.run([sys.executable, "-c", LEAK, session], check=True)
    elif started_by == "launch.run":
        assert run([sys.executable, "-c", LEAK, session], 1) == 0
    else:
        shmring.spawn(leak_as_rank, 1, (session,), start_method=started_by)
    (name,) = harness.shared_names() - before
    os.unlink(f"/dev/shm/{name}")
    assert session in name


def leak_as_rank(comm, session):
    leak(0, session)


@contextlib.contextmanager
def standing(path):
    """A file in shared memory."""
    with open(path, "x"):
        pass
    try:
        yield
    finally:
        os.unlink(path)


def test_a_descriptor_left_open_is_a_failure():
    before = harness.shared_names(), harness.open_files(), set(threading.enumerate())
    ends = os.pipe()
    try:
        with pytest.raises(pytest.fail.Exception, match="descriptors left open"):
            harness.fail_on_leaks(*before, patience=0)
    finally:
        for end in ends:
            os.close(end)


def test_a_thread_left_running_is_a_failure():
    before = harness.shared_names(), harness.open_files(), set(threading.enumerate())
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="stray")
    thread.start()
    try:
        with pytest.raises(pytest.fail.Exception, match="stray"):
            harness.fail_on_leaks(*before, patience=0)
    finally:
        release.set()
        thread.join()


def test_a_module_built_by_two_processes_stays_where_the_first_has_put_it(monkeypatch, tmp_path):
    """Each of two workers may build the same module: the later one removed what the first was about to load."""
    monkeypatch.setattr(compiled.subprocess, "run", lambda *_, cwd, **__: (Path(cwd, "product").touch(), Built)[1])
    place, old = tmp_path / "array_hooks-2", tmp_path / "array_hooks-1"
    old.mkdir()
    compiled._build("array_hooks", place)
    assert not old.exists()
    first = (place / "product").stat().st_ino
    compiled._build("array_hooks", place)
    assert (place / "product").stat().st_ino == first
    assert list(tmp_path.iterdir()) == [place]


class Built:
    returncode = 0
