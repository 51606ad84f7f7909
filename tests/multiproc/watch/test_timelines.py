"""Timelines: what ranks record, what is merged of it, and what the summary says."""

import json
import os
import re
import threading
import time

import numpy as np
import pytest
from support.capi import IRECV, KINDS, PLAN, SEND, SENDRECV, WAIT, Table, build
from support.command import status_of_command
from support.harness import eventually, report, run_ranks, start_ranks
from support.waits import until_waiting

import shmring
from shmring.dtypes import DTYPE_CODES
from shmring.watch import perfetto, skew
from shmring.watch.timeline import RECORD, name_of, read


def play(comm, directory):
    """Calls of several kinds, with rank 1 late in the third."""
    x, large = np.ones(4), np.ones(1 << 17)
    with comm.trace(directory) as timeline:
        comm.barrier()
        comm.all_reduce(large)
        if comm.rank == 1:  # rank 2 is in the scan; rank 0, which needs no other rank in it, in the call after it
            until_waiting(comm, 0, 2)
            time.sleep(0.2)
        comm.scan(x)
        comm.all_gather(x)
        for tag in (5, 6):
            if comm.rank == 0:
                comm.send(x, 1, tag)
                comm.isend(large, 1, tag).wait()
            elif comm.rank == 1:
                comm.recv(x, 0, tag)
                comm.irecv(large, 0, tag).wait()
        comm.gather(x, root=2)
    comm.barrier()  # not recorded
    return timeline.path


def test_ranks_record_their_calls(tmp_path):
    paths = run_ranks(3, play, str(tmp_path))
    timelines = read(str(tmp_path))
    assert [one.path for one in timelines] == paths
    assert [one.facts["rank"] for one in timelines] == [0, 1, 2]
    for one in timelines:
        calls = one.collectives()
        assert [name_of(call["signature"]) for call in calls] == [
            "barrier()",
            "all_reduce(sum, float64 x 131072)",
            "scan(sum, float64 x 4)",
            "all_gather(float64 x 4)",
            "gather(float64 x 4, root=2)",
        ]
        assert list(calls["nbytes"]) == [0, 1 << 20, 32, 32, 32]
        assert list(np.diff(calls["number"].astype(int))) == [1] * 4
        assert calls["algorithm"][0] == b"eager"
        assert calls["algorithm"][1] != b"eager"
        assert (calls["end_ns"] > calls["start_ns"]).all()
        assert (calls["start_ns"][1:] >= calls["end_ns"][:-1]).all()
        waited = calls[calls["wait_ns"] > 0]
        assert (waited["wait_ns"] >= waited["start_ns"]).all()
        assert (waited["waited_ns"] <= waited["end_ns"] - waited["start_ns"]).all()
    assert timelines[2].collectives()["wait_ns"][2] > 0 < timelines[0].collectives()["wait_ns"][3]  # for rank 1
    sent, received = (one.calls[one.calls["peer"] >= 0] for one in timelines[:2])
    assert [name_of(call["signature"]) for call in sent] == [f"send(dst=1, tag={tag})" for tag in (5, 5, 6, 6)]
    assert [name_of(call["signature"]) for call in received] == [f"recv(src=0, tag={tag})" for tag in (5, 5, 6, 6)]
    assert list(sent["nbytes"]) == list(received["nbytes"]) == [32, 1 << 20] * 2
    assert list(sent["number"]) == list(received["number"])
    assert (np.diff(sent["number"].astype(int)) > 0).all()


