"""Blocks in one process: what they hold, what they refuse, and what the kernel keeps of them."""

import errno
import gc
import os
import pickle
import resource
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.interrupts import interrupt_at_line
from support.limits import limited

import shmring
from shmring.core.blocks import in_flight
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.crate import Crate
from shmring.core.blocks.in_flight import TAIL_NBYTES, Arrival
from shmring.core.memory import syscalls
from shmring.core.objects.codec import dump
from shmring.errors import BlockLostError, ClosedError, OutOfSharedMemoryError, SegmentError

STRUCTURED = np.dtype([("x", "<f4"), ("name", "S5"), ("at", "<M8[ns]", (2,))])

ARRAYS = {
    "floats": np.arange(12.0).reshape(3, 4),
    "one value": np.array(7, np.int16),
    "nothing": np.empty((0, 3), np.float32),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "every second": np.arange(10)[::2],
    "records": np.array([(1.5, b"abc", ["2026-01-01", "2026-01-02"])], STRUCTURED),
    "dates": np.array(["2026-11-28"], "M8[D]"),
    "truths": np.array([True, False]),
    "several pages": np.arange(100_000, dtype=np.uint32),
}


@pytest.fixture(autouse=True)
def none_kept():
    """No test is given the file of another one's block."""
    block_pages.give_back()
    yield
    gc.collect()
    block_pages.give_back()


@pytest.mark.parametrize("name", ARRAYS)
def test_a_block_has_the_array_that_it_was_made_of_here_and_after_pickling(name):
    array = ARRAYS[name]
    with shmring.Block(array) as block, pickle.loads(pickle.dumps(block)) as taken:
        for one in (block, taken):
            assert one.dtype == array.dtype
            assert one.shape == array.shape
            assert one.nbytes == array.nbytes
            np.testing.assert_array_equal(one.array, array)
            assert not one.array.flags.writeable
            assert not one.closed
            assert bytes(one) == array.tobytes()


def test_bytes_are_an_array_of_bytes():
    for data in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert shmring.Block(data).array.tolist() == [97, 98, 99]


def test_the_handle_is_short_for_any_size_and_any_dtype():
    wide = np.dtype([(f"a field with a long name {i}", "f8") for i in range(50)])
    for array in (*ARRAYS.values(), np.zeros(3, wide), np.zeros(1 << 24, np.uint8)):
        assert len(pickle.dumps(shmring.Block(array), 2)) < 256


def test_a_read_only_array_stays_read_only():
    array = shmring.Block(np.arange(3)).array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True


def test_copies_on_write_are_private():
    block = shmring.Block(np.zeros(5000))
    one, other = block.array_copy_on_write(), block.array_copy_on_write()
    one[:] = 1
    other[0] = 2
    assert one.sum() == 5000
    assert other.sum() == 2
    assert block.array.sum() == 0


def test_arrays_outlive_the_block_and_keep_its_memory():
    block = shmring.Block(np.arange(100_000))
    array, part, copy = block.array, block.array[10:20], block.array_copy_on_write()
    block.close()
    block.close()
    assert block.closed
    del array
    shmring.Block(np.zeros(100_000, int))  # would get the memory if it was free
    assert part.tolist() == list(range(10, 20))
    assert copy[-1] == 99_999


def test_a_closed_block_refuses():
    block = shmring.Block(np.arange(3))
    with block:
        pass
    for use in (
        lambda: block.array,
        block.array_copy_on_write,
        lambda: pickle.dumps(block),
        block.seal,
        block.__enter__,
    ):
        with pytest.raises(ClosedError, match="this block is closed"):
            use()
    assert repr(block) == "<shmring.Block of int64 (3,), 24 B, closed>"


def test_a_block_is_filled_in_place_and_sealed():
    block = shmring.Block.empty((2, 3), "f4")
    assert repr(block) == "<shmring.Block of float32 (2, 3), 24 B, being filled>"
    with pytest.raises(ValueError, match="call seal"):
        pickle.dumps(block)
    array = block.array
    array[...] = 5
    row = array[1]
    del array
    with pytest.raises(BufferError, match="1 arrays or views"):
        block.seal()
    with pytest.raises(BufferError):
        block.close()
    row[:] = 6
    del row
    assert block.seal() is block
    assert pickle.loads(pickle.dumps(block)).array.tolist() == [[5] * 3, [6] * 3]
    with pytest.raises(ValueError, match="read-only"):
        block.array[0] = 1


