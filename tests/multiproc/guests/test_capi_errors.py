"""Errors of the C table: code, rank and text are those of the Python exception, and bad arguments send nothing."""

import ctypes
import os
import re
import signal
import time

import numpy as np
import pytest
from support.capi import (
    ABORT,
    ABORTED,
    ANY,
    BAD_ARGUMENT,
    CLOSE,
    CLOSED,
    DUP,
    IRECV,
    ISEND,
    MESSAGE_TIMEOUT,
    MESSAGE_TOO_LONG,
    MISMATCH,
    OPEN,
    PEER_LOST,
    PLAN,
    RECV,
    SEND,
    SENDRECV,
    SPLIT,
    TEST,
    TIMEOUT,
    WAIT,
    Table,
    on_table,
)
from support.children import in_child, status_of
from support.harness import report, start_ranks
from support.installed import ROOT
from support.programs import run_in_launcher
from support.threads import beside
from support.waits import until_waiting

import shmring
from shmring.collectives.plan.kinds import KINDS, ON_ARRAYS
from shmring.dtypes import DTYPES, OPS

SECOND = 10**9


def text_of(exception, call, *args):
    with pytest.raises(exception) as found:
        call(*args)
    return str(found.value)


def lose_a_peer(comm, path, what):
    table = Table(path)
    handle = table.open(comm)
    x = np.ones(100000 if what == "large" else 1)
    if what == "large":
        table.call("all_reduce", handle, x=x, out=x, count=x.size)
    comm.barrier()
    report("ready")
    if comm.rank == 1:
        time.sleep(600)
    what = "all_reduce" if what == "large" else what
    more = {"peer": 1} if what == RECV else {}
    code, rank, text = table.error_of(what, handle, x=x, out=x, count=x.size, **more)
    again = table.error_of("barrier", handle)
    assert again == (code, rank, text)
    assert text == text_of(shmring.PeerLostError, comm.barrier)
    table.release(handle)
    return code, rank, text


@pytest.mark.parametrize("what", ["all_reduce", "large", "barrier", RECV])
def test_a_killed_rank_is_named_by_code_rank_and_text(c_library, what):
    gang = start_ranks(3, lose_a_peer, c_library, what)
    gang.wait_for("ready")
    for outcome in gang.survivors_of(1):
        code, rank, text = outcome.result
        assert (code, rank) == (PEER_LOST, 1)
        assert f"rank 1 (pid {gang.pids[1]}) died" in text


