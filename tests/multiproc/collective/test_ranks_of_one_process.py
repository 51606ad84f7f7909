"""Ranks that are threads of one process: large calls on private arrays stage nothing, with the bits of staged ones.

The ranks of a test are threads of a process of its own, since what they must not do is access memory that was freed.
"""

import os
import secrets
import time
from functools import partial

import numpy as np
import pytest
from support.harness import run_processes
from support.inputs import same_bits, values
from support.on_ranks import on_processes, on_ranks
from support.oracle import reduce_model
from support.rank_threads import run_rank_threads, threads_as_ranks
from support.threads import at_once

import shmring
from shmring.collectives.shared import zero_copy
from shmring.errors import BrokenError, CollectiveTimeoutError

LARGE = 24 << 20  # elements: copying them takes longer than a rank waits for it here


def nzero_copy(comm):
    # Not by stats(), which looks for huge pages in all mappings of the process: seconds under the thread sanitizer.
    sharing = comm._engine.sharing
    return 0 if sharing is None else sharing.nzero_copy


@on_ranks(4, run=run_rank_threads)
def test_from_32_kib_on_also_in_groups_and_in_the_background(comm):
    x = np.full(1 << 16, comm.rank + 1.0)
    for nbytes in (32 << 10, (32 << 10) - 8):
        comm.all_reduce(x[: nbytes // 8])
    assert nzero_copy(comm) == 1
    works = [comm.all_reduce(np.full(1 << 14, n), async_op=True) for n in range(5)]
    assert [int(work.wait()[0]) for work in works] == [comm.size * n for n in range(5)]
    before = nzero_copy(comm)
    plan = comm.plan("all_reduce", x)
    for _ in range(3):
        plan()
    assert nzero_copy(comm) - before == 3
    half = comm.split(comm.rank % 2)
    before = nzero_copy(half)
    half.all_reduce(x)
    assert nzero_copy(half) == before + 1
    half.close()
    explained = comm.explain("all_reduce", 1 << 20)
    assert explained.startswith("all_reduce of 1048576 bytes among 4 ranks: zero_copy\n")


@on_ranks(3, run=run_rank_threads)
def test_private_arrays_beside_those_in_segments(comm):
    """Private arrays, arrays of all ranks in segments, one result for all, arrays that were made shared: mixed."""
    n = 50_000
    sources = [values(np.float32, n, r) for r in range(comm.size)]
    whole = reduce_model(sources, "sum")
    made, result, private = comm.array(sources[comm.rank]), comm.shared_result(n, np.float32), sources[comm.rank].copy()
    for x, out in ((made, private), (private, made), (made, result)):
        x[:] = sources[comm.rank]
        comm.all_reduce(x, out)
        assert same_bits(out, whole)
        comm.barrier()
    private[:] = sources[comm.rank]
    with comm.share(private):
        comm.all_reduce(private[3:-5])
    assert same_bits(private[3:-5], whole[3:-5])
    assert same_bits(private[:3], sources[comm.rank][:3])
    assert nzero_copy(comm) == 4


def one_array_for_all(comm, out):
    x = np.full(len(out), comm.rank + 1.0)
    comm.all_reduce(x, out)
    comm.barrier()
    assert (out == 6).all()


def test_ranks_may_pass_one_output_which_all_of_them_read():
    run_rank_threads(3, one_array_for_all, np.zeros(1 << 17))


@on_ranks(2)
def test_ranks_that_are_processes_stage_private_arrays(comm):
    comm.all_reduce(np.ones(1 << 20))
    assert nzero_copy(comm) == 0


def be_one_of_three(rank, session):
    with shmring.init(rank=rank, size=3, session=session) as comm:
        x = np.full(1 << 16, rank + 1.0)
        comm.all_reduce(x)
        return float(x[-1]), nzero_copy(comm)


@on_processes(1)
def test_two_threads_and_a_process_stage_private_arrays(rank):
    session = f"mixed{secrets.token_hex(8)}"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if be_one_of_three(2, session) == (6.0, 0) else 1)
    results = at_once(*[partial(be_one_of_three, rank, session) for rank in range(2)])
    assert (results, os.waitpid(pid, 0)[1]) == ([(6.0, 0)] * 2, 0)


# ---- failures: no rank accesses an array of a rank whose call is over -----------------------------------------------


@on_ranks(2, run=run_rank_threads)
def test_once_a_timeout_is_raised_no_rank_writes_to_the_array_any_more(comm):
    out = np.zeros((comm.size, LARGE), np.float32) if comm.rank == 0 else None
    x = np.full(LARGE, comm.rank, np.float32) if comm.rank else out[0]  # in place: the root has nothing to copy
    comm.barrier()
    with pytest.raises(CollectiveTimeoutError):
        for _ in range(100):  # on a machine with much else to do, the root may notice the end first
            comm.gather(x, out, root=0, timeout=None if comm.rank else 1e-3)
        comm.barrier()
    if comm.rank == 0:
        seen = out.copy()
        time.sleep(0.1)
        assert (seen == out).all()


@pytest.mark.parametrize("call", ["all_reduce", "broadcast"])
@on_ranks(2, run=run_rank_threads)
def test_a_rank_that_comes_after_the_failure_accesses_nothing(comm, call):
    x = np.full(LARGE // 4, 1.0, np.float32)
    if comm.rank == 0:
        with pytest.raises(BrokenError):
            getattr(comm, call)(x, timeout=0.05)
        del x  # and unmapped
        return
    while not comm._engine.left_ranks():
        time.sleep(0.005)
    with pytest.raises(CollectiveTimeoutError, match="timed out"):
        getattr(comm, call)(x)
    assert (x == 1.0).all()


def without_memory(comm):
    build = zero_copy.build_plan

    def refuse(kind, name, rank, *args, **kwargs):
        if rank == 0:
            raise MemoryError("no room for a plan")
        return build(kind, name, rank, *args, **kwargs)

    if comm.rank == 0:
        zero_copy.build_plan = refuse
    comm.barrier()
    comm.all_reduce(np.ones(1 << 20))


def texts_without_memory(_):
    return [str(error) for error in threads_as_ranks(2, without_memory)]


def test_an_error_of_this_rank_alone_ends_the_call_of_all():
    own, other = run_processes(1, texts_without_memory)[0]
    assert own == "no room for a plan"
    assert "rank 0 aborted: MemoryError: no room for a plan" in other
