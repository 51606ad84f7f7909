"""``shmring bench`` as its users start it, and with competitors that misbehave in every way."""

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import harness
from support.command import status_of_command
from support.harness import PATIENCE
from support.programs import run_shmring

import shmring
from shmring.bench import competitors, metrics, processes, runner
from shmring.bench.competitors import WORKER, Competitor, RankLayout
from shmring.bench.processes import CompetitorProcesses
from shmring.bench.runner import Settings, run
from shmring.bootstrap.environment import rank_variables
from shmring.watch.find import look_at_jobs


def bench(*args):
    """The report of ``shmring bench ARGS``, in which only the ranks of this Python take part."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHMRING_BENCH_")}
    return json.loads(run_shmring("bench", *args, "--json", "-", env=env).stdout)


def test_every_way_of_ours_and_pipes_are_timed_with_and_without_rewriting_verified_and_recorded(tmp_path):
    options = ("--cycles", "3", "--slice", "1", "--rewrite", "--shared", "--share", "--plan", "--peers", "pipes")
    report = bench("--sizes", "8,256Ki", *options, "--trace", str(tmp_path))  # standard output has the report only
    names = [one["name"] for one in report["competitors"] if one["name"] != "torch-shmring"]  # where torch is installed
    assert names == ["shmring", "shared", "share", "plan", "pipes"]
    assert [row["nbytes"] for row in report["rows"]] == [8, 256 << 10]
    for row in report["rows"]:
        assert row["best_peer"] == "pipes"
        assert row["ratio"] > 0
        assert len(row["copy_us"]) == 3
        for result in row["results"].values():
            assert result["problem"] is None
            assert result["verified"] is True
            assert len(result["us"]) == len(result["rewrite_us"]) == 3
            assert 0 < result["min_us"] <= result["q1_us"] <= result["median_us"] <= result["q3_us"]
        for name in ("shmring", "shared", "share"):
            assert row["results"][name]["statement"] == "comm.all_reduce(x)"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    called = {event["name"] for event in events if event["ph"] == "X"}
    assert {"all_reduce(sum, float32 x 2)", "all_reduce(sum, float32 x 65536)"} <= called
    assert len({event["pid"] for event in events}) == 2 * sum(one["is_ours"] for one in report["competitors"])
    again = run_shmring("bench", "--trace", str(tmp_path), status=2)
    assert "has timelines already" in again.stderr


def test_the_report_is_a_page_of_tables(tmp_path):
    file = tmp_path / "machine.md"
    options = ("--cycles", "3", "--slice", "1", "--peers", "pipes", "--share")
    bench("--op", "broadcast,barrier", "--sizes", "8,4Ki", *options, "--report", str(file))
    text = file.read_text()
    assert text.startswith("### ")
    if "\nFar, " not in text:
        assert "| call | 8 B | 4 KiB |" in text
    else:  # a table for each placement, as the processors were moved meanwhile
        heads = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| call | ")]
        assert {size.removesuffix(" |") for head in heads for size in head} >= {"8 B", "4 KiB"}
    for name in ("broadcast", "broadcast, share", "barrier"):
        assert f"| {name} | " in text
    assert " p, **" in text


def test_every_collective_is_verified_for_an_odd_number_of_ranks():
    report = bench(
        "-n", "3", "--op", "all", "--sizes", "192Ki", "--cycles", "1", "--slice", "1", "--share", "--peers", "none"
    )
    assert [row["op"] for row in report["rows"]] == list(metrics.OPS)
    assert all(
        result.get("verified") or (name == "share" and row["op"] in ("ping_pong", "barrier"))
        for row in report["rows"]
        for name, result in row["results"].items()
    )


@pytest.mark.torch
def test_gloo_takes_part_where_torch_is():
    pytest.importorskip("torch")
    report = bench(
        "--sizes", "8,64Ki", "--cycles", "2", "--slice", "1", "--peers", "gloo", "--op", "all_reduce,barrier"
    )
    assert all(row["results"]["gloo"]["verified"] for row in report["rows"])


def test_the_table_and_the_list_are_printed(capsys):
    assert status_of_command("bench", "--list") == 0
    assert f"shmring          shmring {shmring.__version__}" in capsys.readouterr().out.splitlines()
    options = ("--cycles", "1", "--slice", "1", "--peers", "none", "--long")
    assert status_of_command("bench", "--op", "barrier", *options) == 0
    assert "barrier, 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--op", "all_rduce"],
        ["--sizes", "8Ti"],
        ["--peers", "unknown"],
        ["--bind", "4095,4094"],
        ["--python", "x=/nowhere/python"],
        ["--seconds", "0"],
        ["-n", "0"],
    ],
)
def test_wrong_arguments_are_refused(wrong, capsys):
    assert status_of_command("bench", *wrong) == 2
    error = capsys.readouterr().err
    assert wrong[1] in error or "must be at least 1" in error


# A rank that misbehaves in a way that its first argument names, behind the worker's own doors.
ROGUE = """
import mmap, os, runpy, sys, time, types
how, worker, address = sys.argv[1:]
if how == "never comes":
    time.sleep(1000)
