"""Timelines as trace events, the JSON that Perfetto and Chrome's chrome://tracing read.

Each rank is a process, each of its communicators a thread. A call is a slice, its waiting a slice inside. Flows, which
are drawn as arrows, go from the sender of a message to its receiver; from the root of a collective to the other ranks,
or from them to it; and where there is no root from the rank that began last to the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from shmring.collectives.engine.kinds import kind_and_root
from shmring.watch.skew import whole_calls
from shmring.watch.timeline import Timeline, name_of, together

Event = dict[str, Any]


def write(timelines: list[Timeline], file: TextIO) -> int:
    """Write all events; returns how many. Time 0 is the first call."""
    starts = [int(one.calls["start_ns"].min()) for one in timelines if len(one.calls)]
    base_ns = min(starts, default=0)
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    count = 0
    for event in _events(timelines, base_ns):
        file.write((",\n" if count else "") + json.dumps(event))
        count += 1
    file.write("\n]}\n")
    return count


def _events(timelines: list[Timeline], base_ns: int) -> Iterator[Event]:
    groups = together(timelines)
    threads = {group: number for number, group in enumerate(groups, 1)}
    rows = {one.path: (one.facts["pid"], threads[one.facts["group"]]) for one in timelines}
    named = set()
    for one in timelines:
        pid, thread = rows[one.path]
        if pid not in named:
            named.add(pid)
            yield _name("process_name", pid, 0, f"rank {one.facts['rank']} (pid {pid}) {one.facts['command']}")
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": one.facts["rank"]}}
        yield _name("thread_name", pid, thread, one.facts["name"])
        for call in one.calls:
            yield from _slices(call, pid, thread, base_ns)
    yield from _flows(groups, rows, base_ns)


def _name(what: str, pid: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}


def _us(ns: int, base_ns: int) -> float:
    return (int(ns) - base_ns) / 1e3


def _slices(call: np.void, pid: int, thread: int, base_ns: int) -> Iterator[Event]:
    where = {"pid": pid, "tid": thread, "cat": "message" if call["peer"] >= 0 else "collective"}
    name = name_of(call["signature"])
    if not call["end_ns"]:  # it never ended
        yield {"ph": "B", "name": name, "ts": _us(call["start_ns"], base_ns), **where}
        return
    args = {"bytes": int(call["nbytes"]), "number": int(call["number"])}
    if call["algorithm"]:
        args["algorithm"] = call["algorithm"].decode("ascii", "replace")
    if call["line"]:
        args["line"] = call["line"].decode("utf-8", "replace")
    if call["failed"]:
        args["failed"] = True
    took_us = max(0.0, _us(call["end_ns"], int(call["start_ns"])))
    yield {"ph": "X", "name": name, "ts": _us(call["start_ns"], base_ns), "dur": took_us, "args": args, **where}
    if call["wait_ns"]:
        most_us = _us(call["end_ns"], int(call["wait_ns"]))
        waited_us = min(int(call["waited_ns"]) / 1e3 or most_us, most_us)
        yield {"ph": "X", "name": "waits", "ts": _us(call["wait_ns"], base_ns), "dur": max(0.0, waited_us), **where}


def _flows(groups: dict[str, list[Timeline]], rows: dict[str, tuple[int, int]], base_ns: int) -> Iterator[Event]:
    number = 0
    for group in groups.values():
        by_rank = {one.facts["rank"]: rows[one.path] for one in group}
        for source, target, start_ns, end_ns in [*_collective_flows(group), *_message_flows(group)]:
            if not {source, target} <= by_rank.keys() or end_ns < start_ns:
                continue  # garbage; or a rank of a scan that needed nothing of the last one
            number += 1
            shared = {"cat": "flow", "name": "data", "id": number}
            (pid, thread), (to_pid, to_thread) = by_rank[source], by_rank[target]
            yield {"ph": "s", "ts": _us(start_ns, base_ns), "pid": pid, "tid": thread, **shared}
            yield {"ph": "f", "bp": "e", "ts": _us(end_ns, base_ns), "pid": to_pid, "tid": to_thread, **shared}


Flow = tuple[int, int, int, int]  # from rank, to rank, leaves at, arrives at


def _collective_flows(group: list[Timeline]) -> Iterator[Flow]:
    for call in whole_calls(group):
        kind, root = kind_and_root(int(call[0]["signature"]))
        has_root = kind is not None and kind.has_root and 0 <= root < len(call)
        ranks = range(len(call))
        if has_root and kind.outputs == "root":
            yield from ((r, root, int(call[r]["start_ns"]), int(call[root]["end_ns"])) for r in ranks if r != root)
            continue
        source = root if has_root else int(call["start_ns"].argmax())
        yield from ((source, r, int(call[source]["start_ns"]), int(call[r]["end_ns"])) for r in ranks if r != source)


def _message_flows(group: list[Timeline]) -> Iterator[Flow]:
    """From each send to the receive of the same number between the same ranks."""
    sends, receives = {}, {}
    for one in group:
        rank = one.facts["rank"]
        for call in one.calls[one.calls["peer"] >= 0]:
            kind, _ = kind_and_root(int(call["signature"]))
            peer, number = int(call["peer"]), int(call["number"])
            if kind is not None and kind.name == "send":
                sends[rank, peer, number] = int(call["start_ns"])
            else:
                receives[peer, rank, number] = int(call["end_ns"])
    for key in sends.keys() & receives.keys():
        yield key[0], key[1], sends[key], receives[key]
