"""A hang explains itself: in the error of a timeout, and on a signal."""

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.harness import PATIENCE, eventually, report, start_ranks
from support.waits import until_waiting

import shmring
from shmring.collectives.bootstrap import dump_signal
from shmring.errors import CollectiveTimeoutError
from shmring.watch.report import Watcher


def time_out(comm, kind):
    comm.barrier()
    if comm.rank == 1:
        report("late")
        time.sleep(1000)
    if comm.rank == 0:
        until_waiting(comm, 2, 3)
    with pytest.raises(CollectiveTimeoutError) as caught:
        if kind == "large":
            comm.all_reduce(np.ones(1 << 18), timeout=0.5 if comm.rank == 0 else 60)  # this line
        else:
            comm.broadcast(np.ones(3), root=1, timeout=0.5 if comm.rank == 0 else 60)  # this line
    report("timed out")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.late, copy.account, str(copy)) == (caught.value.late, caught.value.account, str(caught.value))
    return str(caught.value), caught.value.account


@pytest.mark.parametrize("kind", ["eager", "large"])
def test_a_timeout_has_an_account_of_all_ranks(kind):
    gang = start_ranks(4, time_out, kind)
    gang.wait_for("timed out", ranks=[0, 2, 3])
    gang.kill(1)
    call = "all_reduce(sum, float64 x 262144)" if kind == "large" else "broadcast(float64 x 3, root=1)"
    with open(__file__) as file:
        lines = [number for number, line in enumerate(file, 1) if line.rstrip().endswith("# this line")]
    line = lines[kind == "eager"]
    for rank, outcome in enumerate(gang.outcomes()):
        if rank == 1:
            continue
        text, account = outcome.result
        assert text.endswith(account)
        assert text.splitlines()[0].startswith(f"{gang_name(text)}: timed out in {call} waiting for rank 1")
        assert "rank 1: in no call; its last one was barrier()" in account
        assert f"in {call}, waits for rank 1, called at {__file__}:{line} in time_out" in account
        assert account.splitlines()[-1] == "rank 1 keeps the others waiting"


def gang_name(text):
    return text.partition(":")[0]


HUNG = """
import os, sys, time, numpy, shmring
comm = shmring.init(timeout=None)
comm.barrier()
if comm.rank == 0:
    sys.stdout.write(f"ready {comm.rank} {os.getpid()}\\n")  # in one piece, buffered or not
    sys.stdout.flush()
    comm.all_reduce(numpy.ones(5))  # the line that waits
else:
    sys.stdout.write(f"ready {comm.rank} {os.getpid()}\\n")  # in one piece, buffered or not
    sys.stdout.flush()
    deadline = time.monotonic() + 1000
    while time.monotonic() < deadline:
        pass  # the line that computes
"""


def assert_asleep(pid):
    """The rank in this process sleeps, and the line of its call is stored."""
    jobs = Watcher().look()["jobs"]
    found = [one for job in jobs for group in job["communicators"] for one in group["ranks"] if one["pid"] == pid]
    assert [bool(one["awaits"] and one["place"]) for one in found] == [True]


@pytest.mark.parametrize("target", [0, 1])
def test_a_signal_has_a_rank_write_the_account_and_its_stacks(target, tmp_path):
    script = tmp_path / "hung.py"
    script.write_text(HUNG)
    command = [sys.executable, "-m", "shmring", "run", "-n", "2", str(script)]
    environment = {**os.environ, "SHMRING_DUMP_SIGNAL": "USR1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=(tmp_path / "err").open("w"), text=True
    )
    try:
        pids = {}
        while len(pids) < 2:
            _, rank, pid = process.stdout.readline().split()
            pids[int(rank)] = int(pid)
        eventually(lambda: assert_asleep(pids[0]))
        os.kill(pids[target], signal.SIGUSR1)

        @eventually
        def text():
            written = (tmp_path / "err").read_text()
            assert "keeps the others waiting" in written
            return written

        waiting, computing = (HUNG.splitlines().index(line) + 1 for line in HUNG.splitlines() if "# the line" in line)
        assert "rank 0: asleep in all_reduce(sum, float64 x 5), waits for rank 1" in text or "rank 0: in all_r" in text
        assert f"hung.py:{waiting} in <module>" in text
        assert "rank 1: in no call; its last one was barrier()" in text
        told = computing - 3  # rank 1 may not have left the line that told its pid
        lines = [waiting] if target == 0 else range(told, computing + 1)
        assert any(f'hung.py", line {line} in <module>' in text for line in lines)  # the stack
        assert f"shmring: rank {target} (pid {pids[target]})" in text
    finally:
        process.terminate()
        process.wait(60 * PATIENCE)
        process.stdout.close()


@pytest.mark.parametrize("text", ["KILL", "STOP", "SEGV", "SIGBUS", "ABRT", "nothing", "0", "9999", "-1"])
def test_what_is_no_signal_is_refused(text, monkeypatch):
    monkeypatch.setenv("SHMRING_DUMP_SIGNAL", text)
    with pytest.raises(ValueError, match=f"SHMRING_DUMP_SIGNAL='{text}'"):
        shmring.init(rank=0, size=1, session="none")


def test_a_handler_of_the_program_is_called_as_well(monkeypatch):
    monkeypatch.setenv("SHMRING_DUMP_SIGNAL", "sigusr2")
    monkeypatch.setattr(dump_signal, "_installed", set())
    called = []
    before = signal.signal(signal.SIGUSR2, lambda *_: called.append("here"))
    try:
        with shmring.init(rank=0, size=1, session=f"alone-{os.getpid()}"):
            os.kill(os.getpid(), signal.SIGUSR2)
            while not called:
                time.sleep(0.001)
    finally:
        dump_signal.faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, before)
    assert called == ["here"]
