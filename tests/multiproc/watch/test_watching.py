"""Watching from outside: what each rank does, which ranks it waits for, and which one keeps the others."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.children import in_child, status_of
from support.command import status_of_command
from support.harness import PATIENCE, eventually, report, run_ranks, shared_names, start_processes, start_ranks
from support.namespaces import STRANGER, needs_pids, needs_stranger

import shmring
from shmring.collectives.observe.account import account
from shmring.core.memory.names import SHM_DIRECTORY
from shmring.watch.find import look_at_jobs
from shmring.watch.page import page, text
from shmring.watch.report import Watcher

LARGE = 1 << 20  # bytes: by a plan, not by an eager exchange

# By name: what all ranks call but the late one, the call as it is shown, and the ranks of three that wait for rank 2.
CALLS = {
    "all_reduce": (lambda c: c.all_reduce(np.ones(4)), "all_reduce(sum, float64 x 4)", [0, 1]),
    "large all_reduce": (lambda c: c.all_reduce(np.ones(LARGE // 8)), "all_reduce(sum, float64 x 131072)", [0, 1]),
    "barrier": (lambda c: c.barrier(), "barrier()", [0, 1]),
    "broadcast": (lambda c: c.broadcast(np.ones(4), root=2), "broadcast(float64 x 4, root=2)", [0, 1]),
    "large broadcast": (
        lambda c: c.broadcast(np.ones(LARGE // 8), root=2),
        "broadcast(float64 x 131072, root=2)",
        [0, 1],
    ),
    "gather": (
        lambda c: c.gather(np.ones(4, np.int32), root=0) if c.rank == 0 else None,
        "gather(int32 x 4, root=0)",
        [0],
    ),
    "all_to_all": (lambda c: c.all_to_all(np.ones((3, LARGE // 8))), "all_to_all(float64 x 393216)", [0, 1]),
    "scan": (lambda c: c.scan(np.ones(4)), "scan(sum, float64 x 4)", []),
    "exscan of the last": (lambda c: None, "", []),
    "recv": (lambda c: c.recv(np.ones(4), 2, 7), "recv(src=2, tag=7)", [0, 1]),
    "large send": (lambda c: c.send(np.ones(LARGE), 2, 7), "send(dst=2, tag=7)", [0, 1]),
    "all_reduce_many": (
        lambda c: c.all_reduce_many([np.ones(4), np.ones(5)]),
        "all_reduce_many(sum, float64 x 9",
        [0, 1],
    ),
    "objects": (lambda c: c.all_gather_object("x"), "all_gather(uint8", [0, 1]),
}


def be_late(comm, name):
    comm.barrier()
    report("ready")
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
        if name in ("recv", "large send"):
            for peer in (0, 1):
                comm.send(np.ones(4), peer, 7) if name == "recv" else comm.recv(np.ones(LARGE), peer, 7)
            return
    call = CALLS[name][0]
    if name == "gather" and comm.rank:
        comm.gather(np.ones(4, np.int32), root=0)
    else:
        call(comm)


def groups_of(gang, found=None):
    """The communicators of these ranks, as dictionaries, the largest first."""
    jobs = (Watcher().look() if found is None else found)["jobs"]
    return [
        group
        for job in jobs
        if {one["pid"] for group in job["communicators"] for one in group["ranks"]} & set(gang.pids)
        for group in job["communicators"]
    ]


def assert_asleep(ranks):
    """Assert that these ranks sleep, or slept when their place was stored and wait still."""
    assert [one["rank"] for one in ranks if not (one["awaits"] and one["place"])] == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [name for name, (_, _, waiting) in CALLS.items() if waiting])
def test_a_stopped_rank_keeps_those_that_wait_for_it(name):
    _, shown, waiting = CALLS[name]
    began = time.monotonic()
    gang = start_ranks(3, be_late, name)
    gang.wait_for("ready")

    @eventually
    def _():
        found = Watcher().look()
        (group,) = groups_of(gang, found)
        ranks = group["ranks"]
        assert_asleep([ranks[rank] for rank in waiting])
        assert [ranks[rank]["pid"] for rank in (*waiting, 2)] == [gang.pids[rank] for rank in (*waiting, 2)]
        assert ranks[2]["state"] == "stopped"
        assert (ranks[2]["keeps"], ranks[2]["call"]) == (waiting, "")
        for rank in waiting:
            assert ranks[rank]["awaits"] == [2]
            assert ranks[rank]["keeps"] == []
            assert ranks[rank]["call"].startswith(shown)
            assert "test_watching.py" in ranks[rank]["place"]
            assert 0 < ranks[rank]["waiting_s"] < time.monotonic() - began
        drawn = text(page(found))
        assert "rank 2 keeps" in drawn
        assert "it is stopped" in drawn

    gang.resume(2)
    gang.results()


def test_a_rank_that_stops_in_the_middle_of_a_call_keeps_the_others(end):
    gang = start_ranks(3, compute, str(end), LARGE)
    gang.wait_for("ready")
    gang.stop(1)

    @eventually
    def _():
        (group,) = groups_of(gang)
        ranks = group["ranks"]
        assert_asleep([ranks[0], ranks[2]])
        assert (ranks[0]["awaits"], ranks[2]["awaits"]) == ([1], [1])
        assert (ranks[1]["state"], ranks[1]["keeps"]) == ("stopped", [0, 2])

    end.touch()
    gang.resume(1)
    gang.results()


def disagree(comm, until):
    comm.barrier()
    with pytest.raises(shmring.MismatchError) as caught:
        comm.all_reduce(np.ones(8 if comm.rank else 9))
    report("disagreed")
    while not os.path.exists(until):
        time.sleep(0.005)
    return str(caught.value)


def test_a_broken_communicator_is_shown_with_the_error_that_its_ranks_raise(end):
    gang = start_ranks(2, disagree, str(end))
    gang.wait_for("disagreed")
    found = Watcher().look()
    (group,) = groups_of(gang, found)
    end.touch()
    assert any(group["failure"] in error for error in gang.results())  # the one that noticed says no more
    assert "ranks disagree: rank " in group["failure"]
    assert f"broken: {group['failure']}" in text(page(found))


def receive_from_each_other(comm):
    if comm.rank == 2:
        comm.send(np.ones(1), 0, 1)
    comm.recv(np.ones(1), (comm.rank + 1) % 2) if comm.rank < 2 else comm.barrier()


def test_ranks_that_wait_for_one_another_are_shown_as_a_cycle():
    gang = start_ranks(3, receive_from_each_other)

    @eventually
    def _():
        found = Watcher().look()
        groups = groups_of(gang, found)
        assert len(groups) == 1
        ranks = groups[0]["ranks"]
        assert_asleep(ranks)
        assert [one["in_cycle"] for one in ranks] == [True, True, False]
        assert [one["awaits"] for one in ranks] == [[1], [0], [0]]  # rank 2 reads the lines of a barrier in order
        assert [one["keeps"] for one in ranks] == [[], [], []]
        assert "ranks 0-1 wait for one another" in text(page(found))

    gang.survivors_of(0, 1, 2)


def be_late_in_a_part(comm):
    part = comm.split(0 if comm.rank > 1 else None)
    if comm.rank == 3:
        report("late")
        os.kill(os.getpid(), signal.SIGSTOP)
    if part is not None:
        part.barrier()
        part.close()
    comm.barrier()


def test_the_graph_goes_over_all_communicators_of_a_job():
    gang = start_ranks(4, be_late_in_a_part)
    gang.wait_for("late", ranks=[3])

    @eventually
    def _():
        groups = groups_of(gang)
        assert len(groups) == 2
        world, part = groups
        assert_asleep(world["ranks"][:2])
        assert [one["awaits"] for one in world["ranks"][:2]] == [[2], [2]]  # the lines of a barrier are read in order
        assert world["ranks"][2]["keeps"] == []  # it waits for rank 3 itself, in the other communicator
        assert [(one["state"], one["keeps"]) for one in part["ranks"]] == [("asleep", []), ("stopped", [0])]
        assert [one["pid"] for one in part["ranks"]] == gang.pids[2:]

    gang.resume(3)
    gang.results()


def compute(comm, until, count=256):
    """Calls until a file is there."""
    x = np.ones(count)
    comm.barrier()
    report("ready")
    flag = np.zeros(1)
    while not flag[0]:
        comm.all_reduce(x, op="max")
        flag[0] = os.path.exists(until)
        comm.all_reduce(flag, op="max")


@pytest.fixture
def end():
    """A file whose existence ends `compute`; its directory is open to all users."""
    path = f"{SHM_DIRECTORY}/end-{os.getpid()}-{time.monotonic_ns()}"
    yield Path(path)
    Path(path).unlink(missing_ok=True)


def test_rates_count_calls_bytes_and_waits(end):
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    watcher = Watcher()
    assert groups_of(gang, watcher.look())[0]["ranks"][0]["calls_per_s"] is None

    @eventually  # if the watcher is kept from its processor in the middle of a look, the numbers of that one disagree
    def _():
        first = groups_of(gang, watcher.look())[0]["ranks"]
        time.sleep(0.3)
        second = groups_of(gang, watcher.look())[0]["ranks"]
        for before, now in zip(first, second, strict=True):
            assert now["calls"] > before["calls"]
            calls, nbytes = now["calls"] - before["calls"], now["bytes"] - before["bytes"]
            assert calls // 2 * 2056 - 2056 <= nbytes <= (calls // 2 + 1) * 2056  # 2048 and 8 bytes in turn
            assert now["calls_per_s"] > 0
            assert now["bytes_per_s"] > 0
            assert 0 <= now["waiting_share"] <= 1
            assert now["last_calls"]
            assert set(now["last_calls"]) <= {"all_reduce(max, float64 x 256)", "all_reduce(max, float64 x 1)"}

    end.touch()
    gang.results()


# ---- watchers leave nothing, and hold nothing ------------------------------------------------------------------------


def test_killed_watchers_leave_nothing_and_the_job_goes_on(end):
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    before = shared_names()
    for _ in range(3):
        command = [sys.executable, "-m", "shmring", "top", "--json", "--interval", "0.01"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            found = json.loads(watcher.stdout.readline())
            watcher.kill()
        assert groups_of(gang, found)
    assert shared_names() == before
    end.touch()
    gang.results()


def test_a_watcher_keeps_no_descriptor_and_nothing_of_a_killed_job(end):
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    watcher = Watcher()
    assert groups_of(gang, watcher.look())
    targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and exists(fd)]
    assert not [target for target in targets if "shmring" in target]
    with open("/proc/self/maps") as file:
        assert "shmring-" not in "".join(line for line in file if "/dev/shm" in line)
    gang.survivors_of(0, 1)
    assert groups_of(gang, watcher.look()) == []


def exists(fd):
    return os.path.exists(f"/proc/self/fd/{fd}")


# ---- many ranks, other users, other containers -----------------------------------------------------------------------


def wait_for_the_last(comm):
    if comm.rank == comm.size - 1:
        report("late")
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.barrier()


@pytest.mark.parametrize("n", [16, pytest.param(64, marks=pytest.mark.long)])
def test_of_many_ranks_one_keeps_all_others(n):
    gang = start_ranks(n, wait_for_the_last, init={"slot_nbytes": 4096, "nslots": 4, "pair_queue_nbytes": 4096})
    last = n - 1
    gang.wait_for("late", ranks=[last], timeout=240)

    def is_kept():
        (group,) = groups_of(gang)
        assert_asleep(group["ranks"][:last])
        assert (group["ranks"][last]["state"], group["ranks"][last]["keeps"]) == ("stopped", list(range(last)))
        assert all(one["awaits"] == [last] for one in group["ranks"][:last])
        (job,) = [job for job in look_at_jobs().jobs if job.pids & set(gang.pids)]
        described = account([member.look for member in job.groups[0].members])
        # Equal ranks share a line.
        assert f"ranks 0-{last - 1}: asleep in barrier(), waits for rank {last}" in described
        assert len(described.splitlines()) == 3, described

    eventually(is_kept, 240)
    gang.resume(last)
    gang.results(timeout=240)


def become(uid):
    """Another user, whose processes its other processes may inspect, as if it had started them."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which the change of user has cleared


