"""What watching makes of what it has found, by hand: page, rates, summary and trace of timelines, processes."""

import copy
import io
import json
import time
import types

import numpy as np
import pytest

from shmring.collectives.engine.kinds import kind_and_root
from shmring.collectives.engine.recording import COUNT_OFFSET, FORMAT, HEADER_NBYTES, SUFFIX
from shmring.collectives.observe.account import Standing
from shmring.collectives.plan.kinds import KINDS
from shmring.watch import find, perfetto, processes, prometheus, report, skew
from shmring.watch.find import Group, Job, Machine, Member
from shmring.watch.page import _job, _number, origin_text, page, text
from shmring.watch.processes import Process
from shmring.watch.timeline import RECORD, Timeline, name_of, read

S = 10**9

# ---- the page ----

IDLE = {
    "pid": 101, "own_pid": 101, "processor": 3, "state": "computing", "call": "", "place": "", "last_calls": [],
    "awaits": [], "waiting_s": None, "unchanged_s": 0.0, "keeps": [], "keeps_for_s": None, "in_cycle": False,
    "calls_per_s": None, "bytes_per_s": None, "waiting_share": None,
}  # fmt: skip
RANKS = [
    IDLE | {
        "rank": 0, "last_calls": ["barrier()", "reduce()"], "calls_per_s": 12345.0, "bytes_per_s": 2.5e9,
        "waiting_share": 0.256, "unchanged_s": 0.002,
    },
    IDLE | {
        "rank": 1, "pid": None, "own_pid": 7, "processor": None, "state": "waiting", "call": "all_reduce()",
        "place": "/home/of/train.py:12", "awaits": [2], "waiting_s": 1.5, "calls_per_s": 0.5, "bytes_per_s": 0.0,
        "waiting_share": 1.0,
    },
    IDLE | {"rank": 2, "pid": None, "own_pid": None, "state": "stopped", "keeps": [1], "keeps_for_s": 1.5},
]  # fmt: skip
CHANNEL = {
    "name": "prices",
    "capacity_bytes": 4096,
    "fill": 0.25,
    "waiting": "",
    "messages_per_s": 1e6,
    "bytes_per_s": 0.0,
    "sender": {"pid": 5, "state": "lost", "asleep": False, "messages": 9, "dropped": 2, "waits": 1, "lock_holder": 0},
    "receiver": {"pid": 0, "state": "absent", "asleep": 1, "messages": 3, "dropped": 0, "waits": 4, "lock_holder": 8},
}
FOUND = {
    "uid": 1000,
    "time": 0.0,
    "unreadable": [4, 5],
    "channels": [CHANNEL, CHANNEL | {"fill": 1.0, "waiting": "receiver 8 waits"}],
    "blocks": [{"pid": 9, "nblocks": 2, "nbytes": 8192, "others": (5,)}],
    "jobs": [
        {
            "session": "train",
            "communicators": [
                {
                    "name": "", "size": 3, "complete": True, "failure": "", "barrier_us": 0.3,
                    "nearness": "near", "ranks": RANKS,
                },
                {
                    "name": "tp", "size": 2, "complete": False, "failure": "rank 1 died", "barrier_us": None,
                    "nearness": None, "ranks": [IDLE | {"rank": 0, "in_cycle": True}],
                },
            ],
        }
    ],
}  # fmt: skip
PAGE = """\
job train
 3 ranks, near: a barrier took 0.3 us at the start
   rank      pid  cpu state           for  calls/s     MB/s waits  call
      0      101    3 computing      2 ms    12.3k     2500   26%  - (last: barrier())
      1      (7)    - waiting       1.5 s     0.50        0  100%  all_reduce()  at train.py:12
>     2        -    3 stopped                    -        -        -
    rank 1 ──waits for──> rank 2
    rank 2 keeps rank 1 waiting for 1.5 s: it is stopped
 communicator tp, 2 ranks: ranks are still looking for one another
    broken: rank 1 died
   rank      pid  cpu state           for  calls/s     MB/s waits  call
>     0      101    3 computing                  -        -        -
    rank 0 wait for one another: none of them can go on

channels and queues
  prices
    █████░░░░░░░░░░░░░░░ 25% of 4096 bytes, 1.0M messages/s, 0 MB/s
    sender   5 dead: 9 messages, 2 dropped, 1 waits
    receiver any process, now 8, which has its lock: 3 messages, 4 waits
  prices
    ████████████████████ 100% of 4096 bytes, 1.0M messages/s, 0 MB/s
    sender   5 dead: 9 messages, 2 dropped, 1 waits
    receiver any process, now 8, which has its lock: 3 messages, 4 waits
    receiver 8 waits

blocks
  pid 9: 2 blocks, 8192 bytes, some of them held by 5, too
"""