def test_the_kernel_refuses_to_write_or_resize_a_sealed_block():
    block = shmring.Block(np.arange(1000))
    path = f"/proc/self/fd/{block._pages.file.fd}"
    file = os.open(path, os.O_RDWR)
    try:
        for change in (
            lambda: os.write(file, b"x"),
            lambda: os.ftruncate(file, 10),
            lambda: os.ftruncate(file, 1 << 20),
        ):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (np.array([object()]), TypeError),
        ([1, "a", None, {}], TypeError),
        (np.array(["a"], np.dtypes.StringDType()) if hasattr(np.dtypes, "StringDType") else np.array([{}]), TypeError),
    ],
)
def test_what_is_no_plain_data_is_refused(data, error):
    with pytest.raises(error):
        shmring.Block(data)


def test_empty_refuses_what_no_array_has():
    with pytest.raises(ValueError, match="negative"):
        shmring.Block.empty((2, -1))
    with pytest.raises(TypeError):
        shmring.Block.empty(3, object)


def test_a_block_that_was_let_go_is_lost_to_its_handles():
    block = shmring.Block(np.arange(3))
    handle = pickle.dumps(block)
    block.close()
    with pytest.raises(
        BlockLostError, match=f"a block of 24 B is lost: process {os.getpid()}.*had let it go"
    ) as caught:
        pickle.loads(handle)
    assert caught.value.pid == os.getpid()
    again = shmring.Block(np.arange(3, 6))  # the same file, perhaps under the same descriptor
    with pytest.raises(BlockLostError):
        pickle.loads(handle)
    assert pickle.loads(pickle.dumps(again)).array.tolist() == [3, 4, 5]


def test_an_error_pickles():
    error = pickle.loads(pickle.dumps(BlockLostError("text", 5)))
    assert (str(error), error.pid) == ("text", 5)


def test_too_little_memory_is_said_before_anything_is_made(monkeypatch):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OutOfSharedMemoryError, match=r"no memory for a block of.*/dev/shm does not") as caught:
        shmring.Block.empty(1 << 50, np.uint8)
    assert caught.value.needed > 1 << 50
    assert 0 < caught.value.available < 1 << 50
    monkeypatch.setattr(block_pages, "memory_room", lambda: 5 << 20)
    with pytest.raises(OutOfSharedMemoryError) as caught:
        shmring.Block(np.zeros(6 << 20, np.uint8))
    assert caught.value.available == 5 << 20
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", ["memfd_create", "posix_fallocate", "mmap"])
def test_a_refusal_of_the_kernel_leaves_nothing(name, monkeypatch):
    def refuse(made):
        if made == name:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    shmring.Block(b"x").close()
    block_pages.give_back()
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(syscalls, "fault", refuse)
    with pytest.raises((OutOfSharedMemoryError, SegmentError, OSError), match="memory") as caught:
        shmring.Block(np.zeros(100_000))
    assert getattr(caught.value, "errno", errno.ENOMEM) == errno.ENOMEM
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def long_kept(monkeypatch):
    """Freed files are kept however slowly the test runs."""
    monkeypatch.setattr(block_pages, "KEPT_S", 3600.0)


def test_a_freed_file_is_used_again_only_when_nobody_has_it(long_kept):
    def inode(block):
        return os.fstat(block._pages.file.fd).st_ino

    block = shmring.Block(np.arange(50_000))
    first, taken = inode(block), pickle.loads(pickle.dumps(block))
    block.close()
    other = shmring.Block(np.zeros(50_000, int))
    assert inode(other) != first
    assert taken.array[-1] == 49_999
    again = pickle.loads(pickle.dumps(taken))
    taken.close()
    assert inode(shmring.Block(np.zeros(50_000, int))) != first
    assert again.array[-1] == 49_999
    again.close()
    assert inode(shmring.Block(np.arange(1, 50_001))) == first


def test_freed_files_are_given_back_when_idle():
    shmring.Block(np.zeros(1 << 20, np.uint8)).close()
    assert len(block_pages._freed) == 1
    deadline = time.monotonic() + 60
    while block_pages._freed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not block_pages._freed


def test_freed_files_are_bounded(long_kept):
    blocks = [shmring.Block(np.zeros(5000 + 5000 * i, np.uint8)) for i in range(3 * block_pages.KEPT_FILES)]
    del blocks
    assert len(block_pages._freed) == block_pages.KEPT_FILES


@pytest.mark.parametrize(("nbytes", "rounds"), [(1 << 20, 2000), (64 << 20, 20)])
def test_a_loop_of_blocks_has_no_page_faults(nbytes, rounds, long_kept):
    array = np.ones(nbytes, np.uint8)
    for _ in range(3):
        shmring.Block(array).close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        shmring.Block(array).close()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 500  # without kept files 512,000 and 327,680