def work_as_a_stranger(rank, session, until):
    become(STRANGER)
    with shmring.init(rank=rank, size=2, session=session) as comm:
        compute(comm, until)
    return os.geteuid()


def watch_as_a_stranger(_rank):
    become(STRANGER)
    return Watcher().look()


@needs_stranger
def test_an_ordinary_user_sees_its_own_jobs_and_no_others(capsys, end):
    ours = start_ranks(2, compute, str(end))
    theirs = start_processes(2, work_as_a_stranger, "theirs", str(end))
    ours.wait_for("ready")
    theirs.wait_for("ready")
    (found,) = start_processes(1, watch_as_a_stranger).results()
    assert groups_of(theirs, found)
    assert not groups_of(ours, found)
    assert groups_of(ours)
    assert not groups_of(theirs)
    assert status_of_command("dump", str(theirs.pids[0])) == 2
    assert f"belongs to uid {STRANGER}" in capsys.readouterr().err
    end.touch()
    assert theirs.results() == [STRANGER] * 2
    ours.results()


IN_A_CONTAINER = """
import json, sys, time, numpy, shmring
from shmring.watch.report import Watcher
with shmring.init(rank=1, size=2, session=sys.argv[1]) as comm:
    found = Watcher().look()
    comm.barrier()
    comm.barrier()
print(json.dumps(found))
"""