def test_a_page_has_these_lines():
    lines = page(FOUND)
    assert text(lines[:-2]) + "\n" == PAGE
    (note, style), *_ = lines[-1]
    assert note.endswith("; 2 processes of this user may not be inspected")
    assert style == "faint"
    assert text([[("a", "keeper"), ("b", "")]], colours=True) == "\x1b[1;31ma\x1b[0mb"


def test_a_page_marks_ranks_and_ends_that_keep_others():
    styles = {part: style for line in page(FOUND) for part, style in line}
    assert styles["waiting   "] == styles["    rank 1 ──waits for──> "] == "asleep"
    assert styles["stopped   "] == styles["rank 2"] == "keeper"
    assert styles["computing "] == "keeper"  # of the last one, which is in a cycle
    assert styles["    █████░░░░░░░░░░░░░░░ 25%"] == "keeper"  # its sender is dead, and it is not empty


def test_a_page_of_nothing_has_one_line_and_the_note():
    found = {"uid": 7, "time": 0.0, "jobs": [], "channels": [], "blocks": [], "unreadable": []}
    first, empty, (note,) = page(found)
    assert (first, empty) == ([("no job of uid 7 can be seen from here", "faint")], [])
    assert note[0].endswith("is not readable")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.25, "0.25"),
        (99.5, "99.50"),
        (100.0, "100"),
        (9999.0, "9999"),
        (1e4, "10.0k"),
        (999_900.0, "999.9k"),
        (1e6, "1.0M"),
        (1e9, "1.0G"),
    ],
)
def test_numbers_have_units_from_ten_thousand_on(value, shown):
    assert _number(value) == shown
    assert _number(value and value * 1e6, 1e-6) == shown


# ---- rates ----


def looked(calls=0, nbytes=0, waited_ns=0, waiting_since=0, current="", pid=11):
    header = types.SimpleNamespace(pid=pid, pid_ns=1, start_time=2)
    return types.SimpleNamespace(
        header=header,
        calls=calls,
        nbytes=nbytes,
        waited_ns=waited_ns,
        waiting_since=waiting_since,
        current=current,
        consumed=5,
        published=6,
        last_calls=(),
        barrier_us=0.5,
    )


def watched(monkeypatch, *looks_of_ranks):
    """What a watcher finds: for each look its time and the looks of all ranks; a rank awaits rank 0 if it waits."""
    watcher, found = report.Watcher(), []
    for now_ns, looks in looks_of_ranks:
        members = []
        for rank, look in enumerate(looks):
            awaits = (0,) if look.current else ()
            standing = Standing("waiting" if awaits else "computing", look.current, awaits, look.waiting_since)
            process = Process(10 + rank, 11 + rank, "a.py", "S", 0, 2, cpu_ns=look.calls * 1000)
            members.append(Member(rank, process, look, standing))
        job = Job("job", [Group("", True, members, "")], {members[0].node}, set())
        machine = Machine([job], (), now_ns)
        monkeypatch.setattr(report, "look_at_jobs", lambda *_, machine=machine: machine)
        monkeypatch.setattr(report, "look_at_rings", lambda files: {})
        found.append(watcher.look())
    return [(one["interval_s"], one["jobs"][0]["communicators"][0]) for one in found]


