"""`shmring.multiprocessing.shared_memory`: the standard library's interface, and what ends with its holders."""

import contextlib
import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
from support import harness
from support.children import in_child, kill, status_of
from support.harness import eventually
from support.programs import run_python

import shmring
import shmring.multiprocessing
from shmring.multiprocessing import shared_memory
from shmring.multiprocessing.shared_memory import ShareableList, SharedMemory

METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.leaks)]  # the server lives on
MEMORY = "memfd:shmring-memory:"


def assert_holds(count, pid="self"):
    """A process has so many descriptors of such memory."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    assert sum(MEMORY in path for path in found) == count


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = harness.shared_names()
    yield
    assert harness.shared_names() == before
    eventually(lambda: assert_holds(0))


def double_all(name, size):
    memory = SharedMemory(name)
    assert memory.size == size
    array = np.ndarray(size, np.uint8, memory.buf)
    array *= 2
    del array
    memory.close()


@pytest.mark.parametrize("method", METHODS)
def test_processes_share_memory_by_its_name(method):
    memory = SharedMemory(create=True, size=1000)
    memory.buf[:] = bytes(range(100)) * 10
    process = shmring.multiprocessing.get_context(method).Process(target=double_all, args=(memory.name, 1000))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert bytes(memory.buf) == bytes(2 * number for number in range(100)) * 10
    memory.close()
    memory.unlink()


def test_it_pickles_as_its_name_and_has_the_interface_of_the_standard_one():
    memory = SharedMemory("a name", create=True, size=10)
    assert isinstance(memory, multiprocessing.shared_memory.SharedMemory)
    assert (memory.name, memory.size, memory.buf.nbytes) == ("a name", 10, 10)
    assert repr(memory) == "SharedMemory('a name', size=10)"
    there, here = shmring.multiprocessing.Pipe()
    there.send(memory)
    other = here.recv()
    other.buf[3] = 7
    assert memory.buf[3] == 7
    with pytest.raises(FileExistsError):
        SharedMemory("a name", create=True, size=1)
    other.close()
    assert other.buf is None
    other.close()
    other.unlink()
    memory.buf[3] = 8  # lives on
    with pytest.raises(FileNotFoundError):
        SharedMemory("a name")
    with pytest.raises(FileNotFoundError):
        memory.unlink()
    again = SharedMemory("a name", create=True, size=5)
    assert (bytes(again.buf), memory.buf[3]) == (bytes(5), 8)
    for one in (again, memory):
        one.close()
    again.unlink()
    there.close()
    here.close()


@pytest.mark.parametrize("arguments", [{"size": 10}, {"create": True}, {"create": True, "size": -1}, {"name": ""}])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=r"size=|name="):
        SharedMemory(**arguments)


def test_arrays_of_closed_memory_stay_valid():
    """With the standard library `close` raises, or a use of one is a segmentation fault."""
    memory = SharedMemory(create=True, size=1 << 20)
    array, other = np.ndarray(1 << 20, np.uint8, memory.buf), np.frombuffer(memory.buf, np.uint8)
    view = memory.buf[:1]
    memory.close()
    memory.unlink()
    other[0] = 1
    array += 1
    assert view[0] == 2
    assert array[:2].tolist() == [2, 1]


def made_in_worker(_):
    memory = SharedMemory(create=True, size=1000)
    memory.buf[:] = b"x" * 1000
    memory.close()
    return memory.name, os.getpid()


def test_a_worker_makes_memory_closes_it_and_returns_its_name():
    with shmring.multiprocessing.get_context("fork").Pool(1) as pool:
        for _ in range(3):
            name, pid = pool.apply(made_in_worker, (0,))
            memory = SharedMemory(name)
            assert bytes(memory.buf) == b"x" * 1000
            memory.close()
            assert_holds(1, pid)
            memory.unlink()
            eventually(partial(assert_holds, 0, pid))  # the worker does nothing


def test_memory_of_a_killed_maker_ends_unless_another_process_holds_it():
    names = shmring.Queue()

    def maker():
        memories = [SharedMemory(create=True, size=10) for _ in range(2)]
        memories[1].buf[0] = 5
        for memory in memories:
            names.put(memory.name)
        signal.pause()

    pid = in_child(maker)
    lost, kept = names.get(), names.get()
    mine = SharedMemory(kept)
    kill(pid)
    with pytest.raises(FileNotFoundError):
        SharedMemory(lost)
    late = SharedMemory(kept)
    assert late.buf[0] == 5
    late.close()
    mine.close()
    with pytest.raises(FileNotFoundError):
        SharedMemory(kept)


def test_of_many_processes_one_makes_memory_of_a_name():
    made = shmring.Queue()
    go, told = os.pipe()

    def race():
        os.read(go, 1)
        try:
            memory = SharedMemory("raced", create=True, size=8)
        except FileExistsError:
            made.put(0)
        else:
            made.put(memory.size)
        signal.pause()

    for _ in range(5):
        pids = [in_child(race) for _ in range(6)]
        os.write(told, b"x" * 6)
        assert sorted(made.get() for _ in pids) == [0] * 5 + [8]
        for pid in pids:
            kill(pid)
    os.close(go)
    os.close(told)


def test_a_forked_child_lets_go_of_what_its_parent_has_closed():
    memory = SharedMemory(create=True, size=10)
    memory.close()
    assert_holds(1)
    assert status_of(in_child(assert_holds, 0)) == 0
    memory.unlink()


def test_no_resource_tracker_is_started():
    program = (
        "from multiprocessing import resource_tracker\n"
        "from shmring.multiprocessing import shared_memory\n"
        "memory = shared_memory.SharedMemory(create=True, size=100)\n"
        "print(resource_tracker._resource_tracker._pid)"
    )
    assert run_python("-c", program) == "None\n"


def change(items):
    items[1] = "changed"
    items.shm.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", METHODS)
def test_lists(method):
    items = ShareableList([1, "a text", 2.5, None, b"bytes", True])
    assert isinstance(items.shm, SharedMemory)
    process = shmring.multiprocessing.get_context(method).Process(target=change, args=(items,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(items) == [1, "changed", 2.5, None, b"bytes", True]
    items.shm.close()
    items.shm.unlink()


def test_the_module_is_found_by_either_import():
    assert shmring.multiprocessing.shared_memory is shared_memory
