"""Which rank a launcher reports: the one that failed of itself, however late its process ends."""

import os
import signal
import sys
import textwrap
import time

import numpy as np
import pytest
from support.programs import run_program

import shmring

# Rank 1 fails, and its process ends half a second later than the others learn of that.
PROGRAM = """
import atexit, os, signal, sys, time
atexit.register(lambda: time.sleep(0.5 * (os.environ["RANK"] == "1")))
import numpy as np
import shmring

def fail():
    how = sys.argv[1]
    if how == "exit":
        raise SystemExit(3)
    if how == "raise":
        raise KeyError("the data of step 7")
    if how == "abort":
        comm.abort("no more data")
        comm.barrier()
    sys.exit(3)

def step():
    comm.all_reduce(np.ones(10))

def wrapped():
    text = ""
    try:
        step()
    except shmring.AbortedError as error:
        text = str(error)
    if text:
        raise RuntimeError("in a callback of C++: " + text)

with shmring.init() as comm:
    step()
    if comm.rank == 1:
        fail()
    wrapped() if comm.rank == 2 else step()
"""


def run_ranks_of(tmp_path, program, *arguments, size, status, options=()):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    return run_program(
        sys.executable, "-m", "shmring", "run", "-n", str(size), *options, path, *arguments, status=status
    ).stderr.splitlines()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("raise", 1), ("abort", 1)])
def test_run_reports_the_rank_that_failed_of_itself(tmp_path, how, status):
    lines = run_ranks_of(tmp_path, PROGRAM, how, size=3, status=status)
    assert lines[-1].startswith("shmring run: rank 1 (pid ")
    assert f"exited with status {status}" in lines[-1]


def test_the_others_print_their_errors_before_they_are_ended(tmp_path):
    # Tagged, each line is whole: two ranks print at once.
    lines = run_ranks_of(tmp_path, PROGRAM, "exit", size=3, status=3, options=["--tag-output"])
    text = "rank 1 aborted: SystemExit: 3"
    assert sum(line.startswith("[0] shmring.errors.AbortedError: ") and line.endswith(text) for line in lines) == 1
    assert (
        sum(line.startswith("[2] RuntimeError: in a callback of C++: ") and line.endswith(text) for line in lines) == 1
    )


LEAVES_EARLY = """
import shmring
comm = shmring.init()
if comm.rank == 0:
    comm.close()
else:
    comm.barrier()
"""


def test_a_failure_that_is_no_ranks_own_has_a_status_of_its_own(tmp_path):
    last = run_ranks_of(tmp_path, LEAVES_EARLY, size=2, status=69)[-1]
    assert last.startswith("shmring run: rank 1 (pid ")
    assert last.endswith("exited with status 69, as a rank that it needed had aborted or closed its communicator")


HANDLED = """
import sys
import shmring
with shmring.init() as comm:
    part = comm.dup()
    try:
        if comm.rank == 0:
            part.abort("enough")
        part.barrier()
    except shmring.AbortedError:
        pass
    if comm.rank == 1:
        raise KeyError("of rank 1 itself")
    comm.barrier()
"""


def test_an_error_that_was_handled_is_not_the_reason_of_a_later_one(tmp_path):
    last = run_ranks_of(tmp_path, HANDLED, size=2, status=1)[-1]
    assert last.startswith("shmring run: rank 1 (pid ")


def test_the_hook_leaves_calls_of_programs_alone(tmp_path):
    program = """
    import sys
    import shmring
    with shmring.init() as comm:
        if comm.rank == 0:
            comm.abort("enough")
        try:
            comm.barrier()
        except shmring.AbortedError as error:
            sys.excepthook(type(error), error, error.__traceback__)      # as a loop of events does
    print("goes on")
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    done = run_program(sys.executable, "-m", "shmring", "run", "-n", "2", path)
    assert done.stdout == "goes on\n" * 2


def abort_and_call(comm):
    if comm.rank == 1:
        comm.abort("no more data")
        time.sleep(0.5)  # until the others have failed
    comm.all_reduce(np.ones(1))


def raise_the_text(comm):
    if comm.rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    text = ""
    try:
        comm.barrier()
    except shmring.PeerLostError as error:
        text = str(error)
    raise RuntimeError(text)


def test_spawn_raises_the_error_of_the_rank_that_failed_of_itself():
    with pytest.raises(shmring.AbortedError, match="no more data") as caught:
        shmring.spawn(abort_and_call, 3, start_method="fork")
    assert "on rank 1:" in str(caught.value.__cause__)
    with pytest.raises(shmring.PeerLostError, match=r"rank 1 \(pid \d+\) was killed"):
        shmring.spawn(raise_the_text, 3, start_method="fork")
