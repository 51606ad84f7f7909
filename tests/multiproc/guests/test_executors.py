"""`shmring.multiprocessing.ProcessPoolExecutor`: calls and results through rings, and workers that are killed."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pickle import PicklingError

import numpy as np
import pytest
from support.children import killed_at_random
from support.harness import eventually
from support.programs import run_program
from support.threads import at_once

import shmring.multiprocessing
from shmring.errors import WorkerLostError
from shmring.multiprocessing.executor import ExecutorWorkerLostError

METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.leaks)]  # the server lives on
KILLED, EXITED = 3, 5


@pytest.fixture(params=METHODS)
def context(request):
    return shmring.multiprocessing.get_context(request.param)


def fork_executor(nworkers=2, **options):
    return shmring.multiprocessing.ProcessPoolExecutor(nworkers, shmring.multiprocessing.get_context("fork"), **options)


def run_or_end(x):
    if x == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if x == EXITED:
        os._exit(4)
    return x


@pytest.mark.sample(1)
def test_a_lost_worker_fails_the_futures_that_it_ran_and_no_others(context):
    with shmring.multiprocessing.ProcessPoolExecutor(2, context) as executor:
        futures = [executor.submit(run_or_end, x) for x in range(10)]
        for x, future in enumerate(futures):
            if x in (KILLED, EXITED):
                with pytest.raises(
                    WorkerLostError, match=r"a call of run_or_end, (was killed by signal 9|exited with status 4)"
                ):
                    future.result()
                assert isinstance(future.exception(), BrokenProcessPool)
                assert future.exception().status == {KILLED: -signal.SIGKILL, EXITED: 4}[x]
                assert future.exception().task == "run_or_end"
            else:
                assert future.result() == x
        assert executor.submit(pow, 2, 5).result() == 32


def test_a_chunk_of_map_that_is_lost_names_the_function_of_the_program():
    with fork_executor() as executor:
        with pytest.raises(ExecutorWorkerLostError) as caught:
            list(executor.map(run_or_end, range(8), chunksize=4))
        assert caught.value.task == "run_or_end"
        assert list(executor.map(abs, range(-9, 0), chunksize=4)) == list(range(9, 0, -1))


def count_runs(path, x):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"{x}\n".encode())
    os.close(fd)
    return x


def test_whenever_workers_are_killed_each_future_has_one_outcome_and_no_call_runs_twice(tmp_path, seed):
    path, ncalls = tmp_path / "runs", 200
    path.touch()
    with fork_executor(3) as executor:
        with killed_at_random(lambda: list(executor._processes), seed):
            futures = [executor.submit(count_runs, path, x) for x in range(ncalls)]
            concurrent.futures.wait(futures)
        returned = [x for x, future in enumerate(futures) if future.exception() is None]
        assert all(futures[x].result() == x for x in returned)
        assert all(isinstance(one.exception(), ExecutorWorkerLostError) for one in futures if one.exception())
        runs = [int(line) for line in path.read_text().split()]
        assert len(set(runs)) == len(runs), "a call ran twice"
        assert set(runs) >= set(returned)
        assert list(executor.map(abs, range(9))) == list(range(9))


def test_arguments_and_results_are_arrays_that_can_be_written():
    x = np.arange(1 << 20, dtype=np.float64)
    with fork_executor() as executor:
        found = executor.submit(np.negative, x).result()
        np.testing.assert_array_equal(found, -x)
        assert found.flags.writeable
        assert sum(part.sum() for part in executor.map(np.square, [x, x])) == 2 * np.square(x).sum()


class FailsToPickle:
    def __reduce__(self):
        raise PicklingError("not this one")


class FailsToUnpickle:
    def __reduce__(self):
        return fail_to_unpickle, ()


def fail_to_unpickle():
    raise LookupError("cannot be unpickled")


class ExitsWhereUnpickled:
    def __reduce__(self):
        return sys.exit, (7,)


def make(kind):
    return kind()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (PicklingError, (id, FailsToPickle())),
        (LookupError, (id, FailsToUnpickle())),
        (ExecutorWorkerLostError, (id, ExitsWhereUnpickled())),
        (PicklingError, (make, FailsToPickle)),
        (LookupError, (make, FailsToUnpickle)),
        (SystemExit, (make, ExitsWhereUnpickled)),
        (SystemExit, (sys.exit, 3)),
        (PicklingError, (lambda: 1,)),
    ],
)
def test_what_cannot_be_sent_fails_its_own_future(error, call):
    with fork_executor() as executor:
        with pytest.raises(error):
            executor.submit(*call).result()
        assert list(executor.map(abs, range(9))) == list(range(9))


def fail_to_start(*_):
    raise LookupError("this initializer fails")


@pytest.mark.sample(2)
@pytest.mark.parametrize("initializer", [fail_to_start, os._exit])
def test_an_initializer_that_always_fails_breaks_the_executor(context, initializer):
    executor = shmring.multiprocessing.ProcessPoolExecutor(2, context, initializer, (3,))
    with executor, pytest.raises(BrokenProcessPool, match=r"before they took a task.*initializer"):
        for future in [executor.submit(abs, x) for x in range(9)]:
            future.result()
    with pytest.raises(BrokenProcessPool, match="initializer"):
        executor.submit(abs, 1)


started = 0


def start(x):
    global started
    started = x


def get_started(_):
    return started


@pytest.mark.sample(1)
def test_the_initializer_runs_in_each_worker(context):
    with shmring.multiprocessing.ProcessPoolExecutor(2, context, start, (5,)) as executor:
        assert list(executor.map(get_started, range(9))) == [5] * 9


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_start_as_calls_need_them_and_are_replaced_after_their_calls(method):
    context = shmring.multiprocessing.get_context(method)
    with shmring.multiprocessing.ProcessPoolExecutor(8, context, max_tasks_per_child=2) as executor:
        pids = [executor.submit(os.getpid).result() for _ in range(6)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 2]


def test_calls_that_are_pending_are_cancelled():
    executor = fork_executor(1)
    held = [executor.submit(time.sleep, 0.3) for _ in range(2)]  # one runs, one is in the pool
    pending = [executor.submit(time.sleep, 60) for _ in range(9)]
    assert pending[0].cancel()
    assert not held[0].cancel()
    executor.shutdown(cancel_futures=True)
    assert concurrent.futures.wait(pending, timeout=0).not_done == set()
    assert all(future.cancelled() for future in pending)
    assert [future.result() for future in held] == [None, None]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)


def test_shutdown_that_does_not_wait_completes_all_futures():
    executor = fork_executor()
    futures = [executor.submit(abs, x) for x in range(50)]
    workers = list(executor._processes.values())
    executor.shutdown(wait=False)
    assert [future.result() for future in futures] == list(range(50))
    for worker in workers:
        worker.join()
    executor.shutdown()


def test_an_executor_that_is_dropped_completes_its_futures_and_ends_its_workers():
    executor = fork_executor()
    results = executor.map(abs, range(50))
    workers = list(executor._processes.values())
    del executor
    assert list(results) == list(range(50))
    eventually(lambda: assert_ended(workers))


def assert_ended(workers):
    assert not any(worker.is_alive() for worker in workers)


def test_workers_can_have_processes_of_their_own():
    with fork_executor(1) as executor:
        assert executor.submit(in_a_process_of_its_own).result() == 0


def in_a_process_of_its_own():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.exitcode


def test_event_loops_and_threads_use_one_executor():
    async def several(executor):
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(executor, pow, 2, x) for x in range(20)))

    with fork_executor() as executor:
        assert asyncio.run(several(executor)) == [2**x for x in range(20)]
        found = at_once(*[lambda k=k: [executor.submit(pow, k, x).result() for x in range(30)] for k in range(4)])
        assert found == [[k**x for x in range(30)] for k in range(4)]


def test_a_context_of_the_standard_library_is_taken():
    with shmring.multiprocessing.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
        assert executor.submit(np.ones, 3).result().tolist() == [1, 1, 1]
    assert issubclass(shmring.multiprocessing.ProcessPoolExecutor, concurrent.futures.ProcessPoolExecutor)


@pytest.mark.parametrize(
    ("error", "arguments", "options"),
    [
        (ValueError, (0,), {}),
        (TypeError, (1, None, "no function"), {}),
        (TypeError, (1,), {"max_tasks_per_child": 1.5}),
        (ValueError, (1,), {"max_tasks_per_child": 0}),
        (ValueError, (1, multiprocessing.get_context("fork")), {"max_tasks_per_child": 2}),
    ],
)
def test_wrong_parameters_are_refused(error, arguments, options):
    with pytest.raises(error):
        shmring.multiprocessing.ProcessPoolExecutor(*arguments, **options)
    with pytest.raises(ValueError, match="chunksize"):
        fork_executor().map(abs, [1], chunksize=0)


def test_a_forked_process_is_told_to_make_an_executor_of_its_own():
    with fork_executor(1) as executor:
        executor.submit(abs, 1).result()
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                executor.submit(abs, 1)
            except RuntimeError as error:
                os.write(writer, str(error).encode())
            executor.shutdown()
            os._exit(0)
        os.waitpid(pid, 0)
        assert (
            os.read(reader, 1000).decode()
            == f"this executor belongs to process {os.getpid()}: make one in each process"
        )
        os.close(reader)
        os.close(writer)
        assert executor.submit(abs, -2).result() == 2


AT_EXIT = """
import atexit, sys, time
import shmring.multiprocessing

def work(x):
    time.sleep(0.2)
    print("worked", x, flush=True)

def at_exit():
    try:
        executor.submit(abs, 1)
    except RuntimeError as error:
        print(error)

if __name__ == "__main__":
    atexit.register(at_exit)
    executor = shmring.multiprocessing.ProcessPoolExecutor(1, shmring.multiprocessing.get_context(sys.argv[1]))
    for x in range(4):
        executor.submit(work, x)
    if sys.argv[2] == "shut":
        executor.shutdown(wait=False)
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("end", ["shut", "left"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_interpreter_exits_when_all_futures_are_done(tmp_path, method, end):
    (tmp_path / "leaves.py").write_text(AT_EXIT)
    done = run_program(sys.executable, tmp_path / "leaves.py", method, end)
    assert done.stderr == ""
    *worked, told = done.stdout.splitlines()
    assert worked == [f"worked {x}" for x in range(4)]
    assert told == "cannot schedule new futures after shutdown"