def test_rates_are_those_between_two_looks(monkeypatch):
    idle = looked(pid=1)
    computing = looked(calls=100, nbytes=1000, waited_ns=S, pid=2)
    waiting = looked(calls=300, nbytes=9000, waited_ns=S, waiting_since=11 * S, current="barrier()", pid=2)
    looks = (10 * S, (idle, computing)), (12 * S, (idle, waiting))
    (no_interval, before), (interval, after) = watched(monkeypatch, *looks)
    assert no_interval is None
    assert interval == pytest.approx(2.0)
    rates = ("calls_per_s", "bytes_per_s", "waiting_share", "cpu_share")
    assert [before["ranks"][1][key] for key in rates] == [None] * 4
    one = after["ranks"][1]
    assert one["calls_per_s"] == pytest.approx(100)
    assert one["bytes_per_s"] == pytest.approx(4000)
    assert one["waiting_share"] == pytest.approx(0.5)
    assert one["cpu_share"] == pytest.approx(200_000 / (2 * S))
    assert one["waiting_s"] == pytest.approx(1.0)
    assert one["waited_s"] == pytest.approx(1.0)
    keeper = after["ranks"][0]
    assert keeper["keeps"] == [1]
    assert keeper["keeps_for_s"] == pytest.approx(1.0)
    assert (keeper["waiting_s"], one["keeps"], one["keeps_for_s"]) == (None, [], None)
    assert (after["barrier_us"], after["nearness"]) == (0.5, "far")


def test_a_rank_in_no_call_that_uses_no_processor_is_idle(monkeypatch):
    busy = looked(calls=10**6, pid=2)  # half of a processor, as `watched` has it
    looks = (10 * S, (looked(pid=1), looked(pid=2))), (12 * S, (looked(pid=1), busy))
    (_, before), (_, after) = watched(monkeypatch, *looks)
    assert [one["state"] for one in before["ranks"]] == ["computing"] * 2
    assert [one["state"] for one in after["ranks"]] == ["idle", "computing"]


@pytest.mark.parametrize(("since", "shown"), [(2 * S, 0.0), (2 * S + 1, None), (0, None)])
def test_a_wait_has_a_time_from_when_it_began_to_the_look(monkeypatch, since, shown):
    ((_, group),) = watched(monkeypatch, (2 * S, (looked(), looked(waiting_since=since, current="barrier()"))))
    assert group["ranks"][1]["waiting_s"] == shown


def test_what_does_not_change_is_unchanged_since_the_first_look_that_found_it(monkeypatch):
    same, other = (looked(),), (looked(calls=1),)
    found = watched(monkeypatch, (S, same), (3 * S, same), (6 * S, other), (10 * S, other))
    assert [group["ranks"][0]["unchanged_s"] for _, group in found] == pytest.approx([0, 2, 0, 4])


def test_metrics_have_these_values():
    calls = {"calls": 5, "bytes": 40, "rounds": 6, "waited_s": 0.5}
    group = {"name": "tp", "size": 2, "failure": "rank 1 died", "ranks": [RANKS[1] | calls, RANKS[2] | calls]}
    found = {"uid": 7, "jobs": [{"session": "s", "communicators": [group]}], "channels": [CHANNEL]}
    common = ("session", "communicator", "channel")
    values = {
        (name, tuple(label for key, label in labels.items() if key not in common)): value
        for name, labels, value in prometheus._samples(found)
    }
    for (name, labels), value in {
        ("jobs", ()): 1,
        ("communicator_ranks", ()): 2,
        ("communicator_broken", ()): 1,
        ("rank_calls_total", (1,)): 5,
        ("rank_bytes_total", (1,)): 40,
        ("rank_rounds_total", (1,)): 6,
        ("rank_waited_seconds_total", (1,)): 0.5,
        ("rank_waiting_seconds", (1,)): 1.5,
        ("rank_waiting_seconds", (2,)): 0,
        ("rank_keeps", (1,)): 0,
        ("rank_keeps", (2,)): 1,
        ("rank_state", (2, "stopped")): 1,
        ("channel_fill_ratio", ()): 0.25,
        ("channel_capacity_bytes", ()): 4096,
        ("channel_messages_total", ("sender",)): 9,
        ("channel_messages_total", ("receiver",)): 3,
        ("channel_dropped_total", ("sender",)): 2,
        ("channel_waits_total", ("receiver",)): 4,
        ("channel_end_lost", ("sender",)): 1,
        ("channel_end_lost", ("receiver",)): 0,
    }.items():
        assert values[f"shmring_{name}", labels] == value, name