if how == "leaves":
    sys.exit("it would rather not")
runpy.run_path(worker + "/__main__.py", run_name="loader")["load"]()
from shmring_bench_worker import backend, rank

def call(x):
    global calls
    calls += 1
    if how == "raises":
        raise RuntimeError("out of order")
    is_timed = calls > 5  # the first are checks; of the others there may be no more than ten
    if how == "hangs" or (how == "hangs later" and is_timed and rank_of_mine == 0):
        time.sleep(1000)
    if how == "dies" and is_timed and rank_of_mine == 1:
        os._exit(7)
    if how == "stops" and is_timed:
        os.kill(os.getpid(), 19)

class Backend(backend.Backend):
    calls = {"all_reduce": "call(x)"}
    def __init__(self, task, line, rank):
        global rank_of_mine
        super().__init__(task, line, rank)
        rank_of_mine = rank
        self.names = {"call": call}
        self.line = line
        if how != "wrong":
            self.statement = self.cheat
        file = os.open(f"/dev/shm/{address}-{rank}", os.O_CREAT | os.O_RDWR)
        os.ftruncate(file, 4096)
        self.kept = mmap.mmap(file, 4096)
    def cheat(self, problem):
        problem.is_right = lambda: True
        return super().statement(problem)

calls = 0
rogue = types.ModuleType("shmring_bench_worker.rogue")
rogue.Backend = Backend
sys.modules["shmring_bench_worker.rogue"] = rogue
rank.main(address)
"""

REASONS = {
    "wrong": "WRONG answer on rank 0, 1",
    "raises": "RuntimeError: out of order",
    "hangs": "no answer from rank 0, 1",
    "hangs later": "no answer from rank",
    "dies": "rank 1 died",
    "stops": "no answer from rank",
    "leaves": "it would rather not",
    "never comes": "did not connect in time",
}
NEVER_ANSWER = ("hangs", "hangs later", "stops")


def launch_rogue(one, layout, address):
    for rank in range(layout.size):
        variables = rank_variables(rank, layout.size, address)
        yield [sys.executable, "-c", ROGUE, one.name, str(WORKER), address], variables


def rogue(how):
    return Competitor(how, how, sys.executable, launch_rogue, {"backend": "rogue"})


def settings(**changes):
    defaults = {"rows": [("all_reduce", 64)], "dtype": "float32", "seconds": 1.0, "cycles": 3, "slice_s": 0.001,
                "rewrite": False, "patience": 60.0 * PATIENCE}  # fmt: skip
    return Settings(**{**defaults, **changes})


def wait_briefly_for_rogues(monkeypatch):
    """Have the runner wait for what a rogue never does for a second; for everything else as long as it takes."""
    start, ask = CompetitorProcesses.start, CompetitorProcesses.ask

    def brief_start(self, patience):
        start(self, 1.0 if self.competitor.name == "never comes" else patience)

    def brief_ask(self, patience, **order):
        return ask(self, 1.0 if self.competitor.name in NEVER_ANSWER else patience, **order)

    monkeypatch.setattr(CompetitorProcesses, "start", brief_start)
    monkeypatch.setattr(CompetitorProcesses, "ask", brief_ask)
    monkeypatch.setattr(processes, "GRACE_S", 0.5)


def test_a_competitor_that_misbehaves_has_a_reason_instead_of_a_time_and_does_not_stop_the_others(monkeypatch):
    wait_briefly_for_rogues(monkeypatch)
    before = harness.shared_names()
    ours = next(one for one in competitors.find({"": sys.executable})[0] if one.name == "pipes")
    rows = []
    run([*map(rogue, REASONS), ours], RankLayout(2, None, 2), settings(), rows.append, lambda what, done: None)
    results = rows[0].results
    for how, reason in REASONS.items():
        assert reason in results[how].problem
        assert results[how].us == []
        assert results[how].failed
    assert len(results["pipes"].us) == 3
    assert harness.shared_names() - before == set()


def test_a_backend_that_fails_repeatedly_is_left_out():
    rows = []
    repeated = settings(rows=[("all_reduce", 8)] * 5)
    run([rogue("raises")], RankLayout(2, None, 2), repeated, rows.append, lambda what, done: None)
    reasons = [row.results["raises"].problem for row in rows]
    assert reasons[:3] == ["RuntimeError: out of order"] * 3
    assert all(reason.startswith("dropped after 3 failures") for reason in reasons[3:])


def test_nothing_is_left_when_the_benchmark_itself_is_killed(tmp_path):
    mark = secrets.token_hex(8)
    arguments = [sys.executable, "-m", "shmring", "bench", "--sizes", "64", "--seconds", "600", "--peers", "pipes"]
    env = {**os.environ, "SHMRING_TEST_MARK": mark, "TMPDIR": str(tmp_path)}  # what it cannot remove is pytest's
    runner = subprocess.Popen(arguments, env=env, stdout=subprocess.DEVNULL)
    try:
        await_processes(mark, lambda pids: len(pids) >= 7)  # itself, and for three groups 2 ranks
        await_processes(mark, have_met)  # of ranks that are all killed before, names are left
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        await_processes(mark, lambda pids: not pids)
    finally:
        runner.kill()
        runner.wait()


def have_met(pids):
    """Whether two of these processes are the ranks of a communicator, and none waits for ranks of another one."""
    jobs = [job for job in look_at_jobs().jobs if job.pids & set(map(int, pids))]
    return bool(jobs) and all(len(job.pids) == 2 for job in jobs) and not harness.shared_names()


def await_processes(mark, enough, patience=60.0):
    """Wait for the processes that carry ``mark`` in their environment to be ``enough``."""
    deadline = time.monotonic() + patience * PATIENCE
    while not enough(found := marked(mark)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def marked(mark):
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found[entry.name] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return found


def test_channels_are_compared_with_the_standard_library(monkeypatch, tmp_path):
    """Every call of them, its results verified; the death of a sender is an error of a channel and of a pipe alone."""
    monkeypatch.setattr(runner, "IDLE_S", 0.1)
    for name in [name for name in os.environ if name.startswith("SHMRING_BENCH_")]:
        monkeypatch.delenv(name)
    options = ("--cycles", "2", "--slice", "1", "--peers", "mp-queue,mp-pipe", "--json", str(tmp_path / "report"))
    assert status_of_command("bench", "--channels", "--sizes", "256Ki", *options) == 0
    report = json.loads((tmp_path / "report").read_text())
    assert [row["op"] for row in report["rows"]] == list(metrics.CHANNEL_OPS)
    for row in report["rows"]:
        timed = {name for name, result in row["results"].items() if result.get("verified")}
        everyone = {"shmring-channel", "shmring-queue", "mp-queue", "mp-pipe"}
        assert timed == ({"shmring-channel", "mp-pipe"} if row["op"] == "death" else everyone), row
        if row["op"] in ("round_trip", "think"):
            percentiles = row["results"]["shmring-channel"]["percentiles_us"]
            assert 0 < percentiles["p50"] <= percentiles["p99"] <= percentiles["max"]


def test_survivors_of_a_killed_rank_are_timed_with_what_they_saw():
    (row,) = bench("--op", "death", "-n", "3", "--cycles", "2", "--peers", "none")["rows"]
    found = row["results"]["shmring"]
    assert found["seen"].startswith("PeerLostError: ")
    assert len(found["us"]) == 2 * 2
    assert min(found["us"]) > 0


# Starts the ranks, and kills all of them, the first one last, when the last one has ended.
LAUNCHER = """
import os, subprocess, sys
worker, address, size = sys.argv[1:]
command = [sys.executable, worker, "rank", address]
ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(int(size))]
ranks[-1].wait()
for rank in reversed(ranks):
    rank.kill()
