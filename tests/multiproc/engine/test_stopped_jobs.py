"""A job that is stopped as a whole: time in which a waiting process did not run does not count."""

import os
import signal
import time
from functools import partial

import numpy as np
from support.children import in_child, status_of
from support.harness import PATIENCE, eventually, is_stopped, report, start_ranks
from support.waits import until_idle, until_waiting

import shmring

TIMEOUT_S = 2 * PATIENCE


def check_all_stopped(pids):
    assert all(map(is_stopped, pids))


def check_here(sender):
    assert sender.peer == "here"


def arrive_late(comm, go):
    comm.barrier()
    if comm.rank == 1:
        until_waiting(comm, 0)
        report("rank 0 waits")
        while not go.exists():
            time.sleep(0.005)
    return comm.all_reduce(np.ones(1), timeout=TIMEOUT_S)[0]


def test_ranks_that_are_stopped_for_longer_than_the_timeout_go_on(tmp_path):
    gang = start_ranks(2, arrive_late, tmp_path / "go", init={"spin_us": 0})
    gang.wait_for("rank 0 waits", [1])
    for rank in (0, 1):
        gang.signal(rank, signal.SIGSTOP)
    eventually(partial(check_all_stopped, gang.pids))
    time.sleep(TIMEOUT_S)
    for rank in (0, 1):
        gang.signal(rank, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert [outcome.result for outcome in gang.outcomes()] == [2, 2]


def is_held_up(comm, go):
    def hold_up(*_):
        time.sleep(1.5 * TIMEOUT_S)
        report("it was held up")

    signal.signal(signal.SIGUSR1, hold_up)
    return arrive_late(comm, go)


def test_a_rank_that_is_held_up_between_two_steps_of_a_wait_goes_on(tmp_path):
    gang = start_ranks(2, is_held_up, tmp_path / "go", init={"spin_us": 0})
    gang.wait_for("rank 0 waits", [1])
    gang.signal(0, signal.SIGUSR1)
    gang.wait_for("it was held up", [0])
    time.sleep(0.1)  # it looks at the time again
    (tmp_path / "go").touch()
    assert [outcome.result for outcome in gang.outcomes()] == [2, 2]


def test_a_receiver_that_is_stopped_for_longer_than_the_timeout_goes_on():
    sender, receiver = shmring.channel(4096)

    def receive():
        assert receiver.recv(TIMEOUT_S) == b"late"

    child = in_child(receive)
    eventually(partial(check_here, sender))
    until_idle(child)
    os.kill(child, signal.SIGSTOP)
    eventually(partial(check_all_stopped, [child]))
    time.sleep(TIMEOUT_S)
    os.kill(child, signal.SIGCONT)
    sender.send(b"late")
    assert status_of(child) == 0


def note_start_and_wait(comm, directory):
    (directory / str(os.getpid())).touch()
    while not (directory / "go").exists():
        time.sleep(0.005)
    return comm.all_reduce(1)


def check_two_have_started(directory):
    assert len(list(directory.iterdir())) == 2


def test_spawn_that_is_stopped_for_longer_than_its_timeout_goes_on(tmp_path):
    def launch():
        os.setpgrp()
        assert shmring.spawn(note_start_and_wait, 2, (tmp_path,), start_method="fork", timeout=TIMEOUT_S) == [2, 2]

    child = in_child(launch)
    eventually(partial(check_two_have_started, tmp_path))
    os.killpg(child, signal.SIGSTOP)
    eventually(partial(check_all_stopped, [child, *map(int, os.listdir(tmp_path))]))
    time.sleep(TIMEOUT_S + 2)  # a stop of less than the supervisor's tick counts as time
    os.killpg(child, signal.SIGCONT)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    assert status_of(child) == 0