# ---- timelines ----


def signature(kind, root=-1):
    return next(one.code for one in KINDS[1:] if one.name == kind) << 58 | (root + 1) << 36


def timeline(rank, calls, size=3):
    """Of rows (kind, start, end, and other fields by name)."""
    rows = np.zeros(len(calls), RECORD)
    rows["peer"] = -1
    for row, (kind, start, end, fields) in zip(rows, calls, strict=True):
        row["signature"], row["start_ns"], row["end_ns"] = signature(kind, fields.pop("root", -1)), start, end
        for name, value in fields.items():
            row[name] = value
    facts = {"name": "world", "group": "g", "rank": rank, "size": size, "pid": 100 + rank, "command": "a.py"}
    return Timeline(f"{rank}.timeline", facts, rows, rank)


def of_three():
    """A barrier, a broadcast from rank 1, a gather to rank 2, a message from 0 to 1, a call of rank 2 without end."""
    starts, ends = (1000, 3000, 1500), (3500, 3600, 3700)
    found = []
    for rank in range(3):
        calls = [
            ("barrier", starts[rank], ends[rank], {"number": 1, "algorithm": b"eager"}),
            ("broadcast", 5000 + 100 * rank, 6000, {"number": 2, "root": 1, "nbytes": 64}),
            ("gather", 7000 + rank, 8000 + rank, {"number": 3, "root": 2, "failed": rank == 0}),
        ]
        if rank < 2:
            kind = ("send", "recv")[rank]
            calls.append((kind, 9000 + rank, 9500 + rank, {"peer": 1 - rank, "number": 1}))
        else:
            calls.append(("barrier", 9900, 0, {"number": 4}))
        found.append(timeline(rank, calls))
    found[0].calls["wait_ns"][0], found[0].calls["waited_ns"][0] = 1100, 2000
    return found


def test_a_summary_has_the_late_rank_the_skew_and_the_slowest_calls():
    found = skew.summary(of_three())
    (group,) = found["communicators"]
    assert (group["name"], group["size"], group["ranks_recorded"], group["calls"]) == ("world", 3, 3, 3)
    # Last in the barrier is rank 1, 1500 ns after the later of the others; in the other calls rank 2, by 100 and 1 ns.
    assert [(one["rank"], one["calls"]) for one in group["late"]] == [(1, 1), (2, 2)]
    assert [one["by_s"] for one in group["late"]] == pytest.approx([1500e-9, 101e-9])
    assert [one["most_s"] for one in group["late"]] == pytest.approx([1500e-9, 100e-9])
    assert group["skew_s"] == pytest.approx((2000 + 0 + 1500 + 200 + 100 + 2 + 1) * 1e-9)
    total = 2500 + 600 + 2200 + 1000 + 900 + 800 + 3000
    assert group["moving_s"] == pytest.approx(total * 1e-9 - group["skew_s"])
    slowest = group["slowest"]
    assert [one["number"] for one in slowest] == [1, 3, 2]
    assert [(one["last_rank"], one["algorithm"]) for one in slowest] == [(1, "eager"), (2, ""), (2, "")]
    assert [one["took_s"] for one in slowest] == pytest.approx([2700e-9, 1002e-9, 1000e-9])
    assert [one["late_by_s"] for one in slowest] == pytest.approx([1500e-9, 1e-9, 100e-9])
    assert found["lost_records"] == 3
    assert [(one["rank"], one["call"]) for one in found["unfinished"]] == [(2, "barrier()")]
    assert "of its ranks" not in skew.text(found)


