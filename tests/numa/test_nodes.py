"""On a machine with several NUMA nodes the kernel reports the node of each page. ``tests/numa/run.sh`` starts one.

One rank on each node, bound there before it meets the others.
"""

import hashlib
import os

import numpy as np
import pytest
from support.harness import run_processes
from support.placement_rows import placement
from support.programs import run_in_launcher

from shmring.core.placement.numa_policy import memory_nodes
from shmring.core.placement.topology import discover

HOMES = {node.number: node.processors for node in discover().nodes if node.processors}
NODES = [node for node in memory_nodes() if node in HOMES]

pytestmark = pytest.mark.skipif(len(NODES) < 2, reason="one NUMA node only; see tests/numa/run.sh")

N = 1_000_003  # not a multiple of a page


def on_nodes(rank, session, fn, init=None):
    """Run a rank on the node of its number, and call ``fn(comm)``."""
    import shmring

    os.sched_setaffinity(0, HOMES[NODES[rank]])
    with shmring.init(rank=rank, size=len(NODES), session=session, **(init or {})) as comm:
        return fn(comm)


@pytest.fixture
def ranks(request):
    """``ranks(fn, **init)``: fn(comm) in a rank on each node; what each returned."""

    def run(fn, **init):
        return run_processes(len(NODES), on_nodes, f"numa-{os.getpid()}-{request.node.name[:40]}", fn, init)

    return run


def rows(comm, kind):
    return [row for row in placement(comm) if row.kind == kind]


def messages_and_outboxes(comm):
    """Use all parts of an outbox, the sparse ones too, and return where they are placed."""
    x = np.full(N, comm.rank, np.float32)
    comm.all_reduce(x)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.sendrecv(x, right, np.empty_like(x), left)
    comm.barrier()
    return rows(comm, "outbox"), comm._engine.config.pair_queue_limit(comm.size)


def test_outboxes_with_their_pair_queues_are_on_the_nodes_of_their_ranks(ranks):
    for found, pair_queue_nbytes in ranks(messages_and_outboxes):
        assert [row.home for row in found] == NODES
        for row in found:
            assert set(row.nodes) == {row.home}
            assert row.nodes[row.home] > 8 * 131072
            assert row.away_nbytes == 0
        assert max(sum(row.nodes.values()) for row in found) > 8 * 131072 + pair_queue_nbytes


def unprivileged(comm):
    """The same without privilege, as user ``nobody``: a communicator made then has segments of that user."""
    os.setgid(65534)
    os.setuid(65534)
    with comm.dup() as anew:
        return messages_and_outboxes(anew)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="runs without privilege already")
def test_placement_needs_no_privilege(ranks):
    for found in ranks(unprivileged):
        assert [(row.home, set(row.nodes)) for row in found] == [(node, {node}) for node in NODES]


def arrays_and_results(comm):
    array = comm.empty(N, np.float32)
    result = comm.shared_result(N, np.float32, root=comm.size - 1)
    array += comm.rank
    comm.all_reduce(array, result)
    assert (result == sum(range(comm.size))).all()
    comm.barrier()
    return rows(comm, "array"), rows(comm, "result")


def test_arrays_are_on_their_owners_nodes_and_slices_of_results_on_their_writers(ranks):
    for arrays, slices in ranks(arrays_and_results):
        assert [(row.rank, row.home, set(row.nodes)) for row in arrays] == [(r, n, {n}) for r, n in enumerate(NODES)]
        assert [(row.rank, row.home) for row in slices] == list(enumerate(NODES))
        for row in slices:
            # Slices end at a cache line, placement at a page: a slice's first page may begin with the one before.
            assert row.away_nbytes <= os.sysconf("SC_PAGESIZE")
            assert row.nodes[row.home] >= 4 * N // len(NODES) - 2 * os.sysconf("SC_PAGESIZE")
        assert sum(sum(row.nodes.values()) for row in slices) >= 4 * N


def outboxes(comm):
    return rows(comm, "outbox")


def test_interleaved_memory_is_spread_evenly(ranks):
    for found in ranks(outboxes, placement="interleave"):
        for row in found:
            assert set(row.nodes) == set(memory_nodes())
            assert max(row.nodes.values()) - min(row.nodes.values()) <= 2 * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("node", [NODES[0], NODES[-1]])
def test_memory_bound_to_a_node_is_there_except_the_header(ranks, node):
    for found in ranks(outboxes, placement=f"bind:{node}"):
        for row in found:
            assert set(row.nodes) <= {node, row.home}
            assert sum(nbytes for n, nbytes in row.nodes.items() if n != node) <= os.sysconf("SC_PAGESIZE")


def test_local_memory_is_where_it_was_touched_first(ranks):
    for found in ranks(outboxes, placement="local"):
        assert [set(row.nodes) for row in found] == [{node} for node in NODES]