def join_a_container(_rank, session):
    with shmring.init(rank=0, size=2, session=session) as comm:
        comm.barrier()
        found = Watcher().look()
        comm.barrier()
    return found


@needs_pids
def test_ranks_in_another_pid_namespace_are_seen_from_both_sides():
    session = f"containers-{os.getpid()}"
    gang = start_processes(1, join_a_container, session)
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", IN_A_CONTAINER]
    inside = subprocess.run([*command, session], capture_output=True, text=True, timeout=60 * PATIENCE)
    assert inside.returncode == 0, inside.stderr
    (outside,) = gang.results()
    for found in (json.loads(inside.stdout), outside):
        (job,) = [job for job in found["jobs"] if job["session"].startswith("containers_")]
        (group,) = job["communicators"]
        assert [one["state"] in ("unseen", "dead") for one in group["ranks"]] == [False, False]
        assert group["ranks"][0]["own_pid"] == gang.pids[0]
    seen_inside = json.loads(inside.stdout)["jobs"][0]["communicators"][0]["ranks"]
    assert seen_inside[0]["pid"] is None  # the process of rank 0 cannot be seen there, its memory can
    assert seen_inside[1]["pid"] == seen_inside[1]["own_pid"]


LOOK_ONCE = [sys.executable, "-m", "shmring", "top", "--once", "--interval", "0.01"]