def test_a_summary_of_some_ranks_or_of_one_has_no_skew():
    found = skew.summary(of_three()[:2])
    assert "only 2 of its ranks have a timeline" in skew.text(found)
    (group,) = found["communicators"]
    assert (group["calls"], group["late"], group["slowest"], group["skew_s"]) == (0, [], [], 0.0)
    (group,) = skew.summary(of_three()[1:2])["communicators"]
    assert (group["ranks_recorded"], group["calls"]) == (1, 0)
    (alone,) = skew.summary([timeline(0, [("barrier", 1, 2, {"number": 1})], size=1)])["communicators"]
    assert (alone["calls"], alone["late"], alone["moving_s"]) == (1, [], 0.0)


def test_a_trace_has_every_call_its_wait_and_arrows_in_the_direction_of_data():
    timelines, file = of_three(), io.StringIO()
    count = perfetto.write(timelines, file)
    events = json.loads(file.getvalue())["traceEvents"]
    assert len(events) == count
    slices = [one for one in events if one["ph"] == "X" and one["pid"] == 100]
    assert [(one["name"], one["ts"], one["dur"], one["cat"]) for one in slices] == [
        (name_of(signature("barrier")), 0.0, 2.5, "collective"),
        ("waits", 0.1, 2.0, "collective"),
        (name_of(signature("broadcast", 1)), 4.0, 1.0, "collective"),
        (name_of(signature("gather", 2)), 6.0, 1.0, "collective"),
        (name_of(signature("send")), 8.0, 0.5, "message"),
    ]
    assert slices[0]["args"] == {"bytes": 0, "number": 1, "algorithm": "eager"}
    assert slices[3]["args"] == {"bytes": 0, "number": 3, "failed": True}
    *_, received = (one for one in events if one["ph"] == "X" and one["pid"] == 101)
    assert received["cat"] == "message"  # its peer is rank 0
    assert [(one["pid"], one["ts"]) for one in events if one["ph"] == "B"] == [(102, 8.9)]
    leaves = {one["id"]: one for one in events if one["ph"] == "s"}
    arrows = [
        (leaves[one["id"]]["pid"] - 100, one["pid"] - 100, leaves[one["id"]]["ts"], one["ts"])
        for one in events
        if one["ph"] == "f"
    ]
    assert arrows == [
        (1, 0, 2.0, 2.5),
        (1, 2, 2.0, 2.7),  # the barrier: from rank 1, which came last
        (1, 0, 4.1, 5.0),
        (1, 2, 4.1, 5.0),  # from the root of the broadcast
        (0, 2, 6.0, 7.002),
        (1, 2, 6.001, 7.002),  # to the root of the gather
        (0, 1, 8.0, 8.501),  # the message
    ]
    names = [(one["name"], one["args"]) for one in events if one["ph"] == "M" and one["pid"] == 101]
    assert ("process_name", {"name": "rank 1 (pid 101) a.py"}) in names
    assert ("process_sort_index", {"sort_index": 1}) in names
    assert ("thread_name", {"name": "world"}) in names


@pytest.mark.parametrize("root", [0, 1, 2])
def test_arrows_go_to_the_root_and_from_it_whatever_its_rank(root):
    calls = [(kind, 1, 5, {"number": n, "root": root}) for n, kind in enumerate(("gather", "broadcast"), 1)]
    flows = perfetto._collective_flows([timeline(rank, copy.deepcopy(calls)) for rank in range(3)])
    others = [rank for rank in range(3) if rank != root]
    assert [flow[:2] for flow in flows] == [(r, root) for r in others] + [(root, r) for r in others]


def file_of(path, numbers, capacity, count):
    """A timeline whose records differ in their numbers."""
    facts = {
        "format": FORMAT,
        "name": "world",
        "group": "g",
        "boot_id": "b",
        "command": "a.py",
        "rank": 0,
        "size": 1,
        "pid": 1,
        "calls": capacity,
        "epoch_ns": 0,
    }
    rows = np.zeros(len(numbers), RECORD)
    rows["number"] = numbers
    header = json.dumps(facts).encode().ljust(COUNT_OFFSET, b"\0")
    path.write_bytes(header + count.to_bytes(HEADER_NBYTES - COUNT_OFFSET, "little") + rows.tobytes())