def test_a_thousand_blocks_raise_the_soft_limit_and_then_are_an_error():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 3000:
        pytest.skip("this process may not have so many files open")
    with limited(resource.RLIMIT_NOFILE, 200):
        blocks = [shmring.Block(np.array([i])) for i in range(1000)]
        assert [block.array[0] for block in blocks] == list(range(1000))
        del blocks
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            blocks = []
            with pytest.raises(SegmentError, match="close blocks, or raise the limit"):
                while True:
                    blocks.append(shmring.Block(np.array([1])))
            del blocks[-10:]
            assert shmring.Block(np.array([5])).array[0] == 5
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_of_an_item_whose_blocks_another_process_has_taken_no_block_arrives():
    crate = Crate()
    block = shmring.Block(np.arange(3))
    departure = SimpleNamespace(blocks=[block._pages], tail=bytearray(TAIL_NBYTES))
    assert crate.put(departure, -1)
    tail = bytes(departure.tail)
    first, second = crate.take(tail), crate.take(tail)
    crate.close()
    assert (len(first.files), first.reason, first.sender) == (1, "", os.getpid())
    assert (second.files, second.reason) == ([], "the process that had taken it has ended")
    first.files[0].close()


def test_a_file_that_is_no_block_is_refused():
    from shmring.core.memory.descriptor import Descriptor

    plain = os.memfd_create("plain")
    os.ftruncate(plain, 1 << 16)
    with pytest.raises(SegmentError, match="is not the file of a block"):
        block_pages.adopt(Descriptor(int, plain), 1, 100)
    block = shmring.Block(np.arange(3))
    with pytest.raises(SegmentError, match="is not the file of a block"):
        block_pages.adopt(Descriptor(os.dup, block._pages.file.fd), block._pages.number, 1 << 40)


def test_others_read_it_by_dlpack_and_by_the_array_protocol():
    block = shmring.Block(np.arange(4.0))
    np.testing.assert_array_equal(np.asarray(block), np.arange(4.0))
    exported = np.from_dlpack(block)
    np.testing.assert_array_equal(exported, np.arange(4.0))
    assert np.add(block, 1).tolist() == [1, 2, 3, 4]
    assert len(block) == 4
    with pytest.raises(TypeError, match="no length"):
        len(shmring.Block(np.float64(3)))


@pytest.mark.torch
def test_tensors_come_and_go_in_place():
    torch = pytest.importorskip("torch")
    kinds = ["float32", "int64", "bool", "complex64"]
    try:
        import ml_dtypes  # noqa: F401

        kinds.append("bfloat16")
    except ImportError:
        pass
    for name in kinds:
        x = torch.ones(3, 4).to(getattr(torch, name))
        block = shmring.Block(x)
        y = pickle.loads(pickle.dumps(block)).tensor()
        assert y.dtype == x.dtype
        assert torch.equal(x, y)
        y[0] = 0
        assert torch.equal(block.tensor(), x)
    assert torch.equal(torch.from_dlpack(shmring.Block(torch.arange(3))), torch.arange(3))


def test_freed_files_are_given_back_though_a_thread_for_it_has_ended_early(monkeypatch):
    shmring.Block(np.ones(10)).close()
    eventually_given_back()
    with monkeypatch.context() as patched:
        patched.setattr(block_pages, "start_new_thread", lambda function, args: None)  # as one that ends at once
        shmring.Block(np.ones(10)).close()
    assert block_pages._freed
    time.sleep(block_pages.SILENT_S)
    shmring.Block(np.ones(10)).close()
    eventually_given_back()


def eventually_given_back():
    while block_pages._freed:
        time.sleep(0.01)


@pytest.mark.parametrize("carries_blocks", [True, False])
def test_an_interrupt_of_pickling_leaves_no_blocks_to_what_is_pickled_next(carries_blocks):
    """At every line, also of the calls that begin and end it: later blocks stayed in memory for ever."""
    block, line = shmring.Block(np.arange(3)), 0
    while interrupt_at_line(lambda: dump([block], refusal=None, carries_blocks=carries_blocks), line := line + 1):
        assert pickle.loads(pickle.dumps(block)).nbytes == block.nbytes
        assert in_flight.departing() is None
    assert line > 20


def test_an_arrival_that_was_not_ended_ends_with_the_call_that_has_it():
    """An interrupt came before the end."""
    arrival = Arrival([], "gone", 1)
    in_flight.begin(arrival)
    assert in_flight.arriving() is arrival
    del arrival
    assert in_flight.arriving() is None