def test_the_summary_names_the_late_rank_and_the_merged_file_has_every_call(tmp_path, capsys):
    run_ranks(3, play, str(tmp_path))
    assert status_of_command("trace", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "rank 1 was last in " in printed
    assert "lost to skew" in printed
    assert status_of_command("trace", str(tmp_path), "--json", "-o", str(tmp_path / "merged.json")) == 0
    found = json.loads(capsys.readouterr().out)
    (group,) = found["communicators"]
    assert (group["calls"], group["size"], group["ranks_recorded"]) == (5, 3, 3)
    late = {one["rank"]: one for one in group["late"]}
    assert late[1]["most_s"] >= 0.2
    assert group["late"] == sorted(group["late"], key=lambda one: -one["by_s"])
    slow = {one["call"]: one for one in group["slowest"]}
    assert slow["scan(sum, float64 x 4)"]["last_rank"] == 1
    assert slow["scan(sum, float64 x 4)"]["took_s"] >= 0.2
    line = slow["scan(sum, float64 x 4)"]["line"]
    assert re.search(r"test_timelines\.py:\d+ in play$", line), line
    assert f", at {line}" in printed
    assert group["skew_s"] >= 0.2
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert len(events) == found["events"]
    slices = [event for event in events if event["ph"] == "X" and event["name"] != "waits"]
    assert len(slices) == 3 * 5 + 8
    assert line in {event["args"].get("line") for event in slices if event["name"].startswith("scan")}
    assert min(event["ts"] for event in events if "ts" in event) == 0
    flows = {(kind, event["id"]): event for event in events if (kind := event["ph"]) in "sf"}
    # 2 of each collective, but for the scan, in which rank 0 needs no other rank; and 4 messages
    assert {kind for kind, _ in flows} == {"s", "f"}
    assert len(flows) == 2 * (5 * 2 - 1 + 4)
    for number in range(1, 14):
        start, end = flows["s", number], flows["f", number]
        assert start["ts"] <= end["ts"]
        for event, time_of in ((start, start["ts"]), (end, end["ts"])):  # each end is bound to a slice
            assert any(
                one["pid"] == event["pid"] and one["ts"] - 0.002 <= time_of <= one["ts"] + one["dur"] + 0.002
                for one in slices
            )


def many_calls(comm, directory, n):
    with comm.trace(directory, calls=16) as timeline:
        nbytes = os.stat(timeline.path).st_size
        for _ in range(n):
            comm.barrier()
        return nbytes, os.stat(timeline.path).st_size


def test_a_timeline_is_bounded_and_has_the_last_calls(tmp_path):
    for before, after in run_ranks(2, many_calls, str(tmp_path), 50):
        assert before == after == 4096 + 16 * RECORD.itemsize
    for one in read(str(tmp_path)):
        assert one.lost == 50 - 16
        assert list(np.diff(one.calls["number"].astype(int))) == [1] * 15
        assert (np.diff(one.calls["start_ns"].astype(int)) > 0).all()


def test_a_timeline_has_the_calls_that_the_pages_say(tmp_path):
    with shmring.init(rank=0, size=1, session=str(tmp_path)) as comm:
        with comm.trace(str(tmp_path)) as timeline:
            assert os.stat(timeline.path).st_size == 4096 + 65536 * RECORD.itemsize
        comm.barrier()  # recorded nowhere


def be_killed(comm):
    comm.barrier()
    report("ready")
    if comm.rank == 0:
        comm.all_reduce(np.ones(3), timeout=None)
    time.sleep(1000)


def test_the_environment_variable_records_and_a_killed_rank_leaves_its_timeline(tmp_path, capsys):
    gang = start_ranks(2, be_killed, env={"SHMRING_TRACE": str(tmp_path)})
    gang.wait_for("ready")

    @eventually
    def _():
        assert [1 for one in read_if_any(tmp_path) if (one.calls["end_ns"] == 0).any()]

    gang.survivors_of(0, 1)
    assert status_of_command("trace", str(tmp_path)) == 0
    assert "never ended all_reduce(sum, float64 x 3)" in capsys.readouterr().out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "B"] == ["all_reduce(sum, float64 x 3)"]


def fail_while_traced(comm, directory):
    comm.trace(directory)
    comm.barrier()
    if comm.rank == 0:
        with pytest.raises(shmring.CollectiveTimeoutError):
            comm.barrier(timeout=0.2)
    while not comm.is_broken:
        time.sleep(0.005)


def test_a_call_that_fails_is_recorded_as_failed(tmp_path):
    run_ranks(2, fail_while_traced, str(tmp_path))
    assert [1 for one in read_if_any(tmp_path) if one.calls["failed"].any() and one.calls["end_ns"].any()]


def read_if_any(path):
    try:
        return read(str(path))
    except ValueError:
        return []


# ---- calls through the C table ---------------------------------------------------------------------------------------


def play_by_the_table(comm, directory, path):
    """The calls of threads without the GIL, of each kind, some of them at the same time."""
    table = Table(path)
    handle = table.open(comm)
    x, large, out = np.ones(4), np.ones(1 << 17), np.zeros(4)
    peer = 1 - comm.rank
    with comm.trace(directory):
        table.call("barrier", handle)
        table.call("all_reduce", handle, x=x, out=x, count=4, op="sum")
        table.call("all_reduce", handle, x=large, out=large, count=len(large), op="sum")
        table.call(PLAN, handle, key=KINDS["all_reduce"], times=3, x=large, out=large, count=len(large), op="sum")
        receiving = table.call(IRECV, handle, out=out, count=4, peer=peer, tag=4)
        table.call(SEND, handle, x=x, count=4, peer=peer, tag=4)
        table.call(WAIT, request=receiving.request)
        fields = {"out_count": 4, "out_dtype": DTYPE_CODES["float64"], "source": peer, "out_tag": 5}
        sendrecv = table.job(SENDRECV, handle, x=x, count=4, peer=peer, tag=5, out=out, **fields)
        table.run(sendrecv, table.job("all_reduce", handle, x=large, out=large, count=len(large), op="sum", times=50))
    table.call("barrier", handle)  # not recorded
    table.release(handle)