@pytest.mark.parametrize(
    ("count", "numbers", "lost"), [(2, [1, 2], 0), (3, [1, 2, 3], 0), (4, [2, 3, 1], 1), (6, [1, 2, 3], 3)]
)
def test_records_of_a_full_timeline_begin_with_the_oldest(tmp_path, count, numbers, lost):
    file_of(tmp_path / f"0{SUFFIX}", [1, 2, 3], 3, count)
    (found,) = read(str(tmp_path))
    assert list(found.calls["number"]) == numbers
    assert found.lost == lost


def test_a_timeline_shorter_than_its_header_has_it_is_refused(tmp_path):
    file_of(tmp_path / f"0{SUFFIX}", [1, 2], 3, 2)
    with pytest.raises(ValueError, match="is no timeline of this version"):
        read(str(tmp_path))


def test_every_kind_of_call_has_its_name():
    assert [kind_and_root(signature(one.name))[0] for one in KINDS[1:]] == [*KINDS[1:]]
    assert kind_and_root(0)[0] is kind_and_root(len(KINDS) << 58)[0] is None


# ---- processes ----


def test_a_process_is_read_from_the_kernels_files(tmp_path, monkeypatch):
    fields = {3: "T", 14: "150", 15: "50", 22: "4711", 39: "6"}
    (tmp_path / "12").mkdir()
    stat, status, cmdline = (tmp_path / "12" / name for name in ("stat", "status", "cmdline"))
    stat.write_text("12 (a) b) " + " ".join(fields.get(number, "0") for number in range(3, 53)))
    status.write_text("Name:\ta\nNSpid:\t12\t3\n")
    cmdline.write_text("python\0-c\0" + "x" * 70)
    monkeypatch.setattr(processes, "_PROC", str(tmp_path))
    monkeypatch.setattr(processes.os, "sysconf", {"SC_CLK_TCK": 100}.get)
    found = processes.process(12)
    assert found == Process(12, 3, "python -c " + "x" * 47 + "...", "T", 6, 4711, 2 * S)
    assert len(found.command) == 60
    assert found.is_stopped
    cmdline.write_text("x" * 60)
    status.write_text("Name:\ta\n")
    assert processes.process(12)[1:3] == (12, "x" * 60)
    stat.write_text("12 (a) S 0")
    assert processes.process(12) is None
    assert processes.process(13) is None


def test_a_job_has_the_pids_of_all_its_communicators():
    members = [
        Member(rank, Process(pid, pid, "", "S", 0, 0, 0) if pid else None, None, Standing(""))
        for rank, pid in enumerate((5, None, 7))
    ]
    groups = [Group("", True, members[:2], ""), Group("b", True, members[1:], "")]
    assert find.Job("job", groups, set(), set()).pids == {5, 7}
    assert [one.node for one in members] == [("unseen", 0), ("unseen", 1), ("unseen", 2)]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["/usr/bin/python3.11", "-u", "/home/ada/train.py", "--epochs", "3"], "train.py"),
        (["python", "-m", "package.train", "x"], "package.train"),
        (["python", "-m", "shmring.jax", "train.py"], "train.py"),
        (["python", "-m", "shmring.jax", "-m", "train"], "train"),
        (["python3", "-c", "print()"], "python -c"),
        (["python3"], "python"),
        (["/opt/solver", "--fast"], "solver"),
    ],
)
def test_a_program_has_the_name_of_its_script_or_module(words, program):
    assert processes._program(words) == program


def test_a_job_is_shown_with_its_program_user_and_start():
    started = time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))
    job = {"session": "s", "communicators": [], "program": "train.py", "user": "ada", "started": started}
    title = "".join(part for part, _ in _job(job)[0])
    assert title == "job s: train.py of ada, started 2026-01-02 03:04"
    now = time.time()
    today = origin_text({**job, "started": now})
    assert today == f": train.py of ada, started {time.strftime('%H:%M', time.localtime(now))}"
    assert origin_text({**job, "program": ""}) == ""
