"""`spawn` with ``threads=True``: ranks as threads of a free-threaded Python; elsewhere an error that says why not."""

import os
import threading
import time
import warnings

import numpy as np
import pytest
from support.harness import PATIENCE

import shmring
from shmring.core.sync.turn import IS_FREE_THREADED
from shmring.errors import AbortedError, PeerLostError, RankFailedError

free_threaded = pytest.mark.skipif(not IS_FREE_THREADED, reason="this Python has the GIL")


def join_threads(prefix):
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(60 * PATIENCE)
            assert not thread.is_alive()


@pytest.mark.skipif(IS_FREE_THREADED, reason="this Python has no GIL")
def test_with_the_gil_the_error_says_why_not():
    with pytest.raises(RuntimeError, match=r"needs a free-threaded Python \(3\.14t\)"):
        shmring.spawn(print, 2, threads=True)


@free_threaded
@pytest.mark.parametrize("size", [1, 2, 5])
def test_results_come_by_rank_and_arguments_are_not_copied(size):
    shared, pids = [], set()

    def work(comm, into, *, factor):
        into.append(comm.rank)
        pids.add(os.getpid())
        x = np.full(1000, float(comm.rank + 1))
        comm.all_reduce(x)
        large = np.full(1 << 18, comm.rank, np.int64)
        comm.all_reduce(large)
        assert (large == sum(range(size))).all()
        comm.send_object({"from": comm.rank}, (comm.rank + 1) % size)
        assert comm.recv_object((comm.rank - 1) % size) == {"from": (comm.rank - 1) % size}
        gathered = comm.all_gather(np.array([comm.rank]))
        assert gathered.ravel().tolist() == list(range(size))
        return factor * x[0]

    total = sum(range(size + 1))
    assert shmring.spawn(work, size, (shared,), {"factor": 2.0}, threads=True) == [2.0 * total] * size
    assert sorted(shared) == list(range(size))
    assert pids == {os.getpid()}


@free_threaded
def test_every_rank_has_the_bits_that_processes_have():
    def work(comm):
        x = np.random.default_rng(comm.rank).random(100_003, np.float32)
        half = x.astype(np.float16)
        comm.all_reduce(x)
        comm.all_reduce(half)
        return x.tobytes(), half.tobytes()

    results = shmring.spawn(work, 3, threads=True)
    rows = [np.random.default_rng(rank).random(100_003, np.float32) for rank in range(3)]
    expected = rows[0] + rows[1] + rows[2]
    assert {result[0] for result in results} == {expected.tobytes()}
    assert len({result[1] for result in results}) == 1


class NoSuchLuckError(Exception):
    pass


@free_threaded
@pytest.mark.parametrize("rank", [0, 2])
def test_the_error_of_the_rank_that_failed_by_itself_is_raised_and_the_others_get_its_text(rank):
    seen = {}

    def work(comm):
        if comm.rank == rank:
            raise NoSuchLuckError("bad luck")
        try:
            comm.barrier()
            comm.barrier()
        except BaseException as error:
            seen[comm.rank] = error
            raise

    with pytest.raises(NoSuchLuckError, match="bad luck") as caught:
        shmring.spawn(work, 3, threads=True)
    assert caught.value.__notes__ == [f"raised by rank {rank}"]
    assert sorted(seen) == sorted({0, 1, 2} - {rank})
    for error in seen.values():
        assert isinstance(error, AbortedError)
        assert f"rank {rank} failed with NoSuchLuckError: bad luck" in str(error)


@free_threaded
def test_a_rank_that_leaves_early_is_lost_to_those_that_need_it():
    def work(comm):
        if comm.rank:
            comm.recv(np.zeros(1), 0)

    with pytest.raises(PeerLostError, match="rank 0") as caught:
        shmring.spawn(work, 2, threads=True)
    assert caught.value.rank == 0


@free_threaded
def test_a_rank_that_exits_is_an_error_with_its_status():
    def work(comm):
        raise SystemExit(3)

    with pytest.raises(RankFailedError, match="left with status 3") as caught:
        shmring.spawn(work, 1, threads=True)
    assert caught.value.status == 3


@free_threaded
def test_after_the_timeout_ranks_in_calls_are_ended_and_those_that_never_call_are_named():
    for grace in (0.5, 5, 25):  # of which rank 1 needs a moment
        stop = threading.Event()

        def work(comm, stop=stop):
            if comm.rank == 0:
                stop.wait(60 * PATIENCE)
            comm.barrier()

        try:
            with pytest.raises(TimeoutError, match="ranks 0, 1 of 2"), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                shmring.spawn(work, 2, threads=True, timeout=0.3 * PATIENCE, grace=grace * PATIENCE)
        finally:
            stop.set()
        join_threads("shmring rank")
        found = ["ranks 0 are still running" in str(warning.message) for warning in caught]
        if found == [True]:
            return
    assert found == [True]


@free_threaded
def test_bad_settings_are_refused_before_any_thread_starts():
    with pytest.raises(TypeError, match="nonsense"):
        shmring.spawn(print, 2, threads=True, init={"nonsense": 1})
    with pytest.raises(ValueError, match="processes"):
        shmring.spawn(print, 2, threads=True, env={"A": "1"})
    with pytest.raises(ValueError, match="processes"):
        shmring.spawn(print, 2, threads=True, start_method="fork")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shmring rank")]


@free_threaded
def test_groups_shared_arrays_and_background_work_of_threads():
    def work(comm):
        half = comm.split(comm.rank % 2)
        shared = comm.empty(1 << 16, np.int64)
        shared[:] = comm.rank
        comm.all_reduce(shared)
        assert (shared == 6).all()
        works = [comm.all_reduce(np.full(1 << 14, n), async_op=True) for n in range(10)]
        assert [int(done.wait()[0]) for done in works] == [4 * n for n in range(10)]
        x = np.array([comm.rank])
        half.all_reduce(x)
        half.close()
        return int(x[0])

    assert shmring.spawn(work, 4, threads=True) == [2, 4, 2, 4]
    join_threads("shmring")  # those of background work end once their communicator is closed


@free_threaded
def test_a_thread_can_be_a_rank_by_init_as_well():
    session, results = f"threads{time.monotonic_ns():x}", [None, None]

    def work(rank):
        with shmring.init(rank=rank, size=2, session=session) as comm:
            results[rank] = comm.all_reduce(np.ones(3)).tolist()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2.0] * 3] * 2