@needs_pids
def test_a_container_without_a_rank_of_a_job_sees_nothing_of_it(end):
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *LOOK_ONCE]
    inside = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE)
    end.touch()
    gang.results()
    assert inside.returncode == 0, inside.stderr
    assert "no job of uid" in inside.stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv")
def test_ranks_with_a_capability_that_the_watcher_lacks_are_counted_as_refused(end):
    """The kernel refuses it, as Yama does not: it is a rank that has more rights than the watcher."""
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    command = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", *LOOK_ONCE]
    page, objects = (
        subprocess.run([*command, *more], capture_output=True, text=True, timeout=60 * PATIENCE)
        for more in ([], ["--json"])
    )
    end.touch()
    gang.results()
    assert page.returncode == objects.returncode == 0, page.stderr + objects.stderr
    found = json.loads(objects.stdout)
    assert not groups_of(gang, found)
    assert set(gang.pids) <= set(found["unreadable"])
    assert "processes of this user may not be inspected" in page.stdout


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_dump_explains_a_job_by_pid_and_by_session(capsys):
    gang = start_ranks(3, be_late, "all_reduce")
    gang.wait_for("ready")

    @eventually
    def by_pid():
        assert status_of_command("dump", str(gang.pids[1])) == 0
        by_pid = capsys.readouterr().out
        assert "ranks 0-1: asleep in all_reduce(sum, float64 x 4), waits for rank 2, called at " in by_pid
        assert "rank 2: in no call; its last one was barrier()" in by_pid
        assert f"rank 2 (pid {gang.pids[2]}) is stopped" in by_pid
        assert "rank 2 keeps the others waiting" in by_pid
        return by_pid

    session = by_pid.split()[1]
    assert status_of_command("dump", session[:16]) == 0
    assert session in capsys.readouterr().out
    gang.resume(2)
    gang.results()


HAS_QUEUE = "import shmring; q = shmring.Queue(4); q.put('one'); print('ready', flush=True); input()"


@pytest.mark.parametrize(("program", "status"), [(HAS_QUEUE, 0), ("print('ready', flush=True); input()", 2)])
def test_dump_of_a_process_without_communicators_shows_its_queues(program, status, capsys):
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert status_of_command("dump", str(process.pid)) == status
        process.stdin.close()
    shown = capsys.readouterr()
    if status:
        assert "no communicator, channel or queue" in shown.err
    else:
        assert shown.out.startswith("channels and queues\n")
        assert "any process: 1 messages" in shown.out


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("none-such", "no job of this user has such a session"),
        ("999999999", "no such process"),
    ],
    ids=["session", "process"],
)
def test_dump_of_what_is_no_job_fails_with_the_reason(job, expected, capsys):
    assert status_of_command("dump", str(job)) == 2
    assert expected in capsys.readouterr().err


