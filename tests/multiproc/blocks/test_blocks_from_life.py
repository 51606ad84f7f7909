"""What happened to programs that hand arrays on through named shared memory, and what blocks do in its place.

Each test is one of the reports that `shared/reference/field-2026.md`, section 4.1, has collected.
"""

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from support import harness
from support.children import in_child, kill, status_of
from support.programs import run_python

import shmring

NBYTES = 256 << 20  # more than what other programs of the machine allocate meanwhile


def shared_nbytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Shmem:"))


def becomes_free(before):
    """Whether shared memory falls to what it was, but for less than half a block."""
    deadline = time.monotonic() + 60
    while shared_nbytes() > before + NBYTES // 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return shared_nbytes() <= before + NBYTES // 2


def crash():
    """A process that holds eight blocks and has put them into a queue is killed; nobody takes them."""
    queue, ready = shmring.Queue(), shmring.Queue()

    def scheduler():
        held = [shmring.Block(np.ones(NBYTES // 8, np.uint8)) for _ in range(8)]
        for block in held:
            queue.put(block)
        ready.put(True)
        signal.pause()

    pid = in_child(scheduler)
    ready.get()
    kill(pid)


def test_a_scheduler_that_crashes_again_and_again_leaves_no_segments():
    """Hundreds of segments and gigabytes were left in minutes, until the pod was deleted."""
    before, names = shared_nbytes(), harness.shared_names()
    for _ in range(5):
        crash()
        assert harness.shared_names() == names
    assert becomes_free(before)


def test_no_sweep_by_pid_is_needed_and_no_wipe_of_dev_shm_before_the_start():
    """Leaked segments ended in SIGBUS; sweeps went by pid, and operators wiped /dev/shm."""
    program = (
        "import numpy as np, os, shmring, signal\n"
        "block = shmring.Block(np.ones(1 << 20))\n"
        "print(open('/proc/self/maps').read().count('/dev/shm'), flush=True)\n"
        "print(os.path.exists(os.readlink(f'/proc/self/fd/{block._pages.file.fd}')), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_python("-c", program, status=-signal.SIGKILL).split() == ["0", "False"]


def test_the_first_reader_takes_nothing_from_the_second():
    """The first reader unlinked what the second one was to open."""
    block = shmring.Block(np.arange(1000))
    handle = pickle.dumps(block)

    def reader():
        with pickle.loads(handle) as first:
            assert first.array.sum() == 499_500
        assert pickle.loads(pickle.dumps(pickle.loads(handle))).array.sum() == 499_500

    assert [status_of(in_child(reader)) for _ in range(3)] == [0, 0, 0]
    assert block.array.sum() == 499_500


def test_a_process_that_opened_it_and_exits_does_not_unlink_it_for_others():
    """The resource tracker of the first process to exit unlinked what other ranks had not opened yet."""
    block = shmring.Block(np.arange(1000))
    program = f"import pickle; print(pickle.loads({pickle.dumps(block)!r}).array.sum())"
    assert [run_python("-c", program) for _ in range(2)] == ["499500\n"] * 2


def test_a_large_region_is_free_after_each_hard_exit():
    """Each hard exit leaked the whole region, until the machine had no memory for the next start."""
    before = shared_nbytes()
    for ending in (signal.SIGKILL, signal.SIGTERM, None):

        def engine(ending=ending):
            region = shmring.Block.empty(NBYTES, np.uint8)
            region.array[:] = 1
            if ending is None:
                os._exit(3)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), ending)
            signal.pause()

        assert status_of(in_child(engine)) == (3 if ending is None else -ending)
        assert becomes_free(before)


def test_a_late_joiner_gets_the_same_memory_and_never_zeros():
    """A late joiner made a second file, and zeros were written to the second level."""
    queue = shmring.Queue()

    def early():
        block = queue.get()
        time.sleep(0.1)
        queue.put(block)  # hands on what the maker no longer has

    block = shmring.Block(np.full(1000, 7))
    queue.put(block)
    del block
    assert status_of(in_child(early)) == 0
    np.testing.assert_array_equal(queue.get().array, np.full(1000, 7))


def test_a_joiner_that_comes_too_late_is_told_so():
    handle = None
    with shmring.Block(np.full(1000, 7)) as block:
        handle = pickle.dumps(block)
    with pytest.raises(shmring.BlockLostError, match=f"process {os.getpid()}"):
        pickle.loads(handle)


def test_a_cache_is_gone_with_its_process_and_readers_keep_what_they_have():
    """A cache of a gigabyte stayed on the host after SIGKILL, so the product turned it off."""
    before = shared_nbytes()
    queue, ready = shmring.Queue(), shmring.Queue()

    def cache():
        entries = [shmring.Block(np.full(NBYTES // 8, i, np.uint8)) for i in range(8)]
        queue.put(entries[3])
        ready.put(True)
        signal.pause()

    pid = in_child(cache)
    ready.get()
    mine = queue.get()
    kill(pid)
    assert becomes_free(before)
    assert (mine.array == 3).all()


@pytest.mark.sample(1)
@pytest.mark.leaks  # multiprocessing keeps its fork server
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_large_arguments_are_not_pickled_under_any_start_method(method):
    """Since Python 3.14 what fork had shared is pickled."""
    context = multiprocessing.get_context(method)
    block = shmring.Block(np.ones(NBYTES, np.uint8))
    results = context.SimpleQueue()
    workers = [context.Process(target=total, args=(block, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in workers:
        found, more_nbytes = results.get()
        assert found == NBYTES
        assert more_nbytes < NBYTES // 2  # no copy of it
    for worker in workers:
        worker.join()


def total(block, results):
    before = private_nbytes()
    found = int(block.array.sum(dtype=np.int64))
    results.put((found, private_nbytes() - before))


def private_nbytes():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10
