"""Large arguments of processes that are spawned, or forked by a server: blocks, which arrive as arrays of their own."""

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from support import harness

import shmring.multiprocessing
from shmring.core.blocks import pages
from shmring.multiprocessing import processes

NBYTES = 32 << 20
METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])
pytestmark = pytest.mark.leaks  # multiprocessing keeps its fork server


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield

    @harness.eventually
    def _():  # the thread that gives back has taken the last one out of `_kept` before it lets it go
        assert not pages._kept
        pages.give_back()
        assert not list(processes._recent)
        assert pages.TARGET not in harness.open_files().values()


def started(context, target, *arguments, kind=None):
    process = (kind or context.Process)(target=target, args=arguments)
    process.start()
    return process


def private_nbytes():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10


def memory_of(array):
    """The file that the elements of an array are mapped from: device and inode."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, _, _, device, inode, *_ = line.split()
        first, last = (int(end, 16) for end in extent.split("-"))
        if first <= array.ctypes.data < last:
            return device, inode
    raise AssertionError("not mapped")


def report_nested(box, results):
    array, same, view = box["arrays"]
    before = private_nbytes()
    total = int(array.sum(dtype=np.int64))
    grown = private_nbytes() - before
    array[:3] = 7  # writable, its own
    results.put((total, grown, array is same, int(view[0]), int(array[1]), box["small"].tolist()))


@pytest.mark.sample(1)
@METHODS
def test_arrays_anywhere_in_the_arguments_are_mapped_and_the_processes_own(method):
    context = shmring.multiprocessing.get_context(method)
    results = context.SimpleQueue()
    array = np.ones(NBYTES, np.uint8)
    fixed = array.copy()
    fixed.flags.writeable = False
    box = {"arrays": [array, array, fixed], "small": np.arange(3)}
    for _ in range(2):
        process = started(context, report_nested, box, results)
        total, grown, is_same, first, changed, small = results.get()
        assert (total, is_same, first, changed, small) == (NBYTES, True, 1, 7, [0, 1, 2])
        assert grown < NBYTES // 2  # no copy of it
        process.join()
        assert process.exitcode == 0
    assert array.all()
    assert array[0] == 1


def report_memory(array, results):
    array[-1] = 3  # the copy of a page: of this process alone
    results.put((memory_of(array), int(array[0]), array.flags.writeable))


@pytest.fixture
def recent_blocks_stay(monkeypatch):
    """However slowly processes start: memory that is freed may be used again, and compare equal."""
    wanted = [True]
    monkeypatch.setattr(processes, "_is_recent", lambda block, until: bool(wanted))
    yield
    wanted.clear()


@pytest.mark.sample(1)
@METHODS
def test_processes_that_are_started_one_after_the_other_get_the_same_memory(method, recent_blocks_stay):
    context = shmring.multiprocessing.get_context(method)
    results = context.SimpleQueue()
    array = np.zeros(NBYTES, np.uint8)
    workers = [started(context, report_memory, array, results) for _ in range(3)]
    found = [results.get() for _ in workers]
    assert len(set(found)) == 1
    assert found[0][1:] == (0, True)
    array[0] = 5  # then it is another one
    workers.append(started(context, report_memory, array, results))
    memory, first, _ = results.get()
    assert first == 5
    assert memory != found[0][0]
    for worker in workers:
        worker.join()


def report_read_only(array, results):
    results.put((array.flags.writeable, array.flags.f_contiguous, array.shape, int(array[2, 3])))
    array[0, 0] = 1


def test_read_only_and_fortran_arrays_arrive_as_from_multiprocessing():
    context = shmring.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    array = np.asfortranarray(np.arange(1 << 20).reshape(1 << 10, 1 << 10))
    array.flags.writeable = False
    process = started(context, report_read_only, array, results)
    assert results.get() == (True, True, (1 << 10, 1 << 10), (2 << 10) + 3)
    process.join()
    assert process.exitcode == 0


class Worker(shmring.multiprocessing.Process):
    def __init__(self, array, results):
        super().__init__(target=self.work, args=(array,))
        self.array, self.results = array, results

    def work(self, array):
        self.results.put((array is self.array, type(self).__name__, self.name))


def test_a_process_that_refers_to_itself_arrives_as_one_object(monkeypatch):
    context = shmring.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    worker = Worker(np.ones(NBYTES, np.uint8), results)
    monkeypatch.setattr(Worker, "_Popen", staticmethod(context.Process._Popen))  # what set_start_method("spawn") does
    worker.start()
    assert results.get() == (True, "Worker", worker.name)
    worker.join()
    assert "_blocks" not in vars(worker)


def memories_of(arrays, results):
    results.put((sum(int(array[-1]) for array in arrays), [memory_of(array)[1] != "0" for array in arrays]))


@pytest.mark.sample(1)
@METHODS
def test_of_very_many_arrays_the_largest_are_blocks(method, monkeypatch):
    monkeypatch.setattr(processes, "MOST_BLOCKS", 3)
    context = shmring.multiprocessing.get_context(method)
    results = context.SimpleQueue()
    arrays = [np.full((1 << 20) + mmap.PAGESIZE * i, i, np.uint8) for i in range(8)]
    process = started(context, memories_of, arrays, results)
    assert results.get() == (sum(range(8)), [False] * 5 + [True] * 3)
    process.join()


def test_what_does_not_pickle_raises_as_in_the_standard_library_and_leaves_nothing():
    context = shmring.multiprocessing.get_context("spawn")
    large = np.ones(NBYTES, np.uint8)
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        started(context, print, large, open(os.devnull))  # noqa: SIM115 it is closed with the test


def first_of(array):
    return int(array[0])


def keep_array(array):
    global kept
    kept = array


def first_of_kept(_):
    return int(kept[0])


def test_arrays_for_the_initializer_of_a_pool_are_blocks():
    array = np.full(NBYTES, 4, np.uint8)
    with shmring.multiprocessing.get_context("spawn").Pool(2, keep_array, (array,)) as pool:
        assert pool.map(first_of_kept, range(4)) == [4] * 4

        @harness.eventually
        def _():  # one worker may have done all before the other one has begun
            assert all(pages.TARGET in targets_of(process) for process in pool._pool)

        pool.close()
        pool.join()


def targets_of(process):
    """The files that a process has mapped."""
    for entry in Path(f"/proc/{process.pid}/map_files").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(entry)
