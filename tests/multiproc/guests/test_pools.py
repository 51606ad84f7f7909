"""Pools of `shmring.multiprocessing` whose workers are killed, exit, or get what cannot be unpickled."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.children import killed_at_random
from support.harness import eventually
from support.programs import run_program

import shmring.multiprocessing
from shmring.errors import WorkerLostError

METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.leaks)]  # the server lives on
KILLED, EXITED, LEFT = 3, 5, 6


@pytest.fixture(params=METHODS)
def context(request):
    return shmring.multiprocessing.get_context(request.param)


def run_or_end(x):
    if x == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if x == EXITED:
        os._exit(4)
    if x == LEFT:
        sys.exit(7)
    return x


class Unreadable:
    """Pickles, and does not unpickle."""

    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise LookupError("cannot be unpickled")


class UnreadableError(Exception):
    def __init__(self, x):
        super().__init__()


def make(what):
    return Unreadable() if what == "result" else what


def fail(_):
    raise UnreadableError(1)


def outcomes(results):
    """What an iterator gives, the errors that it raises among it."""
    found = []
    while True:
        try:
            found.append(next(results))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


@pytest.mark.sample(1)
def test_a_lost_task_raises_at_its_place_and_all_others_go_on(context):
    with context.Pool(2) as pool:
        found = outcomes(pool.imap(run_or_end, range(10)))
        lost = {x: one for x, one in enumerate(found) if isinstance(one, WorkerLostError)}
        assert {x: one.status for x, one in lost.items()} == {KILLED: -signal.SIGKILL, EXITED: 4, LEFT: 7}
        assert [one for one in found if not isinstance(one, Exception)] == [0, 1, 2, 4, 7, 8, 9]
        for error in lost.values():
            assert error.task == "run_or_end"
            assert error.pid
            assert "run_or_end" in str(error)
        assert {x: one.number for x, one in lost.items()} == {x: x for x in lost}
        assert "a call of run_or_end (number 3), was killed by signal 9 (SIGKILL)" in str(lost[KILLED])
        assert pool.map(abs, range(9)) == list(range(9))
        pool.close()
        pool.join()


@pytest.mark.parametrize("call", ["apply", "map", "starmap", "map_async", "imap_unordered"])
def test_every_call_raises(call):
    lost = []
    with shmring.multiprocessing.get_context("fork").Pool(2) as pool:
        with pytest.raises(WorkerLostError, match=r"a call of run_or_end(| \(number \d+\)), was killed by signal 9"):
            if call == "apply":
                pool.apply(run_or_end, (KILLED,))
            elif call == "map_async":
                pool.map_async(run_or_end, [KILLED], error_callback=lost.append).get()
            elif call == "starmap":
                pool.starmap(run_or_end, [(1,), (KILLED,)], chunksize=2)
            elif call == "imap_unordered":
                next(pool.imap_unordered(run_or_end, [KILLED]))
            else:
                pool.map(run_or_end, range(100))
        assert pool.apply(abs, (-1,)) == 1
    assert len(lost) == (call == "map_async")


def test_a_task_that_is_found_lost_twice_raises_once_and_the_pool_goes_on():
    with shmring.multiprocessing.get_context("fork").Pool(1) as pool:
        lost = pool.apply_async(time.sleep, (0.5,))
        (number,) = eventually(lambda: pending_of(pool))
        for _ in range(2):
            pool._tasks._put_mark(number, WorkerLostError("lost"))
        with pytest.raises(WorkerLostError, match="lost"):
            lost.get()
        assert pool.map(abs, range(9)) == list(range(9))


def pending_of(pool):
    assert pool._tasks._pending
    return list(pool._tasks._pending)


@pytest.mark.sample(1)
def test_idle_workers_that_are_killed_take_no_task_with_them(context):
    with context.Pool(2) as pool:
        for _ in range(4):
            assert pool.map(abs, range(7)) == list(range(7))
            for worker in list(pool._pool):
                os.kill(worker.pid, signal.SIGKILL)
        assert pool.map(abs, range(7)) == list(range(7))


def test_a_map_that_begins_while_all_workers_are_replaced_has_its_results():
    with shmring.multiprocessing.get_context("fork").Pool(2) as pool:
        workers, pool._pool = pool._pool, []
        assert pool.map(abs, iter(range(9))) == list(range(9))
        pool._pool = workers


def note_and_return(path, x, argument, nbytes):
    """Append to a file: how often a task has run."""
    assert (argument == x % 251).all()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"{x}\n".encode())
    os.close(fd)
    return x, np.full(nbytes, x % 251, np.uint8)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("argument_nbytes", "nbytes"),
    [(8, 8), (8, 3 << 20), (3 << 20, 8)],
    ids=["small tasks", "results that are sent in pieces", "tasks that are received in pieces"],
)
def test_whenever_workers_are_killed_each_task_has_one_outcome_and_none_runs_twice(
    argument_nbytes, nbytes, tmp_path, seed
):
    path, ntasks = tmp_path / "runs", 150
    path.touch()
    with shmring.multiprocessing.get_context("fork").Pool(3) as pool:
        with killed_at_random(lambda: [worker.pid for worker in list(pool._pool)], seed):
            arguments = [np.full(argument_nbytes, x % 251, np.uint8) for x in range(ntasks)]
            results = [pool.apply_async(note_and_return, (path, x, arguments[x], nbytes)) for x in range(ntasks)]
            found = []
            for result in results:
                try:
                    found.append(result.get())
                except WorkerLostError as error:
                    found.append(error)
        for x, one in enumerate(found):
            if not isinstance(one, WorkerLostError):
                assert one[0] == x
                assert (one[1] == x % 251).all()
        runs = [int(line) for line in path.read_text().split()]
        assert len(set(runs)) == len(runs), "a task ran twice"
        assert set(runs) >= {x for x, one in enumerate(found) if not isinstance(one, WorkerLostError)}
        assert pool.map(abs, range(9)) == list(range(9))


class ExitsWorker:
    """Ends the process that unpickles it: as it takes its task."""

    def __reduce__(self):
        return os._exit, (8,)


class KillsWorker:
    """Kills the process that pickles it: as it sends its result."""

    def __init__(self, _):
        pass

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        return KillsWorker, (0,)


@pytest.mark.sample(1)
def test_a_worker_that_ends_as_it_takes_a_task_or_sends_a_result_loses_that_task(context):
    with context.Pool(2) as pool:
        found = outcomes(pool.imap(abs, [1, ExitsWorker(), 3]))
        assert [type(one) for one in found] == [int, WorkerLostError, int]
        assert (found[1].status, found[1].task, found[1].number) == (8, "abs", 1)
        with pytest.raises(WorkerLostError, match="a call of KillsWorker, was killed by signal 9"):
            pool.apply(KillsWorker, (1,))
        assert pool.map(abs, range(9)) == list(range(9))


def test_an_exit_while_a_result_is_unpickled_fails_its_own_call():
    with shmring.multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(SystemExit):
            pool.apply(make_exiting)
        assert pool.map(abs, range(9)) == list(range(9))


class Exiting:
    def __reduce__(self):
        return sys.exit, (3,)


def make_exiting():
    return Exiting()


@pytest.mark.sample(1)
def test_what_cannot_be_unpickled_fails_its_own_call(context):
    with context.Pool(2) as pool:
        with pytest.raises(LookupError, match="cannot be unpickled"):
            pool.apply(make, (Unreadable(),))
        found = outcomes(pool.imap(make, [1, "result", 2]))
        assert [type(one) for one in found] == [int, LookupError, int]
        with pytest.raises(TypeError):
            pool.apply(fail, (1,))
        assert pool.map(abs, range(9)) == list(range(9))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("end", "status"), [(os._exit, 3), (sys.exit, 3), (int, 1)])  # int(3, 3): a TypeError
def test_workers_that_never_start_fail_all_calls_and_are_not_started_for_ever(context, end, status):
    with context.Pool(2, initializer=end, initargs=(3,) if end is not int else (3, 3)) as pool:
        waiting = [pool.apply_async(abs, (x,)) for x in range(4)]
        for one in waiting:
            with pytest.raises(WorkerLostError, match=rf"before they took a task.*exited with status {status}"):
                one.get()
        with pytest.raises(WorkerLostError, match="initializer"):
            pool.map(abs, range(9))
        eventually(lambda: assert_no_process(pool))
        pool.close()
        pool.join()


def assert_no_process(pool):
    assert not any(worker.is_alive() for worker in list(pool._pool))


class NoDaemon(multiprocessing.context.ForkProcess):
    """The usual recipe for workers that have processes of their own."""

    daemon = property(lambda self: False, lambda self, value: None)


class ContextOfNoDaemons(type(shmring.multiprocessing.get_context("fork"))):
    Process = NoDaemon


def run_a_process():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.exitcode


def test_workers_are_processes_of_the_context_of_the_program():
    with ContextOfNoDaemons().Pool(1) as pool:
        assert pool.apply(run_a_process) == 0
        with pytest.raises(WorkerLostError):
            pool.apply(os._exit, (3,))
    with shmring.multiprocessing.pool.Pool(1, context=multiprocessing.get_context("fork")) as pool:
        assert pool.apply(abs, (-1,)) == 1


@pytest.mark.sample(1)
def test_a_worker_that_is_replaced_after_its_tasks_loses_none(context):
    with context.Pool(2, maxtasksperchild=2) as pool:
        assert pool.map(abs, range(20), chunksize=1) == list(range(20))


LEAVES_WORKERS = """
import os, signal, sys, time
import shmring.multiprocessing