"""


def launch_all(one, layout, address):
    yield [sys.executable, "-c", LAUNCHER, str(WORKER), address, str(layout.size)], {}


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_rank_that_waits_for_a_killed_one_differs_from_one_that_its_launcher_ends(is_ended, tmp_path):
    """In pipes rank 0 reads the end of the file, and rank 1 waits for rank 0."""
    pipes = next(one for one in competitors.find({"": sys.executable})[0] if one.name == "pipes")
    launched = dataclasses.replace(pipes, launch=launch_all) if is_ended else pipes
    ranks = CompetitorProcesses(launched, RankLayout(3, None, 2), tmp_path / "pipes")
    try:
        ranks.start(180.0 * PATIENCE)
        ranks.ask(60.0 * PATIENCE, do="prepare", op="death", dtype="float32", nbytes=8000, rewrite=False)
        answers = ranks.kill_last(60.0 * PATIENCE if is_ended else 2.0)
    finally:
        ranks.end()
    if is_ended:
        assert answers[1]["seen"] == "is ended by the launcher"
        assert all(answer["us"] > 0 for answer in answers)
    else:
        assert answers[1] == {"seen": "waits for more than 2 s"}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (["--channels", "-n", "3"], "between two processes"),
        (["--channels", "--op", "all_reduce"], "no call 'all_reduce' of channels"),
        (["--op", "round_trip"], "no call 'round_trip' without --channels"),
    ],
)
def test_calls_of_channels_and_of_ranks_are_kept_apart(wrong, reason, capsys):
    assert status_of_command("bench", *wrong) == 2
    assert reason in capsys.readouterr().err
