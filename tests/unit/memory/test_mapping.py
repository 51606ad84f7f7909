"""Mappings: what they show, what they refuse, and that they keep nothing."""

import errno
import multiprocessing
import os
import resource
import sys
import textwrap

import numpy as np
import pytest
from support.emulation import needs_address_limit, needs_advice
from support.programs import WATCHDOG_S, run_python

from shmring.core.memory.mapping import HUGE_PAGE_NBYTES, Mapping
from shmring.errors import ClosedError, OutOfSharedMemoryError

PAGE = resource.getpagesize()


@pytest.fixture
def fd():
    """A file of eight pages in memory."""
    fd = os.memfd_create("mapping")
    os.ftruncate(fd, 8 * PAGE)
    yield fd
    os.close(fd)


def mapped_ranges():
    """How many ranges this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:mapping" in line for line in maps)


def test_what_is_written_through_a_mapping_is_in_the_file_and_in_other_mappings(fd):
    one, two = Mapping(fd, 8 * PAGE), Mapping(fd, 8 * PAGE)
    memoryview(one)[3 * PAGE : 3 * PAGE + 5] = b"hello"
    assert bytes(memoryview(two)[3 * PAGE : 3 * PAGE + 5]) == b"hello"
    assert os.pread(fd, 5, 3 * PAGE) == b"hello"


def test_a_mapping_may_start_at_any_page_of_the_file_and_end_anywhere(fd):
    os.pwrite(fd, b"there", 2 * PAGE)
    mapping = Mapping(fd, 5, 2 * PAGE)
    assert mapping.nbytes == len(mapping) == 5
    assert bytes(mapping) == b"there"


def test_numpy_sees_the_memory_itself(fd):
    mapping = Mapping(fd, PAGE)
    words = np.frombuffer(mapping, dtype=np.uint64)
    words[1] = 7
    assert words.flags.writeable
    assert os.pread(fd, 8, 8) == (7).to_bytes(8, sys.byteorder)


def test_no_descriptor_is_kept_and_the_callers_may_be_closed():
    fd = os.memfd_create("mapping")
    os.ftruncate(fd, PAGE)
    before = sorted(os.listdir("/proc/self/fd"))
    mapping = Mapping(fd, PAGE)
    assert sorted(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    memoryview(mapping)[0] = 1
    assert bytes(memoryview(mapping)[:2]) == b"\x01\x00"


def test_close_unmaps_and_a_second_close_does_nothing(fd):
    before = mapped_ranges()
    mapping = Mapping(fd, PAGE)
    assert mapped_ranges() == before + 1
    assert not mapping.closed
    mapping.close()
    mapping.close()
    assert mapping.closed
    assert mapped_ranges() == before


def test_a_dropped_mapping_unmaps_itself_with_its_last_view(fd):
    before = mapped_ranges()
    view = memoryview(Mapping(fd, PAGE))
    assert mapped_ranges() == before + 1
    view.release()
    del view
    assert mapped_ranges() == before


def test_close_refuses_while_a_view_exists(fd):
    mapping = Mapping(fd, PAGE)
    view = memoryview(mapping)
    array = np.frombuffer(mapping, dtype=np.uint8)
    with pytest.raises(BufferError, match="2 views"):
        mapping.close()
    view.release()
    with pytest.raises(BufferError, match="1 views"):
        mapping.close()
    assert array[0] == 0
    del array
    mapping.close()


@pytest.mark.parametrize("use", [memoryview, lambda m: m.prefault(), lambda m: m.touch()])
def test_a_closed_mapping_refuses_use(fd, use):
    mapping = Mapping(fd, PAGE)
    mapping.close()
    with pytest.raises(ClosedError, match="closed"):
        use(mapping)


@pytest.mark.parametrize(
    ("nbytes", "offset", "message"),
    [
        (0, 0, "nbytes=0"),
        (-1, 0, "nbytes=-1"),
        (PAGE, 1, "offset=1"),
        (PAGE, -PAGE, f"offset=-{PAGE}"),
        (8 * PAGE + 1, 0, "SIGBUS"),
        (PAGE, 8 * PAGE, "SIGBUS"),
        (sys.maxsize, PAGE, "SIGBUS"),
    ],
)
def test_a_range_that_is_not_inside_the_file_is_a_value_error(fd, nbytes, offset, message):
    with pytest.raises(ValueError, match=message):
        Mapping(fd, nbytes, offset)


def test_a_bad_descriptor_is_an_os_error_with_its_errno(fd):
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        Mapping(10**6, PAGE)
    assert caught.value.errno == errno.EBADF
    with open("/proc/self/exe", "rb") as read_only, pytest.raises(PermissionError):
        Mapping(read_only.fileno(), PAGE)


@needs_address_limit
def test_an_address_space_limit_is_an_error_that_names_it():
    program = """
        import os, resource
        from shmring.core.memory.mapping import HUGE_PAGE_NBYTES, Mapping
        from shmring.errors import OutOfSharedMemoryError
        fd = os.memfd_create("big")
        os.ftruncate(fd, 1 << 40)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        try:
            Mapping(fd, 1 << 40)
        except OutOfSharedMemoryError as error:
            print(isinstance(error, MemoryError), error.needed == 1 << 40, error)
    """
    printed = run_python("-c", textwrap.dedent(program))
    assert printed.startswith("True True cannot map 1099511627776 bytes")
    assert "RLIMIT_AS" in printed
    assert str(4 << 30) in printed


def resident_pages(mapping):
    """How many pages of a mapping this process has in its page tables."""
    address = np.frombuffer(mapping, dtype=np.uint8).__array_interface__["data"][0]
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // PAGE * 8)
        entries = np.frombuffer(pagemap.read(8 * (mapping.nbytes // PAGE)), dtype=np.uint64)
    return [bool(entry >> np.uint64(63)) for entry in entries]


@pytest.mark.parametrize("way", [pytest.param("prefault", marks=needs_advice), "touch"])
@pytest.mark.parametrize("write", [True, False])
def test_faulting_in_gives_the_pages_of_a_range_and_keeps_their_contents(fd, way, write):
    os.pwrite(fd, bytes(range(256)) * (8 * PAGE // 256), 0)
    mapping = Mapping(fd, 8 * PAGE)
    assert resident_pages(mapping) == [False] * 8
    getattr(mapping, way)(2 * PAGE - 1, PAGE + 2, write=write)
    assert all(resident_pages(mapping)[1:4])
    if write and way == "prefault":  # a page read may bring neighbours along
        assert resident_pages(mapping) == [False, True, True, True] + [False] * 4
    getattr(mapping, way)(write=write)
    assert all(resident_pages(mapping))
    assert bytes(mapping) == bytes(range(256)) * (8 * PAGE // 256)
    mapping.close()  # nothing holds it any more


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, None), (0, 8 * PAGE + 1), (8 * PAGE + 1, None), (0, -1)])
def test_faulting_in_outside_the_mapping_is_a_value_error(fd, offset, nbytes):
    with pytest.raises(ValueError, match="not inside a mapping"):
        Mapping(fd, 8 * PAGE).prefault(offset, nbytes)


def test_faulting_in_nothing_is_fine(fd):
    mapping = Mapping(fd, 8 * PAGE)
    mapping.prefault(PAGE, 0)
    mapping.touch(8 * PAGE, 0)
    assert resident_pages(mapping) == [False] * 8


@needs_advice
def test_prefault_of_a_file_cut_short_is_an_error_and_no_sigbus(fd):
    mapping = Mapping(fd, 8 * PAGE)
    os.ftruncate(fd, PAGE)
    mapping.prefault(0, PAGE)
    with pytest.raises(OutOfSharedMemoryError, match="truncated"):
        mapping.prefault()


def test_a_forked_child_shares_the_memory_and_its_end_takes_nothing_from_the_parent(fd):
    mapping = Mapping(fd, PAGE)

    def child():
        memoryview(mapping)[0] = 42
        mapping.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(WATCHDOG_S)
    assert process.exitcode == 0
    assert bytes(memoryview(mapping)[:1]) == b"*"


@pytest.fixture
def large():
    """A file of three huge pages and a bit, with all its memory, as a descriptor."""
    fd = os.memfd_create("mapping")
    os.posix_fallocate(fd, 0, 3 * HUGE_PAGE_NBYTES + PAGE)
    yield fd
    os.close(fd)


def address_of(mapping):
    return np.frombuffer(mapping, dtype=np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("offset", [0, PAGE, HUGE_PAGE_NBYTES])
def test_large_mappings_lie_where_huge_pages_are_possible_and_take_no_more_than_they_need(large, offset):
    before = mapped_ranges()
    mapping = Mapping(large, HUGE_PAGE_NBYTES + 5, offset)
    assert address_of(mapping) % HUGE_PAGE_NBYTES == offset % HUGE_PAGE_NBYTES
    assert mapped_ranges() == before + 1
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if "memfd:mapping" in line]
    assert [int(end, 16) - int(start, 16) for start, end in spans] == [HUGE_PAGE_NBYTES + PAGE]


def mapped_nbytes():
    """The address space of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * PAGE


