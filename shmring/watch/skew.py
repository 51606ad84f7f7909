"""Analysis of a job's timelines: slow calls, late ranks, and time lost in waiting for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmring.collectives.observe.account import duration
from shmring.watch.timeline import RECORD, Timeline, name_of, together

SLOWEST = 10


def summary(timelines: list[Timeline]) -> dict[str, Any]:
    """The summary of all communicators, as plain values; times are seconds.

    A collective counts if all ranks have recorded it. The rank that begins it last is *late*, by the time since half of
    the others had begun. Of the time that each rank spends in it, what lies before that rank begins is lost to skew;
    the rest moves bytes.
    """
    groups = [_group(group) for group in together(timelines).values()]
    return {
        "communicators": groups,
        "lost_records": sum(one.lost for one in timelines),
        "unfinished": [
            {"rank": one.facts["rank"], "communicator": one.facts["name"], "call": name_of(call["signature"])}
            for one in timelines
            for call in one.calls[one.calls["end_ns"] == 0][-1:]
        ],
    }


def whole_calls(group: list[Timeline]) -> np.ndarray:
    """The collectives that all ranks of a communicator have recorded: an array of `RECORD`, calls x ranks."""
    if len({one.facts["rank"] for one in group}) < group[0].facts["size"]:
        return np.empty((0, group[0].facts["size"]), RECORD)
    by_rank = sorted(group, key=lambda one: one.facts["rank"])
    found = [one.collectives() for one in by_rank]
    numbers = found[0]["number"]
    for one in found[1:]:
        numbers = np.intersect1d(numbers, one["number"])
    columns = []
    for one in found:
        unique, first = np.unique(one["number"], return_index=True)
        columns.append(one[first][np.isin(unique, numbers)])
    return np.stack(columns, axis=1) if len(numbers) else np.empty((0, len(found)), RECORD)


def _group(group: list[Timeline]) -> dict[str, Any]:
    facts = group[0].facts
    calls = whole_calls(group)
    found = {"name": facts["name"], "size": facts["size"], "ranks_recorded": len(group), "calls": len(calls)}
    if not len(calls) or facts["size"] < 2:
        return found | {"slowest": [], "late": [], "skew_s": 0.0, "moving_s": 0.0}
    start, end = calls["start_ns"].astype(np.int64), calls["end_ns"].astype(np.int64)
    last = start.argmax(axis=1)
    last_start = start.max(axis=1)
    others = np.sort(start, axis=1)[:, :-1]
    late_by = last_start - others[:, others.shape[1] // 2]
    skew = np.clip(np.minimum(last_start[:, None], end) - start, 0, None)
    moving = np.clip(end - start, 0, None) - skew
    return found | {
        "slowest": _slowest(calls, start, end, last, late_by),
        "late": sorted(
            (
                {
                    "rank": rank,
                    "calls": int((last == rank).sum()),
                    "by_s": float(late_by[last == rank].sum()) * 1e-9,
                    "most_s": float(late_by[last == rank].max()) * 1e-9,
                }
                for rank in range(facts["size"])
                if (last == rank).any()
            ),
            key=lambda one: -one["by_s"],
        ),
        "skew_s": float(skew.sum()) * 1e-9,
        "moving_s": float(moving.sum()) * 1e-9,
    }


def _slowest(calls: np.ndarray, start: np.ndarray, end: np.ndarray, last: np.ndarray, late_by: np.ndarray) -> list:
    took = end.max(axis=1) - start.min(axis=1)
    order = np.argsort(took)[::-1][:SLOWEST]
    return [
        {
            "call": name_of(calls[i, 0]["signature"]),
            "algorithm": calls[i, 0]["algorithm"].decode("ascii", "replace"),
            "number": int(calls[i, 0]["number"]),
            "took_s": float(took[i]) * 1e-9,
            "last_rank": int(last[i]),
            "late_by_s": float(late_by[i]) * 1e-9,
            "line": max(calls[i]["line"], key=len).decode("utf-8", "replace"),
        }
        for i in order
    ]


def text(found: dict[str, Any]) -> str:
    """The summary for people."""
    lines = []
    for group in found["communicators"]:
        lines.append(f"communicator {group['name']}, {group['size']} ranks: {group['calls']} calls that all recorded")
        if group["ranks_recorded"] < group["size"]:
            lines.append(f"  only {group['ranks_recorded']} of its ranks have a timeline")
        lines += _group_lines(group)
    if found["lost_records"]:
        lines.append(f"{found['lost_records']} older calls were overwritten")
    for one in found["unfinished"]:
        lines.append(f"rank {one['rank']} of {one['communicator']} never ended {one['call']}")
    return "\n".join(lines)


def _group_lines(group: dict[str, Any]) -> list[str]:
    total = group["skew_s"] + group["moving_s"]
    if not total:
        return []
    lines = [
        f"  time of all ranks in them: {_text(group['skew_s'])} lost to skew ({group['skew_s'] / total:.0%}), "
        f"{_text(group['moving_s'])} moving bytes"
    ]
    for one in group["late"][:3]:
        share = one["calls"] / group["calls"]
        lines.append(
            f"  rank {one['rank']} was last in {one['calls']} calls ({share:.0%}), "
            f"by {_text(one['by_s'])} in all, {_text(one['most_s'])} at most"
        )
    lines.append("  slowest calls:")
    for one in group["slowest"][:5]:
        how = f", {one['algorithm']}" if one["algorithm"] else ""
        where = f", at {one['line']}" if one["line"] else ""
        lines.append(
            f"    {_text(one['took_s']):>8}  {one['call']}{how}, call {one['number']}: "
            f"rank {one['last_rank']} last, by {_text(one['late_by_s'])}{where}"
        )
    return lines


def _text(seconds: float) -> str:
    return duration(seconds * 1e9)
