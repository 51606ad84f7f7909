"""The nodes of pages: two ways to query the kernel, parsed policies, and a kernel that refuses all of it."""

import ctypes
import os
import platform
import struct

import pytest
from support.harness import run_processes
from support.placement_rows import placement

from shmring.config import configure
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.mapping import Mapping
from shmring.core.placement import numa as pages
from shmring.core.placement.numa import bytes_by_node, current_node, has_thread_policy, lay
from shmring.core.placement.numa_policy import in_slices, memory_nodes, place_by

PAGE = os.sysconf("SC_PAGESIZE")
NBYTES = 37 * PAGE

pytestmark = pytest.mark.skipif(current_node() < 0, reason="the kernel does not say on which node a thread runs")


@pytest.fixture
def mapping():
    """Some pages of shared memory, reserved and untouched."""
    fd = os.memfd_create("pages")
    os.posix_fallocate(fd, 0, NBYTES)
    with_memory = Mapping(fd, NBYTES)
    os.close(fd)
    yield with_memory
    with_memory.close()


@pytest.fixture
def sparse():
    """Pages without memory: those that are reserved lie on the node on which the thread was then."""
    fd = os.memfd_create("pages")
    os.ftruncate(fd, NBYTES)
    without_memory = Mapping(fd, NBYTES)
    os.close(fd)
    yield without_memory
    without_memory.close()


def require_page_counts(mapping):
    """Skip where the kernel does not report the nodes of pages, as in emulators."""
    found = bytes_by_node(mapping)
    if found is None:
        pytest.skip("the kernel does not report the nodes of pages")
    return found


def test_pages_count_once_they_were_touched(mapping):
    assert sum(require_page_counts(mapping).values()) == 0
    mapping.prefault(0, 5 * PAGE)
    assert sum(bytes_by_node(mapping).values()) == 5 * PAGE
    mapping.prefault()
    assert sum(bytes_by_node(mapping).values()) == NBYTES


def test_a_range_has_the_pages_that_begin_in_it(mapping):
    require_page_counts(mapping)
    mapping.prefault()
    for offset, nbytes, count in [(0, NBYTES, 37), (1, NBYTES, 36), (0, 1, 1), (PAGE, PAGE, 1), (5, PAGE - 5, 0)]:
        assert sum(bytes_by_node(mapping, offset, nbytes).values()) == count * PAGE


def test_the_table_of_the_process_has_the_same(mapping):
    require_page_counts(mapping)
    mapping.prefault()
    table = pages._bytes_in_maps(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), NBYTES)
    if table is None:
        pytest.skip("no numa_maps here")
    assert table == bytes_by_node(mapping)


def test_memory_asked_for_on_this_node_lies_there(sparse):
    require_page_counts(sparse)
    node = current_node()  # this thread may go to another one
    if error := lay(sparse, 0, NBYTES, (node,)):
        assert error > 0
        pytest.skip(f"the kernel refuses: {os.strerror(error)}")
    sparse.prefault()
    assert bytes_by_node(sparse) == {node: NBYTES}


def test_a_policy_is_set_for_its_range_alone(sparse):
    if not os.path.exists("/proc/self/numa_maps"):
        pytest.skip("no numa_maps here")
    if error := lay(sparse, PAGE, 2 * PAGE, (current_node(),)):
        pytest.skip(f"the kernel refuses: {os.strerror(error)}")
    with open("/proc/self/numa_maps") as maps:
        policies = {int(line.split()[0], 16): line.split()[1] for line in maps}
    first = ctypes.addressof(ctypes.c_char.from_buffer(sparse))
    found = [policies.get(first + page * PAGE, "").partition(":")[0] for page in range(4)]
    assert found == ["default", "prefer", "", "default"]  # the third page has no entry of its own


def test_a_range_that_holds_no_page_is_nobodys(mapping):
    assert lay(mapping, 1, 10, (0,)) == 0
    assert lay(mapping, NBYTES, PAGE, (0,)) == 0


def test_a_node_that_is_not_there_is_refused_by_number(mapping):
    assert lay(mapping, 0, NBYTES, (1000,)) > 0
    assert lay(mapping, 0, NBYTES, (5000,)) > 0


class Recorder:
    """What `lay` would have been asked for."""

    def __init__(self, monkeypatch):
        self.asked = []
        monkeypatch.setattr("shmring.core.placement.numa_policy.lay", lambda _, *words: self.asked.append(words))
        monkeypatch.setattr("shmring.core.placement.numa_policy.has_thread_policy", lambda: False)
        monkeypatch.setattr("shmring.core.placement.numa_policy.current_node", lambda: 1)


@pytest.fixture
def recorder(monkeypatch):
    """A machine of several nodes on which we run on node 1."""
    return Recorder(monkeypatch)


