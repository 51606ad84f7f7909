"""Private arrays that are shared where they lie: the same bits, the same address, and private again afterwards."""

import array
import contextlib
import ctypes
import gc
import mmap
import os
import platform
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.emulation import SANITIZED
from support.harness import RANKS, run_ranks
from support.inputs import same_bits, values
from support.limits import limited
from support.on_ranks import on_ranks
from support.oracle import reduce_model
from support.placement_rows import placement

from shmring.collectives.shared.share import LEAST_NBYTES, Shared
from shmring.errors import AbortedError, MismatchError, OutOfSharedMemoryError, SegmentError

PAGE = mmap.PAGESIZE
GROUPS = [n for n in RANKS if n > 1]
LARGE = 100_003
LIBC = ctypes.CDLL(None, use_errno=True)
MAPPINGS = Path("/proc/sys/vm/max_map_count")


def filled(comm, count=LARGE, dtype=np.float32):
    return values(dtype, count, comm.rank)


def summed(comm, count=LARGE, dtype=np.float32):
    return reduce_model([values(dtype, count, r) for r in range(comm.size)], "sum")


def nzero_copy(comm):
    return comm.stats()["zero_copy_calls"]


def properties_at(address):
    """The line of the mapping that contains an address, and its flags, from /proc/self/smaps."""
    head = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and ":" not in first:
            start, _, end = first.partition("-")
            head = line if int(start, 16) <= address < int(end, 16) else ""
        elif head and first == "VmFlags:":
            return head, line.split()[1:]
    return head, []