if __name__ == "__main__":
    pool = shmring.multiprocessing.get_context(sys.argv[1]).Pool(3)
    pool.map(abs, range(9))
    pool.apply_async(time.sleep, (0.5,))
    pool.apply_async(bytes, (9 << 20,))
    print(*(worker.pid for worker in pool._pool), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", METHODS)
def test_workers_end_when_their_parent_is_killed(method, tmp_path):
    (tmp_path / "parent.py").write_text(LEAVES_WORKERS)
    done = run_program(sys.executable, tmp_path / "parent.py", method, status=-signal.SIGKILL)
    for pid in done.stdout.split():
        eventually(lambda pid=pid: assert_gone(pid))
    assert done.stderr == ""


def assert_gone(pid):
    assert not os.path.exists(f"/proc/{pid}") or "(zombie)" in Path(f"/proc/{pid}/status").read_text()


def test_a_pool_that_is_terminated_right_after_a_loss_ends():
    for _ in range(20):
        pool = shmring.multiprocessing.get_context("fork").Pool(2)
        pool.imap(run_or_end, [KILLED] * 5)
        pool.terminate()
        pool.join()


def test_results_do_not_wake_the_thread_that_looks_after_the_workers(monkeypatch):
    looks = []
    look = shmring.multiprocessing.pool.Pool._maintain_pool
    monkeypatch.setattr(shmring.multiprocessing.pool.Pool, "_maintain_pool", lambda *args: looks.append(look(*args)))
    with shmring.multiprocessing.get_context("fork").Pool(2) as pool:
        assert [pool.apply(abs, (i,)) for i in range(200)] == list(range(200))
        assert pool.map(abs, range(200)) == list(range(200))
        assert len(looks) < 20
        waits = pool.map_async(time.sleep, [0.1] * 4, 1)
        pool.close()
        pool.join()
        assert waits.get() == [None] * 4


def test_apply_whose_arguments_do_not_pickle_raises_and_leaves_no_call():
    with shmring.multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(Exception, match="pickle"):
            pool.apply(abs, (lambda: None,))
        assert pool.apply(abs, (-1,)) == 1
        assert not pool._cache
        pool.close()
        with pytest.raises(ValueError, match="not running"):
            pool.apply(abs, (-1,))
        pool.join()