def move_and_look(comm):
    """The first rank moves to the last one's node; all inspect the placement, then it makes new memory."""
    comm.barrier()
    before = rows(comm, "outbox")
    if comm.rank == 0:
        os.sched_setaffinity(0, HOMES[NODES[-1]])
    comm.barrier()
    after = rows(comm, "outbox")
    array = comm.empty(N, np.float32)
    with comm.dup() as anew:
        new = rows(anew, "outbox")
        comm.barrier()
    return before, after, rows(comm, "array"), new, float(array.sum())


def test_all_ranks_notice_a_rank_that_moves_and_its_new_memory_is_on_its_new_node(ranks):
    last = NODES[-1]
    for before, after, arrays, new, _ in ranks(move_and_look):
        assert before[0].home == NODES[0]
        assert before[0].away_nbytes == 0
        assert after[0].home == last
        assert after[0].away_nbytes == sum(after[0].nodes.values()) == sum(before[0].nodes.values())
        assert [row.away_nbytes for row in after[1:]] == [0] * (len(NODES) - 1)
        assert set(arrays[0].nodes) == set(new[0].nodes) == {last}


def domains(comm):
    return comm._engine.thresholds.domains


def test_ranks_know_their_nodes_and_distances(ranks):
    found = ranks(domains)
    assert len({*found}) == 1
    assert found[0].nodes == tuple(range(len(NODES)))
    assert [found[0].distance(r, r) for r in range(len(NODES))] == [10] * len(NODES)
    assert all(found[0].distance(0, r) > 10 for r in range(1, len(NODES)))
    assert found[0].distances == tuple(node.distances for node in discover().nodes)


def two_on_a_node(rank, session, hierarchical_nbytes):
    """Two consecutive ranks on each node; sums of three sizes, the plans they took, and their digest."""
    import shmring

    size = 2 * len(NODES)
    os.sched_setaffinity(0, HOMES[NODES[rank // 2]])
    settings = {"hierarchical_nbytes": hierarchical_nbytes, "eager_nbytes": 0, "nearness": 0}
    with shmring.init(rank=rank, size=size, session=session, **settings) as comm:
        digest = hashlib.sha256()
        for n in (1000, 100_003, N):
            rng = np.random.default_rng([n, rank])
            x = (rng.standard_normal(n) * 10.0 ** rng.integers(-20, 20, n)).astype(np.float32)
            expected = np.zeros(n, np.float32)
            for r, part in enumerate(comm.all_gather(x)):  # in rank order
                expected = part.copy() if r == 0 else expected + part
            comm.all_reduce(x)
            assert (x.view(np.uint32) == expected.view(np.uint32)).all()
            digest.update(x.tobytes())
        ways = {row["algorithm"] for row in comm.stats()["programs"] if row["kind"] == "all_reduce"}
        return digest.hexdigest(), ways, comm._engine.thresholds.levels


def test_hierarchical_and_flat_plans_give_the_same_bits():
    def run(hierarchical_nbytes):
        session = f"numa-{os.getpid()}-bits-{hierarchical_nbytes}"
        return run_processes(2 * len(NODES), two_on_a_node, session, hierarchical_nbytes, timeout=200)

    nested, flat = run(0), run(1 << 40)
    assert len({digest for digest, _, _ in nested + flat}) == 1
    assert all("hierarchical" in way for _, ways, _ in nested for way in ways)
    assert not any("hierarchical" in way for _, ways, _ in flat for way in ways)
    assert {levels for _, _, levels in nested} == {(tuple(r // 2 for r in range(2 * len(NODES))),)}


def test_a_program_with_a_memory_policy_of_its_own_keeps_it(ranks):
    for found in ranks(under_a_policy):
        assert [set(row.nodes) for row in found] == [{NODES[0]}] * len(NODES)


def under_a_policy(comm):
    import ctypes
    import platform

    number = {"x86_64": 238, "aarch64": 237}[platform.machine()]  # set_mempolicy
    mask = ctypes.c_ulong(1 << NODES[0])
    assert ctypes.CDLL(None, use_errno=True).syscall(number, 2, ctypes.byref(mask), 8 * ctypes.sizeof(mask)) == 0
    with comm.dup() as anew:
        return rows(anew, "outbox")


BOUND = """
import sys, shmring
from shmring.core.placement.numa import bytes_by_node, current_node
with shmring.init(nearness=0) as comm:
    comm.barrier()
    nodes = bytes_by_node(comm._engine.segments[comm.rank].mapping)
    levels = comm._engine.thresholds.domains.levels
    sys.stdout.write(f"{comm.rank} {current_node()} {sorted(nodes)} {levels}\\n")
    comm.barrier()
"""


def test_ranks_bound_by_shmring_run_fill_the_nodes_in_order_and_their_memory_is_there(tmp_path):
    (tmp_path / "bound.py").write_text(BOUND)
    size = 2 * len(HOMES)
    printed = run_in_launcher(size, "--bind", "numa", tmp_path / "bound.py")
    homes = [node for node in HOMES for _ in range(2)]
    levels = (tuple(r // 2 for r in range(size)),)
    assert sorted(printed.splitlines()) == [f"{r} {homes[r]} [{homes[r]}] {levels}" for r in range(size)]