def test_mappings_leave_no_address_space_behind(large):
    Mapping(large, 3 * HUGE_PAGE_NBYTES).close()
    before = mapped_nbytes()
    for _ in range(20):
        Mapping(large, 2 * HUGE_PAGE_NBYTES + PAGE, PAGE).close()
    assert mapped_nbytes() < before + 20 * HUGE_PAGE_NBYTES


@needs_advice
def test_collapsing_keeps_contents_and_takes_no_more_memory_and_peers_see_huge_pages_too(large):
    one = Mapping(large, 3 * HUGE_PAGE_NBYTES + PAGE)
    content = np.random.default_rng(0).integers(0, 256, one.nbytes, np.uint8)
    np.frombuffer(one, np.uint8)[:] = content
    blocks = os.fstat(large).st_blocks
    done = one.collapse(PAGE, 2 * HUGE_PAGE_NBYTES)  # one whole huge page lies inside
    assert done in (0, HUGE_PAGE_NBYTES)
    assert one.huge_nbytes == done
    other = Mapping(large, 3 * HUGE_PAGE_NBYTES + PAGE)
    other.prefault(write=False)
    assert other.huge_nbytes == done
    assert (np.frombuffer(other, np.uint8) == content).all()
    assert os.fstat(large).st_blocks == blocks
    if done == 0:
        pytest.skip("this kernel made no huge page")


def test_collapsing_what_holds_no_whole_huge_page_does_nothing(fd, large):
    assert Mapping(fd, 8 * PAGE).collapse() == 0
    mapping = Mapping(large, 3 * HUGE_PAGE_NBYTES)
    assert mapping.collapse(1, 2 * HUGE_PAGE_NBYTES - 2) == 0
    with pytest.raises(ValueError, match="not inside a mapping"):
        mapping.collapse(0, 4 * HUGE_PAGE_NBYTES)
    mapping.close()
    assert mapping.huge_nbytes == 0
    with pytest.raises(ClosedError):
        mapping.collapse()
