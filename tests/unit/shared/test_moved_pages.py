"""Private pages become those of a segment, at the same address, and private again; what cannot is left as it was."""

import mmap

import numpy as np
import pytest

from shmring.collectives.shared.movable import Properties, examine, mapped_files, whole_pages
from shmring.collectives.shared.moved import MovedPages
from shmring.core.memory.header import HEADER_NBYTES, RING
from shmring.core.memory.unnamed import create_unnamed
from shmring.errors import ClosedError

PAGE = mmap.PAGESIZE
FIRST = -(-HEADER_NBYTES // PAGE) * PAGE
NPAGES = 20


@pytest.fixture
def segment():
    made = create_unnamed("a test", FIRST + NPAGES * PAGE, kind=RING)
    yield made
    made.close()


@pytest.fixture
def array():
    """Private memory of whole pages, with other private memory on both sides."""
    memory = np.zeros((NPAGES + 3) * PAGE, np.uint8)
    start, _ = whole_pages(memory.ctypes.data, memory.nbytes)
    at = start - memory.ctypes.data + PAGE
    x = memory[at : at + NPAGES * PAGE]
    x[:] = np.arange(x.size) % 251
    return x


def range_of(x):
    return x.ctypes.data, x.ctypes.data + x.nbytes


def moved_pages(segment, x, nbytes=None, offset=FIRST):
    return MovedPages(segment.mapping, offset, x.ctypes.data, x.nbytes if nbytes is None else nbytes, False, ())


def test_pages_are_shared_while_they_are_moved_and_keep_their_content(segment, array):
    before = array.copy()
    image = np.frombuffer(segment.mapping, np.uint8, array.size, FIRST)
    pages = moved_pages(segment, array)
    assert not pages.is_moved
    pages.move()
    assert pages.is_moved
    assert (array == before).all()
    assert (image == before).all()
    image[5] = 77
    array[-1] = 78
    assert (array[5], image[-1]) == (77, 78)
    assert mapped_files([range_of(array)]) == mapped_files([range_of(image)])
    with pytest.raises(ClosedError):
        pages.move()
    pages.restore()
    assert not pages.is_moved
    assert (array[5], array[-1]) == (77, 78)
    image[:] = 0
    assert array[5] == 77
    assert (array[6:-1] == before[6:-1]).all()
    assert mapped_files([range_of(array)]) == [{("00:00", "0")}]
    pages.restore()
    del image


def test_pages_that_were_only_prepared_are_private(segment, array):
    before = array.copy()
    pages = moved_pages(segment, array)
    pages.restore()
    del pages
    assert (array == before).all()
    assert examine([range_of(array)])[0].is_locked is False


@pytest.mark.parametrize("offset", [FIRST + 1, FIRST + PAGE, 1 << 62])
@pytest.mark.parametrize("extra", [0, 1, PAGE])
def test_what_is_not_whole_pages_of_the_mapping_is_a_value_error(segment, array, offset, extra):
    with pytest.raises(ValueError, match="whole pages"):
        moved_pages(segment, array, array.nbytes + extra, offset)
    with pytest.raises(ValueError, match="whole pages"):
        moved_pages(segment, array, 0)


def test_a_closed_mapping_is_refused(segment, array):
    segment.close()
    with pytest.raises(ClosedError):
        moved_pages(segment, array)


def test_whole_pages_are_those_inside():
    assert whole_pages(0, PAGE) == (0, PAGE)
    assert whole_pages(1, PAGE) == (PAGE, PAGE)
    assert whole_pages(1, 2 * PAGE) == (PAGE, 2 * PAGE)
    assert whole_pages(PAGE - 1, 2) == (PAGE, PAGE)
    assert whole_pages(PAGE, 0) == (PAGE, PAGE)


def test_private_memory_is_movable_and_the_reason_names_what_is_not(segment, array):
    assert examine([]) == []
    assert isinstance(examine([range_of(array)])[0], Properties)
    pages = moved_pages(segment, array)
    pages.move()
    with pytest.raises(ValueError, match="is shared already"):
        examine([range_of(array)])
    pages.restore()
    start = array.ctypes.data
    hole = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = np.frombuffer(hole, np.uint8).ctypes.data
    del hole
    with pytest.raises(ValueError, match=r"is not mapped|is mapped from|has the permissions|is shared"):
        examine([(start, start + PAGE), (at, at + (1 << 40))])
    with pytest.raises(ValueError, match="is not mapped"):
        examine([(PAGE, 2 * PAGE)])
