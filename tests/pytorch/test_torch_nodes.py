"""Groups whose ranks do not share a machine: with forced boundaries all must hold that holds within one node."""

import atexit
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.children import in_child, status_of
from support.programs import run_in_launcher
from support.torch_checks import training
from support.torch_groups import on_group, run_group, start_group

import shmring

LEAVING = Path(__file__).with_name("leaving.py")

# By rank: those with the same letter are on the same node.
LAYOUTS = ("aabb", "aaab", "abcc", "abab")


@on_group(4, labels="abab")
def test_a_group_has_its_nodes_and_one_within_a_node_has_no_network(rank):
    layout = "abab"
    comm = dist.group.WORLD.comm
    assert comm.nodes == [[r for r, node in enumerate(layout) if node == one] for one in dict.fromkeys(layout)]
    near = dist.new_group([r for r, node in enumerate(layout) if node == layout[0]])
    if layout[rank] == layout[0]:
        assert near.comm.nodes is None


@on_group(2, labels="ab")
def test_the_thread_of_gloo_does_not_take_the_processor_from_one_that_holds_its_lock(rank):
    dist.all_reduce(torch.ones(1))
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert os.SCHED_BATCH in [os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")]


# ---- bits ------------------------------------------------------------------------------------------------------------


OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


def near_bits(rank, seed):
    """Random numbers with many exponents: near the result of the same ranks as one node, and equal on all ranks."""
    n = dist.get_world_size()
    os.environ["SHMRING_NODE"] = ""
    one_node = dist.new_group()
    assert one_node.comm.nodes is None
    torch.manual_seed(seed + rank)

    def compare(call, x, what, is_equal=True):
        found, wanted = x.clone(), x.clone()
        for out, group in ((found, dist.group.WORLD), (wanted, one_node)):
            call(out, group)
        tolerance = 4 * n * torch.finfo(x.dtype).eps
        assert torch.allclose(found, wanted, tolerance, tolerance, equal_nan=True), (x.dtype, len(x), what)
        if is_equal:
            theirs = [torch.empty_like(found) for _ in range(n)]
            dist.all_gather(theirs, found)
            words = torch.int16 if x.itemsize == 2 else torch.int32
            assert all(torch.equal(found[3:].view(words), y[3:].view(words)) for y in theirs), (x.dtype, len(x), what)

    def scatter(x, group):
        rows = x[: len(x) // n * n]
        dist.reduce_scatter_tensor(x[-(len(x) // n) :], rows.clone(), dist.ReduceOp.AVG, group=group)

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        for op in OPS[: 2 if dtype.is_complex else None]:
            for count in (7, 4097, 100_001):
                x = 1 + torch.rand(count, dtype=torch.complex128 if dtype.is_complex else torch.float64)
                x = (x * torch.exp2(torch.randint(-1, 2, (count,)))).to(dtype)
                x[:3] = torch.tensor([float("inf"), float("nan"), -0.0])
                compare(lambda x, group, op=op: dist.all_reduce(x, op, group=group), x, op)
                compare(lambda x, group: dist.reduce(x, n - 1, group=group), x, "reduce", is_equal=False)
                compare(scatter, x, "reduce_scatter", is_equal=False)


@pytest.mark.parametrize("layout", ["ab", *LAYOUTS])
def test_results_are_equal_on_all_ranks_and_near_those_of_one_node(layout, seed):
    run_group(len(layout), near_bits, seed, labels=layout)


def large_moves(rank):
    n = dist.get_world_size()
    for count in (1, 9_999, 1_000_003):
        own = torch.arange(count) + rank
        for root in range(n):
            x = own.clone()
            dist.broadcast(x, root)
            assert torch.equal(x, torch.arange(count) + root)
        outs = [torch.empty_like(own) for _ in range(n)]
        dist.all_gather(outs, own)
        assert all(torch.equal(outs[r], torch.arange(count) + r) for r in range(n))
        outs = [torch.empty(count + 10 * r, dtype=torch.int64) for r in range(n)]
        dist.all_gather(outs, torch.full((count + 10 * rank,), rank))
        assert all(torch.equal(outs[r], torch.full((count + 10 * r,), r)) for r in range(n))
        dist.all_to_all(outs, [torch.full((count + 10 * rank,), rank) for _ in range(n)])
        assert all(torch.equal(outs[r], torch.full((count + 10 * r,), r)) for r in range(n))
        dist.gather(own, outs := [torch.empty_like(own) for _ in range(n)] if rank == n - 1 else None, n - 1)
        assert rank != n - 1 or all(torch.equal(outs[r], torch.arange(count) + r) for r in range(n))
        out = torch.empty_like(own)
        dist.scatter(out, [own + r - rank for r in range(n)] if rank == n - 1 else None, n - 1)
        assert torch.equal(out, own)


@pytest.mark.parametrize("layout", ["ab", *LAYOUTS, "abcabca"])
def test_long_content_arrives_whole(layout):
    run_group(len(layout), large_moves, labels=layout)


# ---- on top ----------------------------------------------------------------------------------------------------------


def test_training_over_nodes_equals_one_process():
    run_group(4, training.ddp, labels="aabb")


# ---- trouble ---------------------------------------------------------------------------------------------------------


LAYOUT = "aabb"


def killed(rank, victim):
    x = torch.ones(100_000)
    with pytest.raises(dist.DistBackendError) as caught:
        for _ in range(100_000):
            dist.all_reduce(x)
            if rank == victim:
                os.kill(os.getpid(), 9)
    assert isinstance(caught.value, shmring.BrokenError)
    if LAYOUT[rank] == LAYOUT[victim]:
        assert isinstance(caught.value, shmring.PeerLostError), caught.value
        assert caught.value.rank == victim, caught.value
    with pytest.raises(shmring.BrokenError):
        dist.barrier()


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_dead_rank_is_an_exception_on_all_nodes(victim):
    outcomes = start_group(4, killed, victim, labels=LAYOUT).outcomes()
    assert outcomes[victim].signal == 9
    for outcome in outcomes:
        assert outcome.rank == victim or outcome.ok, outcome


def killed_while_awaited(rank):
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    with pytest.raises(shmring.BrokenError):
        dist.barrier()


def test_a_death_on_another_node_ends_a_wait():
    outcomes = start_group(3, killed_while_awaited, labels="aba").outcomes()
    assert outcomes[1].signal == 9
    assert outcomes[0].ok, outcomes[0]
    assert outcomes[2].ok, outcomes[2]


@pytest.mark.parametrize("tardy", [0, 1, 2, 3])
@on_group(4, labels=LAYOUT)
def test_a_late_rank_is_an_error_on_all_others(rank, tardy):
    quick = dist.new_group()
    quick.set_timeout(timedelta(seconds=3))
    dist.barrier()
    if rank != tardy:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1), group=quick)
        assert isinstance(caught.value, shmring.BrokenError)
        assert "all_reduce(sum, float32 x 1)" in str(caught.value)
    timed_out = [None] * dist.get_world_size()
    dist.all_gather_object(timed_out, rank != tardy and isinstance(caught.value, shmring.CollectiveTimeoutError))
    assert any(timed_out)


@on_group(4, labels=LAYOUT)
def test_abort_fails_the_calls_on_all_nodes(rank):
    if rank == 1:
        time.sleep(0.2)
        dist.distributed_c10d._abort_process_group()
    else:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1))
        assert isinstance(caught.value, shmring.BrokenError)
        assert rank != 0 or "aborted the group" in str(caught.value)


@on_group(4, labels="aabb")
def test_messages_from_any_rank_keep_each_senders_order(rank):
    n = dist.get_world_size()
    sent = [dist.isend(torch.tensor([k, rank]), r) for k in range(200) for r in range(n) if r != rank]
    seen = []
    for _ in range(200 * (n - 1)):
        x = torch.zeros(2, dtype=torch.int64)
        assert dist.recv(x) == x[1]
        seen.append(x)
    for r in range(n):
        assert [int(x[0]) for x in seen if x[1] == r] == list(range(200)) * (r != rank)
    for work in sent:
        work.wait()


@pytest.mark.parametrize("sender", [0, 1])  # rank 0 keeps the store, which ends with it
def test_a_program_may_end_without_destroying_the_group(sender):
    assert "all have come" in run_in_launcher(2, LEAVING, sender, timeout=300)


@on_group(3, labels="abb")
def test_the_failure_that_ended_a_program_is_raised_on_all_nodes(rank):
    dist.barrier()
    if rank == 1:
        sys.last_value = ValueError("no such thing")  # what printing an uncaught exception does,
        atexit._run_exitfuncs()  # and then the end of the interpreter
    else:
        with pytest.raises(shmring.BrokenError) as caught:
            dist.barrier()
        assert rank == 0 or "rank 1 aborted: exited with ValueError: no such thing" in str(caught.value)


def exchange(rank):
    work = dist.irecv(x := torch.zeros(1), 1 - rank)
    dist.send(torch.ones(1), 1 - rank)
    work.wait()
    assert x == 1


@on_group(2, labels="ab")
def test_a_forked_child_leaves_the_group_to_its_parent(rank):
    exchange(rank)

    def child():
        with pytest.raises(shmring.ClosedError, match="belongs to the parent process"):
            dist.barrier()
        atexit._run_exitfuncs()
        dist.destroy_process_group()

    assert status_of(in_child(child)) == 0
    exchange(rank)
    dist.barrier()


PRETENDING = """
import torch, torch.distributed as dist, shmring.torch
dist.init_process_group("shmring")
x = torch.ones(3)
dist.all_reduce(x)
print(dist.group.WORLD.comm.nodes, x[0].item())
dist.destroy_process_group()
"""


def test_shmring_run_makes_the_ranks_behave_as_if_on_two_machines(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PRETENDING)
    command = [sys.executable, "-m", "shmring", "run", "-n", "4", "--nodes", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[[0, 1], [2, 3]]") == done.stdout.count("4.0") == 4


JOINING = """
from pathlib import Path
import torch, torch.distributed as dist
import shmring.torch

def nthreads():
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")].count("pt_gloo_runloop\\n")

dist.init_process_group("shmring")
dist.all_reduce(torch.ones(1000))
assert nthreads() == 4, nthreads()      # two of each team
dist.destroy_process_group()
assert nthreads() == 0, nthreads()
"""


def test_gloos_threads_are_joined_before_the_interpreter_ends(tmp_path):
    """One that frees the arrays of the last call as the interpreter ends aborts the process."""
    (tmp_path / "joining.py").write_text(JOINING)
    run_in_launcher(2, "--nodes", "2", tmp_path / "joining.py")


LATE = """
import os, sys, time
import torch, torch.distributed as dist
import shmring.torch

dist.init_process_group("shmring")
if dist.get_rank() == 0:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
dist.barrier()

def reduce():
    dist.all_reduce(torch.ones(1000))     # A

while dist.get_rank() == 1 and " in reduce" not in open(sys.argv[1]).read():
    time.sleep(0.01)
reduce()
dist.destroy_process_group()
"""


def test_a_long_wait_for_another_node_is_noted_with_the_line_of_the_program(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    environ = {**os.environ, "SHMRING_WAIT_NOTES": "0.5"}
    run_in_launcher(2, "--nodes", "2", tmp_path / "late.py", tmp_path / "log", env=environ)
    notes = (tmp_path / "log").read_text()
    line = next(number for number, text in enumerate(LATE.splitlines(), 1) if text.endswith("# A"))
    assert re.search(rf"rank 0 of .* waits for ranks of other nodes; called at \S*late.py:{line} in reduce", notes)