def is_shared(x):
    """Whether the page in the middle of an array is mapped from a file in shared memory."""
    return is_shared_at(x.ctypes.data + x.nbytes // 2)


def is_shared_at(address):
    head, _ = properties_at(address)
    return bool(head) and "s" in head.split()[1]


# ---- collectives -----------------------------------------------------------------------------------------------------


@on_ranks(*GROUPS)
def test_views_plans_and_background_calls_take_the_shared_memory(comm):
    x = np.ones((200, 300))
    with comm.share(x):
        before = nzero_copy(comm)
        for view in (x[3:150], x[0], x[-90:], x.reshape(-1)[11:59_000], x[7:9]):
            x[...] = 1
            comm.all_reduce(view)
            assert (view == comm.size).all()
            assert np.count_nonzero(x == 1) == x.size - view.size
        zero_copy = nzero_copy(comm) - before
        for view in (x[:, :50], x.T, x[::-1], x[::2]):  # copied, as such views of any array are
            x[...] = 1
            comm.all_reduce(view)
            assert (view == comm.size).all()
            assert np.count_nonzero(x == 1) == x.size - view.size
        x[...] = 1
        comm.all_reduce(x[comm.rank : comm.rank + 100])  # at another place on each rank
        assert (x[comm.rank : comm.rank + 100] == comm.size).all()
        larger = np.ones(2 * LARGE, np.float32)
        with comm.share(larger[100:-100]):
            comm.all_reduce(larger)  # more than what is shared: staged
            assert (larger == comm.size).all()
        plan = comm.plan("all_reduce", x)
        for _ in range(2):
            x[...] = 1
            plan()
            assert (x == comm.size).all()
            x[...] = 1
            comm.all_reduce(x, async_op=True).wait()
            assert (x == comm.size).all()
    x[...] = 1
    plan()
    assert (x == comm.size).all()
    assert zero_copy in (3, 4, 5)  # one row, of 2400 bytes, may be an eager message, and two rows, too


@pytest.mark.sample(2)
@on_ranks(*GROUPS)
def test_ranks_close_in_any_order_and_other_communicators_stage(comm):
    """Shared on some ranks, private or closed on the others, in turns: every call is right."""
    x = filled(comm)
    expected = summed(comm)
    shared = comm.share(x)
    comm.all_reduce(x)
    assert same_bits(x, expected)
    assert nzero_copy(comm) == 1
    for closes in range(comm.size):
        x[:] = filled(comm)
        if comm.rank == closes:
            shared.close()
            assert not is_shared(x)
        comm.all_reduce(x)
        assert same_bits(x, expected)
    assert nzero_copy(comm) == 1
    x[:] = filled(comm)
    with comm.share(x), comm.dup() as other:
        other.all_reduce(x)  # knows nothing of it
        assert same_bits(x, expected)
        assert nzero_copy(other) == 0
        result = comm.shared_result(LARGE, np.float32)
        x[:] = filled(comm)
        comm.all_reduce(x, result)
        comm.barrier()
        assert same_bits(result, expected)
        with pytest.raises(ValueError, match="does not lie in a shared array"):
            comm.shared_view(x, 0)
    comm.barrier()


@on_ranks(2, 3)
def test_several_arrays_are_shared_in_one_call(comm):
    xs = [filled(comm, n) for n in (50_000, 3, 20_000, 100, 12_345)]
    with comm.share(*xs) as shared:
        assert sum(x.nbytes for x in xs) > shared.nbytes > 50_000 * 4
        assert shared.nbytes == comm.stats()["shared_nbytes"]
        assert shared.arrays[1] is xs[1]
        assert [is_shared(x) for x in xs] == [True, False, True, False, True]
        assert len([row for row in placement(comm) if row.kind == "array"]) == 3 * comm.size
        for x in xs:
            comm.all_reduce(x)
            assert same_bits(x, summed(comm, x.size))
        assert nzero_copy(comm) == 3
    with comm.share() as shared:
        assert shared.nbytes == 0
    for x in xs:
        assert same_bits(x, summed(comm, x.size))


@on_ranks(2)
def test_arrays_may_share_a_page_but_not_overlap(comm):
    """Two arrays with a page in common, shared in two calls and closed in both orders."""
    for order in (0, 1):
        memory = np.zeros(4 * LARGE, np.float32)
        parts = memory[: 2 * LARGE], memory[2 * LARGE :]
        shares = [comm.share(part) for part in parts]
        for i, part in enumerate(parts):
            part[:] = i + 1
        for part in parts:
            comm.all_reduce(part)
        for i in (order, 1 - order):
            shares[i].close()
        assert (parts[0] == comm.size).all()
        assert (parts[1] == 2 * comm.size).all()
    with pytest.raises(ValueError, match="overlap"):
        comm.share(memory[:LARGE], memory[LARGE // 2 :])
    with comm.share(memory[:LARGE]):
        with pytest.raises(ValueError, match="shared already"):
            comm.share(memory[LARGE // 2 :])
        with pytest.raises(ValueError, match="shared already"):
            comm.share(memory[:LARGE])


# ---- what can be shared ----------------------------------------------------------------------------------------------


@on_ranks(2)
def test_every_kind_of_memory_that_python_objects_have(comm):
    n = 1 << 17
    anonymous = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made = [
        bytearray(n),
        array.array("d", bytes(n)),
        np.zeros(n, np.uint8),
        np.empty(n, np.uint8),
        anonymous,
        memoryview(bytearray(n)),
        (ctypes.c_ubyte * n)(),
        np.zeros((16, n // 16), np.complex64),
    ]
    if comm.rank % 2:
        made[2], made[3] = made[3], made[2]
    for x in made:
        flat = np.frombuffer(x, np.uint8) if not isinstance(x, np.ndarray) else x.reshape(-1).view(np.uint8)
        flat[:] = np.arange(flat.size) % 251
        before = flat.copy()
        with comm.share(x) as shared:
            assert 0 < flat.nbytes - shared.nbytes <= 2 * PAGE or shared.nbytes == flat.nbytes
            assert same_bits(flat, before)
            assert is_shared(flat)
            flat[:] = comm.rank
            comm.broadcast(flat, root=0)
        assert not flat.any()
        assert not is_shared(flat)
    del flat
    held = bytearray(n)
    with comm.share(held):
        with pytest.raises(BufferError):  # as long as it is shared
            held.extend(b"more")
    held.extend(b"more")


def without_owner(x):
    """An ndarray over the memory of ``x``, to which it does not refer: what C code may make."""
    numpy_api = getattr(np, "_core", None) or np.core
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = ctypes.cast(get(numpy_api.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_ssize_t),
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
    )(functions[93])
    carray = 0x0501  # C-contiguous, aligned, writable
    return make(np.ndarray, 1, (ctypes.c_ssize_t * 1)(x.size), x.dtype.num, None, x.ctypes.data, 0, carray, None)


@on_ranks(2, 3)
def test_memory_that_cannot_be_shared_is_an_error_on_all_ranks_before_anything_changed(comm, tmp_path):
    """Rank 1 passes memory that cannot be shared: all raise alike, and nothing has changed."""
    n = 4 * LARGE
    path = tmp_path / str(comm.rank)
    path.write_bytes(bytes(n))
    fixed = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fixed.madvise(mmap.MADV_DONTFORK)
    frozen = np.zeros(n, np.uint8)
    frozen.flags.writeable = False
    all_rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    executable = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=all_rights)
    owned = np.zeros(n, np.uint8)
    cases = [
        (without_owner(owned), ValueError, "neither owns its memory nor refers to its owner"),
        (without_owner(owned)[5:], ValueError, "neither owns its memory nor refers to its owner"),
        (np.memmap(path, np.uint8, "r+"), ValueError, "shared already"),
        (np.memmap(path, np.uint8, "c"), ValueError, "mapped from a file, /"),
        (mmap.mmap(-1, n), ValueError, "shared already"),
        (np.frombuffer(comm.empty(n, np.uint8), np.uint8), ValueError, "shared already"),
        (fixed, ValueError, "MADV_DONTFORK"),
        (executable, ValueError, "rwx"),
        (frozen, TypeError, "read-only"),
        (np.zeros(2 * n, np.uint8)[::2], ValueError, "not C-contiguous"),
        (np.zeros((n // 4,), ">f4").view(), ValueError, "byte order"),
        ("text", TypeError, "not an array"),
        (np.ma.zeros(n, np.uint8), TypeError, "masked"),
        (np.array([None] * 9), TypeError, "cannot be moved"),
    ]
    for x, kind, text in cases:
        good = np.arange(n, dtype=np.uint8)
        with pytest.raises(kind if comm.rank == 1 else ValueError, match=text):
            comm.share(good if comm.rank != 1 else x)
        assert not is_shared(good)
        assert same_bits(good, np.arange(n, dtype=np.uint8))
        assert comm.stats()["shared_nbytes"] == 0
    x = filled(comm)
    with comm.share(x):
        assert same_bits(comm.all_reduce(x), summed(comm))


def in_huge_pages(comm):
    try:
        memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    except OSError:
        return "none"
    with pytest.raises(ValueError, match="hugetlbfs"):
        comm.share(memory)
    return "refused"


def test_pages_of_hugetlbfs_are_refused():
    path = Path("/proc/sys/vm/nr_hugepages")
    had = path.read_text()
    try:
        path.write_text("4")
    except OSError:
        pytest.skip("no right to reserve huge pages")
    try:
        if "none" in run_ranks(2, in_huge_pages):
            pytest.skip("no huge pages")
    finally:
        path.write_text(had)


@pytest.mark.parametrize("theirs", [(LARGE + 1, np.float32), (LARGE, np.int32)])
@on_ranks(3)
def test_ranks_that_share_different_arrays_all_raise(comm, theirs):
    x = np.ones(*((LARGE, np.float32) if comm.rank == 0 else theirs))
    with pytest.raises(MismatchError, match="rank 0 shares 100003 float32; rank 1 shares 100"):
        comm.share(x)
    assert not is_shared(x)
    assert comm.is_broken


def small(comm):
    x = np.ones(LEAST_NBYTES - 1, np.uint8)
    with comm.share(x) as shared:
        assert shared.nbytes == 0
        assert not shared.closed
        comm.all_reduce(x)
        assert (x == comm.size).all()
    assert shared.closed
    assert comm._engine.sharing is None or comm._engine.sharing.nallocations == 0
    if comm.size == 1:
        with comm.share(np.ones(LARGE)) as shared:
            assert shared.nbytes == 0


@pytest.mark.parametrize("n", [1, 2])
def test_small_arrays_stay_private(n):
    run_ranks(n, small)


@on_ranks(3)
def test_no_room_on_one_rank_is_an_error_on_all_and_nothing_has_changed(comm):
    x = filled(comm)
    with limited(resource.RLIMIT_FSIZE, 100_000) if comm.rank == 1 else contextlib.nullcontext():
        for _ in range(2):
            with pytest.raises(OutOfSharedMemoryError, match="cannot reserve"):
                comm.share(x)
            assert not is_shared(x)
    with comm.share(x):
        assert same_bits(comm.all_reduce(x), summed(comm))


def without_mappings(comm):
    """Rank 1 has fewer and fewer mappings left, so that it fails at each step in turn; in the last one, none."""
    most = int(MAPPINGS.read_text())
    spare, failures = [], 0
    x, content = filled(comm), filled(comm)
    if comm.rank == 1:
        with contextlib.suppress(OSError):
            for i in range(most):  # mappings with the same rights would become one
                spare.append(
                    mmap.mmap(
                        -1,
                        PAGE,
                        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                        prot=mmap.PROT_READ if i % 2 else mmap.PROT_READ | mmap.PROT_WRITE,
                    )
                )
        del spare[-8:]  # for arrays that NumPy allocates
    while True:
        try:
            shared = comm.share(x)
        except OutOfSharedMemoryError:
            failures += 1
            assert not is_shared(x)
            assert same_bits(x, content)
            assert comm.stats()["shared_nbytes"] == 0
            if spare:
                spare.pop()
            continue
        break
    del spare
    assert same_bits(comm.all_reduce(x), summed(comm))
    shared.close()
    assert same_bits(x, summed(comm))
    return failures


@pytest.mark.long
@pytest.mark.skipif(not MAPPINGS.exists(), reason="no limit of mappings")
@pytest.mark.skipif(MAPPINGS.exists() and int(MAPPINGS.read_text()) > 100_000, reason="to list so many takes minutes")
def test_a_rank_that_may_have_no_more_mappings_leaves_all_arrays_private():
    assert min(run_ranks(2, without_mappings)) > 1


# ---- the life of a handle --------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_dropped_handle_warns_and_the_array_stays_shared_until_its_communicator_is_closed(comm):
    """It warns, and the memory stays shared, and kept, until the communicator is closed."""
    x, y = filled(comm), filled(comm)
    with comm.dup() as other:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.share(x)  # no reference is kept
            cycle = [other.share(y)]
            cycle.append(cycle)
            del cycle
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning] * 2
        assert is_shared(x)
        assert is_shared(y)
        address = y.ctypes.data
        del y
        other.all_reduce(x)
        assert nzero_copy(other) == 1
        assert is_shared_at(address + LARGE * 2)
        with pytest.raises(ValueError, match="shared already"):
            comm.share(x)
    assert not is_shared(x)
    assert not is_shared_at(address + LARGE * 2)
    assert same_bits(x, summed(comm))
    x[:] = filled(comm)
    # The handle keeps the array.
    address = x.ctypes.data
    shared = comm.share(x)
    del x
    gc.collect()
    assert is_shared_at(address + LARGE * 2)
    x = shared.arrays[0]
    comm.all_reduce(x)
    shared.close()
    shared.close()
    assert not comm._engine.sharing.registry.locate(address)
    assert shared.closed
    assert not shared.arrays
    assert "closed" in repr(shared)
    for name in ("arrays", "closed", "nbytes"):
        with pytest.raises(AttributeError):  # or the arrays could be freed while they are shared
            setattr(shared, name, ())
    with pytest.raises(TypeError, match="pickle the arrays"):
        __import__("pickle").dumps(shared)
    assert same_bits(x, summed(comm))


@on_ranks(2)
def test_the_end_of_the_communicator_closes_its_shares(comm):
    with comm.dup() as other:
        x = filled(comm)
        shared = other.share(x)
        other.all_reduce(x)
        assert is_shared(x)
    assert shared.closed
    assert not is_shared(x)
    assert same_bits(x, summed(comm))
    shared.close()
    comm.barrier()


def mappings():
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split()[-1] for line in lines if "shmring" in line and ".so" not in line)


@on_ranks(2)
def test_a_handle_is_closed_though_its_communicator_was_dropped_and_nothing_stays_mapped(comm):
    x, before = filled(comm), mappings()
    group = comm.dup()
    shared = group.share(x)
    group.all_reduce(x)
    del group
    gc.collect()
    assert is_shared(x)
    comm.barrier()
    shared.close()
    assert not is_shared(x)
    assert same_bits(x, summed(comm))
    assert mappings() == before
    comm.barrier()


@on_ranks(2)
def test_shares_of_a_broken_communicator_are_closed(comm):
    x = filled(comm)
    shared = comm.share(x)
    comm.barrier()
    comm.abort("on purpose")
    shared.close()
    assert same_bits(x, filled(comm))
    assert not is_shared(x)


def left_open(comm):
    sys.kept = x = filled(comm), comm.share(filled(comm))  # until the interpreter ends
    return len(x)


def test_the_interpreter_may_end_with_open_shares():
    import shmring

    assert shmring.spawn(left_open, 2) == [2, 2]


@on_ranks(2)
def test_a_forked_child_has_a_private_copy(comm):
    x = np.full(LARGE, 7.0)
    small = np.ones(3)
    shared = comm.share(x, small)
    reader, writer = os.pipe()
    to_child, from_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(to_child, 1)  # the parent has changed it by now
            seen = x[0] == 7 and (x == 7).all() and not is_shared(x) and shared.closed and shared.nbytes == 0
            x[:] = 9
            os.write(writer, b"1" if seen else b"0")
            os.read(to_child, 1)
            status = 0 if (x == 9).all() else 2
        finally:
            os._exit(status)
    assert is_shared(x)
    assert not shared.closed
    assert (x == 7).all()
    comm.all_reduce(x)
    os.write(from_parent, b"1")
    assert os.read(reader, 1) == b"1"
    assert (x == 7 * comm.size).all()
    shared.close()
    os.write(from_parent, b"1")
    assert os.waitpid(pid, 0)[1] == 0
    for fd in (reader, writer, to_child, from_parent):
        os.close(fd)


@on_ranks(2)
def test_an_array_that_was_resized_while_shared_is_an_error_and_nothing_is_overwritten(comm):
    x = np.empty(1 << 22, np.uint8)  # large enough for a mapping of its own, which is freed at once
    y = filled(comm)
    shared = comm.share(x, y)
    x.resize(1 << 25, refcheck=False)
    if is_shared(x):  # the allocator has found room behind it, or has only changed its size
        pytest.skip("resized in place")
    with pytest.raises(SegmentError, match="resized or freed"):
        shared.close()
    assert shared.closed
    assert not is_shared(y)
    x[:] = 1
    assert same_bits(y, filled(comm))
    comm.all_reduce(y)
    assert same_bits(y, summed(comm))


@on_ranks(2)
def test_a_handle_may_be_closed_while_calls_are_under_way(comm):
    x = filled(comm)
    for key in range(8):
        x[:] = values(np.float32, LARGE, comm.rank, key)
        shared = comm.share(x)
        works = [comm.all_reduce(x, op="max", async_op=True) for _ in range(3)]
        if comm.rank == key % comm.size:
            shared.close()  # while they are under way
        for work in works:
            work.wait()
        assert same_bits(x, reduce_model([values(np.float32, LARGE, r, key) for r in range(comm.size)], "max"))
        shared.close()
        assert not is_shared(x)


@on_ranks(2)
def test_a_handle_may_be_closed_inside_a_call(comm):
    """In a function that reduces: a call inside a call of the same thread."""
    x = filled(comm)
    shared = comm.share(x)

    def add(a, b):
        shared.close()
        return a + b

    comm.all_reduce(x, op=add)
    assert shared.closed
    assert np.allclose(x, summed(comm))
    assert not is_shared(x)


@on_ranks(2)
def test_threads_may_read_while_an_array_is_shared_and_made_private(comm):
    x = np.arange(1 << 20, dtype=np.float32)
    stop, wrong, reads = threading.Event(), [], [0]
    stop_at = np.arange(0, 1 << 20, 511)

    def read():
        while not stop.is_set():
            if (x[stop_at] != stop_at).any():
                wrong.append(1)
            reads[0] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while not reads[0]:
            time.sleep(0.001)
        for _ in range(20):
            comm.share(x).close()
    finally:
        stop.set()
        thread.join()
    assert not wrong


# ---- what is kept ----------------------------------------------------------------------------------------------------


def nmappings():
    """How many mappings this process has; none of them is of an array that was shared."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert not any("/dev/shm/" in line and "array" in line for line in lines)
    return len(lines)


@on_ranks(2, pytest.param(4, marks=pytest.mark.long))
def test_sharing_and_freeing_many_times_leaves_nothing(comm):
    """Allocate, share, close, free: memory that is allocated later is private and right, and nothing accumulates."""
    rng = np.random.default_rng(comm.size)  # the same on all ranks
    counts, kept = [], []
    for i in range(80):
        n = int(rng.integers(LEAST_NBYTES // 4, 300_000))
        x = np.full(n, i, np.float32)
        shared = comm.share(x)
        comm.all_reduce(x)
        if i % 3 == 0:
            del x
            x = shared.arrays[0]
        shared.close()
        assert (x == i * comm.size).all()
        y = np.full(n // 2, -1.0, np.float32)
        assert (x == i * comm.size).all()
        kept.append((i, x if i % 2 else y))
        if len(kept) > 10:
            j, z = kept.pop(int(rng.integers(10)))
            assert (z == (j * comm.size if j % 2 else -1)).all()
        counts.append(nmappings())
    # The kernel cannot join what was moved with its neighbours in the heap: arrays of many sizes leave some parts.
    assert counts[-1] - counts[0] < 100, counts
    x = np.zeros(LARGE)
    counts = []
    for _ in range(50):
        comm.share(x).close()
        counts.append(nmappings())
    assert counts[-1] == counts[1], counts


def locked(comm):
    x = filled(comm)
    address, nbytes = ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes)
    if LIBC.mlock(address, nbytes):
        return "refused"
    middle = x.ctypes.data + x.nbytes // 2
    assert "lo" in properties_at(middle)[1]
    with comm.share(x):
        assert is_shared(x)
        assert "lo" in properties_at(middle)[1]
        comm.all_reduce(x)
    assert "lo" in properties_at(middle)[1]
    LIBC.munlock(address, nbytes)
    assert same_bits(x, summed(comm))
    return "locked"


@pytest.mark.skipif(SANITIZED, reason="the address sanitizer's mlock does nothing")
def test_locked_memory_stays_locked():
    if "refused" in run_ranks(2, locked):
        pytest.skip("mlock is refused here")


@on_ranks(2)
def test_advice_to_the_kernel_is_repeated_for_the_private_memory(comm):
    memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.madvise(mmap.MADV_DONTDUMP)
    x = np.frombuffer(memory, np.float32)
    x[:] = comm.rank
    middle = x.ctypes.data + x.nbytes // 2
    before = {"hg", "dd"} & set(properties_at(middle)[1])
    with comm.share(x):
        comm.all_reduce(x)
    assert {"hg", "dd"} & set(properties_at(middle)[1]) == before
    assert (x == sum(range(comm.size))).all()


MBIND, GET_MEMPOLICY = {"x86_64": (237, 239), "aarch64": (235, 236)}.get(platform.machine(), (0, 0))


def policy_at(address):
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    where = ctypes.c_void_p(address), ctypes.c_ulong(2)
    error = LIBC.syscall(GET_MEMPOLICY, ctypes.byref(mode), mask, ctypes.c_ulong(1024), *where)
    return None if error else (mode.value, list(mask))


def bound(comm):
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    x = np.frombuffer(memory, np.float32)
    node_0 = (ctypes.c_ulong * 16)(1)
    if not MBIND or LIBC.syscall(
        MBIND, ctypes.c_void_p(x.ctypes.data), ctypes.c_ulong(x.nbytes), 2, node_0, ctypes.c_ulong(1024), 0
    ):
        return "refused"
    x[:] = comm.rank
    policy = policy_at(x.ctypes.data)
    assert policy == (2, [1] + [0] * 15)
    with comm.share(x):
        assert is_shared(x)
        assert policy_at(x.ctypes.data) == policy
        comm.all_reduce(x)
    assert policy_at(x.ctypes.data) == policy
    assert (x == sum(range(comm.size))).all()
    return "kept"


def test_the_memory_policy_of_an_array_is_kept():
    if "refused" in run_ranks(2, bound):
        pytest.skip("mbind is refused here")


def share_with_a_handler_that_raises(comm, kind):
    from shmring.collectives.shared import share

    if comm.rank == 1:
        described = share._described

        def handler(signum, frame):
            raise kind("by a signal")

        def raise_before_the_exchange(parts):
            signal.raise_signal(signal.SIGUSR1)
            return described(parts)

        signal.signal(signal.SIGUSR1, handler)
        share._described = raise_before_the_exchange
    with pytest.raises(kind if comm.rank == 1 else AbortedError):
        comm.share(np.ones(LARGE))
    assert comm.is_broken


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_a_rank_whose_handler_raises_while_it_shares_does_not_keep_the_others_waiting(kind):
    run_ranks(2, share_with_a_handler_that_raises, kind)


def test_a_handle_is_made_by_share_only():
    with pytest.raises(TypeError, match=r"made by Communicator\.share"):
        Shared(object())