def be_late(comm, path):
    table = Table(path)
    handle = table.open(comm)
    x = np.ones(1)
    if comm.rank == 1:
        comm.recv(x, 0)
        return None
    found = table.error_of("all_reduce", handle, x=x, out=x, count=1, timeout_ns=SECOND // 10)
    assert found[2] == text_of(shmring.CollectiveTimeoutError, comm.barrier)
    return found


def test_a_timeout_names_the_rank_that_is_late(c_library):
    gang = start_ranks(2, be_late, c_library)
    code, rank, text = gang.outcomes()[0].result
    assert (code, rank) == (TIMEOUT, 1)
    assert "timed out in all_reduce(sum, float64 x 1) waiting for rank 1" in text


@on_table(2, init={"timeout": 0.2})
def test_the_default_timeout_is_that_of_the_communicator(comm, table, handle):
    if comm.rank == 0:
        assert table.error_of("barrier", handle)[:2] == (TIMEOUT, 1)
    else:
        with pytest.raises(shmring.CollectiveTimeoutError):
            comm.recv(np.ones(1), 0, timeout=None)


@on_table(2)
def test_ranks_that_disagree(comm, table, handle):
    x = np.ones(4)
    code, _, text = table.error_of("all_reduce", handle, x=x, out=x, count=3 + comm.rank)
    assert text == text_of(shmring.MismatchError, comm.barrier)
    assert code == MISMATCH
    assert "all_reduce(sum, float64 x 3)" in text
    assert "all_reduce(sum, float64 x 4)" in text


@on_table(2)
def test_an_abort_ends_all_ranks(comm, table, handle):
    if comm.rank == 1:
        reason = np.frombuffer(b"no more data\0", np.uint8)
        table.call(ABORT, handle, object=reason.ctypes.data)
    code, rank, text = table.error_of("barrier", handle)
    assert text == text_of(shmring.AbortedError, comm.barrier)
    assert (code, rank) == (ABORTED, 1)
    assert text.endswith("rank 1 aborted: no more data")


@on_table(2)
def test_a_closed_communicator(comm, table, handle):
    x = np.ones(1)
    plan = {"x": x, "out": x, "count": 1}
    table.call(PLAN, handle, **plan)
    comm.barrier()
    table.call(CLOSE, handle)
    assert comm.closed
    wanted = (CLOSED, ANY, text_of(shmring.ClosedError, comm.barrier))
    for what, fields in (
        ("barrier", {}),
        (PLAN, plan),
        (SEND, {**plan, "peer": 0}),
        (RECV, {**plan, "peer": 0}),
        (ISEND, {**plan, "peer": 0}),
        (IRECV, {**plan, "peer": 0}),
        (DUP, {}),
        (SPLIT, {}),
        (ABORT, {}),
    ):
        assert table.error_of(what, handle, **fields) == wanted, what
    assert table.error_of(OPEN, object=id(comm)) == wanted
    table.call(CLOSE, handle)


@on_table(2)
def test_closing_ends_the_call_of_another_thread(comm, table, handle):
    for what, fields in (("barrier", {}), (RECV, {"x": np.ones(1), "out": np.ones(1), "count": 1, "peer": 1})):
        twin = comm.dup()
        other = table.open(twin)
        if comm.rank == 0:
            with beside(table.error_of, what, other, **fields) as waiting:
                until_waiting(twin, 0)
                twin.close()
            code, rank, text = waiting.result
            assert (code, rank) == (ABORTED, 0)
            assert "closed while another thread was in a call" in text
        comm.barrier()
        table.release(other)
        twin.close()


# ---- bad arguments ---------------------------------------------------------------------------------------------------

COLLECTIVES = {name: kind for name, kind in ON_ARRAYS.items() if name != "barrier"}


def bad_calls(comm, x):
    """Calls with one bad argument each, and a part of the text that is expected."""
    good = {"x": x, "out": x[4:], "count": 1, "root": comm.rank, "peer": 0, "dtype": 0, "op": 0, "out_count": 1}
    for what in (*COLLECTIVES, PLAN):
        yield what, good | {"count": -1}, "count=-1"
        yield what, good | {"count": 2**60}, f"count={2**60}"
        yield what, good | {"count": 2**36 + 1}, "elements in one call: at most"
        yield what, good | {"dtype": len(DTYPES)}, f"dtype={len(DTYPES)}"
        yield what, good | {"dtype": -2}, "dtype=-2"
        yield what, good | {"timeout_ns": -3}, "timeout_ns=-3"
        yield what, good | {"out": 0} if what != "broadcast" else good | {"out": 0, "x": 0}, "NULL"
        if what != "broadcast":
            yield what, good | {"x": 0}, "must not be NULL"
    for what in (*(name for name, kind in COLLECTIVES.items() if kind.takes_op), PLAN):
        yield what, good | {"op": len(OPS)}, f"op={len(OPS)}"
        yield what, good | {"op": -1}, "op=-1"
        yield what, good | {"op": "band"}, "op 'band' is not defined on float64"
        yield what, good | {"dtype": -1}, "SHMRING_OPAQUE"
        if what != "reduce_scatter":
            yield what, good | {"out": x.ctypes.data + 8, "count": 2, "dtype": 0}, "overlap"
    for what in (name for name, kind in COLLECTIVES.items() if kind.has_root):
        yield what, good | {"root": comm.size}, f"root={comm.size}: must be a rank, from 0 to {comm.size - 1}"
        yield what, good | {"root": -1}, "root=-1"
    yield "barrier", {"timeout_ns": -3}, "timeout_ns=-3"
    yield PLAN, good | {"key": len(KINDS) + 1}, f"kind={len(KINDS) + 1}"
    for what in (SEND, RECV, SENDRECV, ISEND, IRECV):
        yield what, good | {"count": -1}, "count=-1"
        yield what, good | {"dtype": 99}, "dtype=99"
        yield what, good | {"peer": comm.size}, f"rank {comm.size}: must be from 0 to {comm.size - 1}"
        yield what, good | {"tag": -2}, "tag=-2"
        if what not in (ISEND, IRECV):
            yield what, good | {"timeout_ns": -3}, "timeout_ns=-3"
    yield SEND, good | {"x": 0}, "must not be NULL"
    yield RECV, good | {"out": 0}, "must not be NULL"
    yield SENDRECV, good | {"out": 0}, "must not be NULL"
    yield SENDRECV, good | {"out": x}, "overlap"
    yield SENDRECV, good | {"source": -2}, "rank -2"
    yield WAIT, {"timeout_ns": -3}, "timeout_ns=-3"
    for what in (DUP, SPLIT):  # refused before the ranks make a communicator: with more times than one, without a place
        yield what, {"times": 2}, "made must not be NULL"


@on_table(2)
def test_bad_arguments_send_nothing(comm, table, handle):
    x = np.ones(8)
    rounds = comm.stats()["rounds"]
    calls = list(bad_calls(comm, x))
    assert len(calls) > 100
    for what, fields, wanted in calls:
        found = table.error_of(what, handle, **fields)
        assert found[:2] == (BAD_ARGUMENT, ANY), (what, fields, found)
        assert wanted in found[2], (what, fields, found)
    for what in (*COLLECTIVES, "barrier", SEND, RECV, SENDRECV, ISEND, IRECV, PLAN, DUP, SPLIT, CLOSE, ABORT):
        assert table.error_of(what, None, x=x, out=x, count=1)[0] == BAD_ARGUMENT, what
    table.release(None)
    assert table.error_of(OPEN, object=id("text"))[::2] == (
        BAD_ARGUMENT,
        "comm_open takes a shmring.Communicator, not str",
    )
    assert table.error_of(OPEN, object=None)[0] == BAD_ARGUMENT
    assert comm.stats()["rounds"] == rounds
    assert comm.iprobe() is None
    table.call("all_reduce", handle, x=x, out=x, count=8)
    assert (x == comm.size).all()


# ---- messages --------------------------------------------------------------------------------------------------------


@on_table(2)
def test_errors_of_messages_lose_nothing(comm, table, handle):
    x, out = np.arange(10, dtype=np.int32), np.zeros(10, np.int32)
    if comm.rank == 0:
        comm.send(x, 1)
        comm.barrier()
        return
    fields = {"out": out, "count": 10, "peer": 0}
    found = table.error_of(RECV, handle, **fields, tag=5, timeout_ns=SECOND // 20)
    assert found[0] == MESSAGE_TIMEOUT
    assert found[2] == text_of(shmring.MessageTimeoutError, lambda: comm.recv(out, 0, 5, timeout=0.05))
    found = table.error_of(RECV, handle, **fields | {"count": 9})
    assert found[:2] == (MESSAGE_TOO_LONG, 0)
    assert found[2] == text_of(shmring.MessageTooLongError, lambda: comm.recv(out[:9], 0))
    found = table.error_of(RECV, handle, **fields, dtype=1)
    assert found[0] == BAD_ARGUMENT
    assert found[2] == text_of(TypeError, lambda: comm.recv(out.view(np.float32), 0))
    waiting = table.call(IRECV, handle, **fields | {"peer": ANY}, tag=5)
    table.run(polled := table.job(TEST, request=waiting.request))
    assert not polled.is_over
    assert table.error_of(WAIT, request=waiting.request, timeout_ns=SECOND // 20)[0] == MESSAGE_TIMEOUT
    comm.isend(x * 2, 1, tag=5)
    done = table.call(WAIT, request=waiting.request)
    assert (done.message.source, done.request) == (1, None)
    assert (out == x * 2).all()
    table.call(RECV, handle, **fields)
    assert (out == x).all()
    comm.barrier()
    assert table.call(TEST, request=None).is_over


# ---- processes and threads -------------------------------------------------------------------------------------------


@on_table(2)
def test_a_forked_child_gets_an_error(comm, table, handle):
    x = np.ones(1)

    def child():
        wanted = (CLOSED, ANY, text_of(shmring.ClosedError, comm.barrier))
        assert "fork" in wanted[2]
        assert table.error_of("barrier", handle) == wanted
        assert table.error_of(SEND, handle, x=x, count=1) == wanted
        assert table.error_of(OPEN, object=id(comm)) == wanted

    assert status_of(in_child(child)) == 0
    table.call("all_reduce", handle, x=x, out=x, count=1)
    assert x[0] == comm.size


@on_table(2)
def test_a_child_of_a_fork_in_c_gets_an_error(comm, table, handle):
    """Python does not notice this fork, and its locks may be taken in the child."""
    x = np.ones(1)
    fields = {"x": x, "out": x, "count": 1}
    for what in ("all_reduce", SEND, RECV, ISEND, IRECV, PLAN, CLOSE, ABORT, DUP, SPLIT):
        reading, writing = os.pipe()
        job = table.job(what, handle, **fields)
        assert table.with_gil.run_in_child(ctypes.byref(job), writing) == CLOSED, what
        assert "inherited it through fork" in os.read(reading, 1000).decode()
        os.close(reading)
        os.close(writing)
    table.call("all_reduce", handle, **fields)
    assert x[0] == comm.size


@on_table(2)
def test_a_call_inside_a_call_of_its_own_thread(comm, table, handle, tmp_path):
    found = []
    is_handled = tmp_path / "handled"

    def handle_signal(_number, _frame):
        job = table.job("barrier", handle)
        table.run_here(job)
        found.append((job.code, job.text.decode()))
        is_handled.touch()

    signal.signal(signal.SIGALRM, handle_signal)
    pid = comm.broadcast_object(os.getpid())
    if comm.rank == 1:
        until_waiting(comm, 0)
        os.kill(pid, signal.SIGALRM)
        while not is_handled.exists():
            time.sleep(0.005)
    comm.barrier()
    if comm.rank == 0:
        ((code, text),) = found
        assert code == BAD_ARGUMENT
        assert "a call inside a call of its own thread" in text


# ---- notes of long waits ---------------------------------------------------------------------------------------------

# Rank 1 is late until rank 0 has written its note.
LATE = """
import os, sys, time
from pathlib import Path
import numpy as np
import shmring
from support.capi import RECV, Table
with shmring.init() as comm:
    table, what, log = Table(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    handle, x = table.open(comm), np.ones(3)
    if comm.rank == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    comm.barrier()
    if comm.rank == 1:
        while "waits for" not in log.read_text():
            time.sleep(0.01)
    if what == "collective":
        table.call("all_reduce", handle, x=x, out=x, count=3)
    elif comm.rank == 1:
        comm.send(x, 0)
    else:
        table.call(RECV, handle, out=x, count=3, peer=1)
    table.release(handle)
"""


@pytest.mark.parametrize(
    ("what", "text"),
    [("message", "a message from rank 1"), ("collective", r"rank 1 in all_reduce\(sum, float64 x 3\)")],
)
def test_long_waits_of_threads_without_the_gil_write_notes(tmp_path, c_library, what, text):
    program = tmp_path / "late.py"
    program.write_text(LATE)
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "SHMRING_WAIT_NOTES": "0.05", "PYTHONPATH": path}
    run_in_launcher(2, program, c_library, what, tmp_path / "log", env=environ)
    notes = (tmp_path / "log").read_text()
    assert re.search(rf"process \d+ has waited [\d.]+ s: rank 0 of \w+ waits for {text}; called at", notes)