@pytest.mark.parametrize(
    ("policy", "nodes", "asked"),
    [
        ("auto", (0, 1), [(0, 9, (1,))]),
        ("auto", (0,), None),
        ("local", (0, 1), None),
        ("interleave", (0, 1, 4), [(0, 9, (0, 1, 4))]),
        ("interleave", (0,), None),
        ("bind:4", (0, 1, 4), [(0, 9, (4,))]),
        ("bind:0", (0,), [(0, 9, (0,))]),
    ],
)
def test_policies_ask_for_nodes(recorder, policy, nodes, asked):
    place = place_by(policy, nodes)
    assert (place is None) == (asked is None)
    if place:
        place(None, 0, 9)
        assert recorder.asked == asked


def test_slices_are_on_the_nodes_of_their_writers_and_neighbours_are_placed_together(recorder):
    bounds = [100, 200, 300, 400, 500]
    in_slices(place_by("auto", (0, 1)), bounds, (0, 0, 1, 0))(None, 0, 500)
    assert recorder.asked == [(100, 200, (0,)), (300, 100, (1,)), (400, 100, (0,))]
    for policy in ("local", "interleave", "bind:1"):
        place = place_by(policy, (0, 1))
        assert in_slices(place, bounds, (0, 0, 1, 0)) is place


def test_slices_of_ranks_whose_nodes_are_not_known_are_not_placed(recorder):
    place = place_by("auto", (0, 1))
    assert in_slices(place, [0, 1, 2], (0, -1)) is place


def test_a_thread_with_a_policy_of_its_own_keeps_it(recorder, monkeypatch):
    monkeypatch.setattr("shmring.core.placement.numa_policy.has_thread_policy", lambda: True)
    assert place_by("auto", (0, 1)) is None
    assert place_by("interleave", (0, 1)) is not None


def test_a_node_without_memory_cannot_be_bound_to():
    with pytest.raises(ValueError, match=r"placement='bind:7': the nodes with memory for this process are 0,2-3"):
        place_by("bind:7", (0, 2, 3))
    for wrong in ("", "bind", "bind:", "bind:x", "bind:-1", "near", "bind:12345"):
        with pytest.raises(ValueError, match="must be auto, local, interleave, or bind:N"):
            configure({}, placement=wrong)
    assert configure({"SHMRING_PLACEMENT": "bind:3"}).placement == "bind:3"


def test_this_process_has_memory_somewhere():
    assert memory_nodes()
    assert not has_thread_policy()


# ---- a kernel that refuses -------------------------------------------------------------------------------------------

# System calls that filters of containers keep away: mbind, set_mempolicy, get_mempolicy, move_pages.
REFUSED = {"x86_64": (237, 238, 239, 279), "aarch64": (235, 237, 236, 239)}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001


def refuse_policies():
    """Filter this process's system calls; whether the kernel could."""
    numbers = REFUSED[platform.machine()]
    program = [struct.pack("=HBBI", LOAD, 0, 0, 0)]
    program += [struct.pack("=HBBI", JUMP_IF_EQUAL, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]
    program += [struct.pack("=HBBI", RETURN, 0, 0, ALLOW), struct.pack("=HBBI", RETURN, 0, 0, EPERM)]
    code = ctypes.create_string_buffer(b"".join(program))
    filter = struct.pack("=H6xQ", len(program), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    if prctl(38, ctypes.c_ulong(1), 0, 0, 0):  # no new privileges: then anybody may filter
        return False
    return prctl(22, ctypes.c_ulong(2), ctypes.create_string_buffer(filter), 0, 0) == 0


def in_a_container(rank, session, policy):
    import numpy as np

    import shmring

    if not refuse_policies():
        return None
    with shmring.init(rank=rank, size=2, session=session, placement=policy) as comm:
        refused = lay(comm._engine.segments[rank].mapping, 0, PAGE, (0,))
        array = comm.array(np.full(100_000, rank, np.int64))
        comm.all_reduce(array)
        return refused, int(array.sum()), placement(comm)


@pytest.mark.parametrize("policy", ["auto", "interleave", "bind:0"])
@pytest.mark.skipif(platform.machine() not in REFUSED, reason="numbers of system calls are not known")
def test_where_the_kernel_refuses_policies_all_works_and_its_table_is_still_read(policy):
    for found in run_processes(2, in_a_container, f"refused-{os.getpid()}-{policy[:4]}", policy):
        if found is None:
            pytest.skip("no filters of system calls here")
        refused, total, rows = found
        assert refused == 1  # EPERM
        assert total == 100_000
        assert [(row.kind, row.rank) for row in rows] == [("outbox", 0), ("outbox", 1), ("array", 0), ("array", 1)]
        for row in rows:
            assert row.nodes is None or sum(row.nodes.values()) >= HEADER_NBYTES
        if os.path.exists("/proc/self/numa_maps"):
            assert all(sum(row.nodes.values()) >= 800_000 for row in rows)
