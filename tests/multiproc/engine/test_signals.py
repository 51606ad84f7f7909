"""The end of the interpreter, fork and exec with a communicator at hand."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.children import in_child, status_of
from support.emulation import needs_marks
from support.harness import PATIENCE, report, start_ranks

import shmring
from shmring.errors import BrokenError, PeerLostError

# ---- exec ------------------------------------------------------------------------------------------------------------


def become_another_program(comm):
    if comm.rank == 1:
        report("going")
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])
    with pytest.raises(PeerLostError) as caught:
        comm.barrier()
    assert caught.value.rank == 1
    report("noticed")
    with comm.shrink() as group:
        assert group.size == 2
        group.barrier()


@needs_marks
def test_a_rank_that_becomes_another_program_is_lost_though_its_process_lives():
    gang = start_ranks(3, become_another_program)
    gang.wait_for("noticed", [0, 2])
    os.kill(gang.pids[1], 0)  # it does live
    for outcome in gang.survivors_of(1):
        assert outcome.ok, outcome


# ---- the end of the interpreter --------------------------------------------------------------------------------------

ENDS = {
    "daemon thread in collectives": """
import threading
def call():
    while True:
        comm.barrier()
threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)
""",
    "daemon thread in a receive": """
import threading
threading.Thread(target=comm.recv, args=(np.ones(3), 1), daemon=True).start()
while "asleep in recv" not in comm._engine.account():
    time.sleep(0.01)
""",
    "daemon thread that calls for ever": """
import threading
def call():
    while True:
        comm.send(np.ones(3), 0)
        comm.recv(np.ones(3), 0)
threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)
""",
    "nothing closed": "keep = [comm, comm.__class__]; keep.append(keep)",
    "uncaught exception": "raise LookupError('on purpose')",
    "sys.exit": "sys.exit(0)",
    "forked child that ends as programs end": """
import os
if (pid := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
time.sleep(0.1)
""",
}

PROGRAM = """
import sys, time
import numpy as np
import shmring
from shmring.core.base import lifecycle
lifecycle.LAST_WORDS_S = 30     # a thread whose call is ended has time to print its error on any machine
comm = shmring.init()
if comm.rank == 0:
{end}
else:
    try:
        while True:
            comm.barrier()
            time.sleep(0.01)
    except shmring.BrokenError as error:
        print(type(error).__name__, error)
"""

PEER_ERRORS = {
    "daemon thread in a receive": ("AbortedError", "closed while another thread was in a call"),
    "uncaught exception": ("AbortedError", "LookupError: on purpose"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_in_every_state_and_its_peers_notice(tmp_path, end):
    script = tmp_path / "end.py"
    script.write_text(PROGRAM.format(end="\n".join("    " + line for line in ENDS[end].splitlines())))
    ranks = {
        "RANK": "{}",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "{}",
        "LOCAL_WORLD_SIZE": "2",
        "SHMRING_SESSION": f"end{os.getpid()}{len(end)}",
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **{key: value.format(rank) for key, value in ranks.items()}},
        )
        for rank in range(2)
    ]
    try:
        (_, errors), (output, more) = [process.communicate(timeout=60 * PATIENCE) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    kind, text = PEER_ERRORS.get(end, ("Error", "rank 0"))
    assert kind in output, (output, errors, more)
    assert text in output
    assert more == ""
    assert running[0].returncode == (end == "uncaught exception"), errors
    assert "Fatal" not in errors
    if end != "uncaught exception":
        # Of a daemon thread, whole though the process ends: an interpreter that ends a thread in the middle
        # of its output aborts.
        assert not errors or errors.splitlines()[-1].startswith("shmring.errors."), errors


def fork_and_leave(comm):
    x, other = np.ones(3), 1 - comm.rank

    def child():
        for call, *args in ((comm.all_reduce, x), (comm.send, x, other), (comm.split, 0), (comm.empty, 3)):
            with pytest.raises(shmring.ClosedError, match="parent"):
                call(*args)
        comm.close()

    pid = in_child(child)
    # The parent dies first: the child, which maps the same memory, must not keep it alive for the others.
    if comm.rank == 1:
        os.kill(pid, signal.SIGSTOP)
        report(f"child {pid}")
        os.kill(os.getpid(), signal.SIGKILL)
    assert status_of(pid) == 0
    with pytest.raises(BrokenError) as caught:
        while True:
            comm.barrier()
    assert type(caught.value) is PeerLostError
    assert caught.value.rank == 1
    report("noticed")


def test_a_death_is_noticed_though_a_child_of_the_dead_lives_on():
    gang = start_ranks(2, fork_and_leave)
    try:
        gang.wait_for("noticed", [0])
    finally:
        for point in gang.reports(1):  # the child holds the rank's end of the socket, too
            os.kill(int(point.split()[1]), signal.SIGKILL)
    outcomes = gang.outcomes()
    assert outcomes[1].signal == signal.SIGKILL, outcomes[1]
    assert outcomes[0].ok, outcomes[0]
