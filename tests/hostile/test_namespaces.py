"""Ranks in other namespaces and of other users. Files of others under our names are in unit/memory/test_segment.py."""

import os
import time

import numpy as np
import pytest
from support.emulation import needs_marks
from support.harness import PATIENCE, run_processes, start_processes
from support.namespaces import (
    CLONE_NEWIPC,
    STRANGER,
    _libc,
    enter,
    in_new_pid_namespace,
    needs_mount,
    needs_pids,
    needs_stranger,
    room,
)
from support.on_ranks import on_processes

import shmring
from shmring.errors import PeerLostError, RendezvousTimeoutError


def add_up(rank, size, session):
    with shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=60 * PATIENCE) as comm:
        x = comm.all_reduce(np.arange(100_000) + rank)
        with comm.split(rank % 2) as group:
            group.barrier()
        shared = comm.empty(1000)
        shared[...] = rank
        comm.barrier()
        seen = [float(comm.shared_view(shared, r)[-1]) for r in range(size)]
        comm.barrier()
        return os.getpid(), int(x[1]), seen


def in_pid_namespace(rank, fn, *args):
    return in_new_pid_namespace(fn, rank, *args)


@needs_pids
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_in_different_pid_namespaces_work_together(n, seed):
    results = run_processes(n, in_pid_namespace, add_up, n, f"pids-{seed}-{n}")
    assert results == [(1, n + sum(range(n)), [float(r) for r in range(n)])] * n  # each is process 1 of its namespace


def lose_one(rank, size, session, sleeps):
    settings = {"rendezvous_timeout": 60 * PATIENCE, "spin_us": 0 if sleeps else -1}
    comm = shmring.init(rank=rank, size=size, session=session, **settings)
    comm.barrier()
    if rank == 1:
        if sleeps:
            time.sleep(0.1)
        os._exit(7)
    with pytest.raises(PeerLostError) as caught:
        while True:
            comm.barrier()
    with comm.shrink() as rest:
        assert rest.all_reduce(np.ones(3))[0] == size - 1
    comm.close()
    return caught.value.rank


@needs_pids
@needs_marks
@pytest.mark.parametrize("sleeps", [False, True])
def test_a_death_in_another_pid_namespace_is_noticed_and_survived(sleeps, seed):
    outcomes = start_processes(3, in_pid_namespace, lose_one, 3, f"death-{seed}-{sleeps}", sleeps).outcomes()
    assert [outcomes[r].result for r in (0, 2)] == [1, 1], outcomes
    assert isinstance(outcomes[1].error, ChildProcessError)


def meet_from_another_mount_namespace(rank, pid, session):
    if rank == 1:
        enter(pid)
    shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=0.5).close()


@needs_mount
def test_ranks_that_share_no_shm_time_out_and_name_each_other(seed):
    with room("16m") as place:
        outcomes = start_processes(2, meet_from_another_mount_namespace, place.pid, f"apart-{seed}").outcomes()
        assert place.names() == []
    for outcome in outcomes:
        assert type(outcome.error) is RendezvousTimeoutError, outcome
        assert outcome.error.missing == (1 - outcome.rank,)


@needs_mount
@on_processes(2)
def test_another_ipc_namespace_makes_no_difference_where_dev_shm_is_shared(rank, seed):
    if rank == 1 and _libc.unshare(CLONE_NEWIPC):
        raise OSError("unshare")
    assert add_up(rank, 2, f"ipc-{seed}")[1] == 3


def become_another_user(rank, session):
    if rank == 1:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
    shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=0.5).close()


@needs_stranger
def test_ranks_of_two_users_never_meet_and_each_times_out(seed):
    for outcome in start_processes(2, become_another_user, f"users-{seed}").outcomes():
        assert type(outcome.error) is RendezvousTimeoutError, outcome
        assert outcome.error.missing == (1 - outcome.rank,)