def test_top_prints_one_page_and_one_object(capsys, end):
    gang = start_ranks(2, compute, str(end))
    gang.wait_for("ready")
    assert status_of_command("top", "--once", "--interval", "0.1") == 0
    printed = capsys.readouterr().out
    assert str(gang.pids[0]) in printed
    assert "the memory of other users' jobs is not readable" in printed
    assert status_of_command("top", "--once", "--json", "--interval", "0.1") == 0
    assert groups_of(gang, json.loads(capsys.readouterr().out))
    end.touch()
    gang.results()


def test_a_channel_is_shown_full_when_its_receiver_died():
    sender, receiver = shmring.channel(1 << 12, when_full="drop_newest")
    reading, wrote = os.pipe()
    pid = in_child(lambda: (receiver.take(), os.write(wrote, b"x"), time.sleep(60 * PATIENCE)))
    os.read(reading, 1)
    for _ in range(1000):
        sender.try_send(b"x" * 100)

    def ours(watcher):
        return next(one for one in watcher.look()["channels"] if one["sender"]["pid"] == os.getpid())

    found = ours(Watcher())
    assert found["fill"] > 0.9
    assert found["sender"]["dropped"] > 900
    assert (found["receiver"]["state"], found["receiver"]["pid"]) == ("here", pid)
    os.kill(pid, signal.SIGKILL)
    assert status_of(pid) == -signal.SIGKILL
    found = ours(Watcher())
    assert found["receiver"]["state"] == "lost"
    drawn = text(page(Watcher().look()), colours=True)
    assert f"{pid} dead" in drawn
    assert "\x1b[1;31m" in drawn
    sender.close()
    os.close(reading)
    os.close(wrote)


def hold_a_lock(queue, how):
    """Waits in ``put`` or ``get``, with the lock of that end."""
    queue.put(b"x" * 3000) if how == "put" else queue.get()


@pytest.mark.parametrize("how", ["put", "get"])
def test_the_process_that_has_the_lock_of_a_queue_is_shown(how):
    queue = shmring.Queue(capacity_nbytes=1 << 12)
    while how == "put" and queue.qsize() < 30:
        queue.put(b"x" * 100)
    pid = in_child(lambda: hold_a_lock(queue, how))
    end, other = ("sender", "receiver") if how == "put" else ("receiver", "sender")

    def ours():
        # Its ends have no holder, and this process has an end of no other queue.
        return [one for one in Watcher().look()["channels"] if one[end]["lock_holder"] == pid]

    deadline = time.monotonic() + 60 * PATIENCE
    while not (found := ours()):
        assert time.monotonic() < deadline
    (one,) = found
    assert one[other]["lock_holder"] is None
    assert f"now {pid}, which has its lock" in text(page(Watcher().look()))
    queue.put(b"y") if how == "get" else [queue.get() for _ in range(31)]
    assert status_of(pid) == 0
    assert not ours()
    queue.close()


def measure(comm, until):
    x = np.ones(1 << 18)
    for _ in range(200):
        comm.all_reduce(x)
    stats = comm.stats()
    report("ready")
    while not os.path.exists(until):
        time.sleep(0.005)
    return stats["barrier_us"], stats["processors"]


def test_the_page_shows_near_or_far(end):
    gang = start_ranks(2, measure, str(end))
    gang.wait_for("ready")
    found = Watcher().look()
    (group,) = groups_of(gang, found)
    drawn = text(page(found))
    end.touch()
    measured = gang.results()
    if measured[0][1] < 2:  # ranks that take turns on one processor are neither near nor far
        assert group["barrier_us"] is None
        return
    slowest = max(us for us, _ in measured)
    assert abs(group["barrier_us"] - slowest) < 0.01
    assert group["nearness"] == ("near" if group["barrier_us"] <= 0.25 else "far")  # in whole nanoseconds
    assert f"{group['nearness']}: a barrier took" in drawn


def test_a_look_lists_descriptors_once(monkeypatch):
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), listdir(path))[1])
    Watcher().look()
    assert listed.count("/proc") == 1
    assert listed.count(f"/proc/{os.getpid()}/fd") == 1


def test_ranks_that_are_watched_all_the_time_give_the_same_results():
    watcher = Watcher()
    gang = start_ranks(3, sum_up, 300)
    while any(job.pids & set(gang.pids) for job in look_at_jobs().jobs):
        watcher.look()
    assert gang.results() == run_ranks(3, sum_up, 300)


def sum_up(comm, n):
    x = np.arange(5, dtype=np.float64) + comm.rank
    for _ in range(n):
        comm.all_reduce(x)
        x /= comm.size
    return x.tolist()