def test_calls_through_the_c_table_are_recorded(tmp_path):
    library = build(tmp_path)
    run_ranks(2, play_by_the_table, str(tmp_path), library)
    timelines = read(str(tmp_path))
    for one in timelines:
        calls = one.collectives()
        called = [name_of(call["signature"]) for call in calls]
        large = "all_reduce(sum, float64 x 131072)"
        assert called == ["barrier()", "all_reduce(sum, float64 x 4)", large, *[large] * 3, *[large] * 50]
        assert not one.calls["failed"].any()
        assert list(np.diff(calls["number"].astype(int))) == [1] * (len(calls) - 1)
        assert calls["algorithm"][1] == b"eager"
        assert not (calls["algorithm"][2:] == b"eager").any()
        assert (one.calls["end_ns"] >= one.calls["start_ns"]).all()
        peer = 1 - one.facts["rank"]
        messages = sorted(name_of(call["signature"]) for call in one.calls[one.calls["peer"] >= 0])
        assert messages == sorted(f"{way}={peer}, tag={tag})" for way in ("send(dst", "recv(src") for tag in (4, 5))
    with (tmp_path / "merged.json").open("w") as file:
        perfetto.write(timelines, file)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "s" for event in events) == 56 + 4  # each collective, and each message


def stop_while_the_table_calls(comm, directory, path):
    """Timelines are started and stopped while a thread without the GIL makes calls."""
    table = Table(path)
    handle = table.open(comm)
    x, ntraces, enough = np.ones(1 << 10), 0, np.zeros(1)
    job = table.job("all_reduce", handle, x=x, out=x, count=len(x), op="avg", times=200)

    def call():
        while not enough[0]:  # on all ranks
            table.run(job)
            enough[0] = ntraces > 1
            table.call("all_reduce", handle, x=enough, out=enough, count=1, op="min")

    calling = threading.Thread(target=call)
    calling.start()
    while calling.is_alive():
        comm.trace(directory, calls=8).stop()
        ntraces += 1
    calling.join()
    comm.trace(directory, calls=8).stop()
    table.release(handle)
    assert (x == 1).all()


def test_timelines_start_and_stop_while_a_thread_without_the_gil_makes_calls(tmp_path):
    run_ranks(2, stop_while_the_table_calls, str(tmp_path), build(tmp_path))


def start_and_stop(comm, directory):
    with pytest.raises(ValueError, match="calls=0"):
        comm.trace(directory, calls=0)
    with pytest.raises(TypeError):
        comm.trace(7)
    first = comm.trace(directory, calls=4)
    second = comm.trace(directory, calls=4)
    assert first.path != second.path
    first.stop()  # does not stop the second
    comm.barrier()
    second.stop()
    second.stop()
    comm.barrier()
    comm.close()
    with pytest.raises(shmring.ClosedError):
        comm.trace(directory)


def test_timelines_start_and_stop_at_any_time(tmp_path):
    run_ranks(2, start_and_stop, str(tmp_path))
    assert sorted(len(one.calls) for one in read(str(tmp_path))) == [0, 0, 1, 1]
    assert skew.summary(read(str(tmp_path)))["communicators"][0]["size"] == 2


@pytest.mark.parametrize("contents", [b"", b"{}", bytes(5000), b"[" * 5000, b'{"format": 1, "rank": 0}' + bytes(9000)])
def test_what_is_no_timeline_is_refused(tmp_path, contents, capsys):
    (tmp_path / "x.shmring-trace").write_bytes(contents)
    assert status_of_command("trace", str(tmp_path)) == 2
    assert "is no timeline" in capsys.readouterr().err


def test_garbage_in_a_timeline_is_merged_all_the_same(tmp_path, request, capsys):
    run_ranks(2, many_calls, str(tmp_path), 20)
    rng = np.random.default_rng(request.config.shmring_seed)
    for path in tmp_path.glob("*.shmring-trace"):
        data = bytearray(path.read_bytes())
        data[4096:] = rng.bytes(len(data) - 4096)
        path.write_bytes(data)
    assert status_of_command("trace", str(tmp_path)) == 0
    json.loads((tmp_path / "trace.json").read_text())
    capsys.readouterr()


def test_a_directory_without_timelines_is_an_error(tmp_path, capsys):
    assert status_of_command("trace", str(tmp_path)) == 2
    assert "has no timeline" in capsys.readouterr().err
    assert status_of_command("trace", str(tmp_path / "none")) == 2
    assert "is no directory" in capsys.readouterr().err


def test_a_folder_of_timelines_that_cannot_be_written_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("SHMRING_TRACE", "/proc/none/here")
    with pytest.raises(OSError, match="SHMRING_TRACE='/proc/none/here': timelines cannot be recorded there: No such"):
        shmring.init(rank=0, size=1)
