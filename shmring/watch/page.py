"""The pages of ``shmring top``: lines of styled parts, for a terminal with or without colours."""

from __future__ import annotations

import time
from typing import Any

from shmring.collectives.observe.account import duration, ranks_text
from shmring.core.blocks.look import HeldBlocks
from shmring.watch.report import NANO, edges_text

# A line: parts, each a text and its style. Styles are names, which a renderer maps to colours.
Line = list[tuple[str, str]]

STYLES = {"": "", "title": "bold", "faint": "dim", "keeper": "bold red", "asleep": "cyan", "work": "green"}
_STYLES_OF = {"asleep": "asleep", "waiting": "asleep", "idle": "asleep", "in a call": "work"}
_CODES = {"bold": "1", "dim": "2", "bold red": "1;31", "cyan": "36", "green": "32"}

_HEAD = f"  {'rank':>5} {'pid':>8} {'cpu':>4} {'state':<10} {'for':>8} {'calls/s':>8} {'MB/s':>8} {'waits':>5}  call"


def page(found: dict[str, Any]) -> list[Line]:
    """Everything that was found, as lines."""
    lines: list[Line] = []
    for job in found["jobs"]:
        lines += [*_job(job), []]
    if not found["jobs"]:
        lines += [[(f"no job of uid {found['uid']} can be seen from here", "faint")], []]
    if found["channels"]:
        lines += [*channels_lines(found["channels"]), []]
    if found["blocks"]:
        lines += [[("blocks", "title")], *([(f"  {HeldBlocks(**one).describe()}", "")] for one in found["blocks"]), []]
    clock = time.strftime("%H:%M:%S", time.localtime(found["time"]))
    note = f"{clock}  only jobs of uid {found['uid']}: the memory of other users' jobs is not readable"
    if found["unreadable"]:
        note += f"; {len(found['unreadable'])} processes of this user may not be inspected"
    return [*lines, [(note, "faint")]]


def channels_lines(channels: list[dict[str, Any]]) -> list[Line]:
    """Channels and queues, as lines."""
    return [[("channels and queues", "title")], *(line for one in channels for line in _channel(one))]


def text(lines: list[Line], colours: bool = False) -> str:
    """The lines as text, with the escape sequences of terminals if ``colours``."""
    return "\n".join("".join(_coloured(part, style) if colours else part for part, style in line) for line in lines)


def _coloured(part: str, style: str) -> str:
    code = _CODES.get(STYLES[style])
    return f"\x1b[{code}m{part}\x1b[0m" if code else part


def _job(job: dict[str, Any]) -> list[Line]:
    lines: list[Line] = [[(f"job {job['session']}", "title"), (origin_text(job), "")]]
    for group in job["communicators"]:
        name = f"communicator {group['name']}, " if group["name"] else ""
        state = "" if group["complete"] else ": ranks are still looking for one another"
        lines.append([(f" {name}{group['size']} ranks{state or _nearness(group)}", "")])
        if group["failure"]:
            lines.append([(f"    broken: {group['failure']}", "keeper")])
        lines.append([(_HEAD, "faint")])
        lines += [_rank(one) for one in group["ranks"]]
        lines += _graph(group["ranks"])
    return lines


def origin_text(origin: dict[str, Any]) -> str:
    """``: train.py of ada, started 09:41``; with the day if that is not today."""
    if not origin.get("program"):
        return ""
    started = time.localtime(origin["started"])
    form = "%H:%M" if started[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M"
    return f": {origin['program']} of {origin['user']}, started {time.strftime(form, started)}"


def _nearness(group: dict[str, Any]) -> str:
    us = group["barrier_us"]
    return f", {group['nearness']}: a barrier took {_lasts(us * 1e-6)} at the start" if us else ""


def _rank(one: dict[str, Any]) -> Line:
    keeps = one["keeps"] or one["in_cycle"]
    style = "keeper" if keeps else _STYLES_OF.get(one["state"], "")
    lasts = one["waiting_s"] if one["waiting_s"] is not None else one["unchanged_s"]
    rates = (_number(one["calls_per_s"]), _number(one["bytes_per_s"], 1e-6), _percent(one["waiting_share"]))
    pid = one["pid"] if one["pid"] is not None else f"({one['own_pid']})" if one["own_pid"] else "-"
    processor = "-" if one["processor"] is None else one["processor"]
    head = f"{'>' if keeps else ' '} {one['rank']:>5} {pid:>8} {processor:>4} "
    middle = f"{one['state']:<10}"
    tail = f" {_lasts(lasts):>8} {rates[0]:>8} {rates[1]:>8} {rates[2]:>5}  "
    call = one["call"] or ("-" if not one["last_calls"] else f"- (last: {one['last_calls'][0]})")
    call += f"  at {one['place'].rpartition('/')[2]}" if one["place"] else ""
    return [(head, "keeper" if keeps else ""), (middle, style), (tail, ""), (call, "")]


def _graph(ranks: list[dict[str, Any]]) -> list[Line]:
    keepers = {one["rank"]: one for one in ranks if one["keeps"]}
    cycle = [one["rank"] for one in ranks if one["in_cycle"]]
    lines: list[Line] = [
        [(f"    {waiting} ──waits for──> ", "asleep"), (awaited, "keeper")] for waiting, awaited in edges_text(ranks)
    ]
    for rank, one in keepers.items():
        what = "is stopped" if one["state"] == "stopped" else f"is in {one['call']}" if one["call"] else "is in no call"
        long = f" for {_lasts(one['keeps_for_s'])}" if one["keeps_for_s"] is not None else ""
        lines.append([(f"    rank {rank} keeps {ranks_text(one['keeps'])} waiting{long}: it {what}", "keeper")])
    if cycle:
        lines.append([(f"    {ranks_text(cycle)} wait for one another: none of them can go on", "keeper")])
    return lines


def _channel(one: dict[str, Any]) -> list[Line]:
    rate = f"{_number(one['messages_per_s'])} messages/s, {_number(one['bytes_per_s'], 1e-6)} MB/s"
    filled = round(20 * one["fill"])
    bar = "█" * filled + "░" * (20 - filled)
    is_stuck = one["fill"] > 0 and any(one[end]["state"] == "lost" for end in ("sender", "receiver"))
    lines: list[Line] = [
        [(f"  {one['name']}", "")],
        [
            (f"    {bar} {one['fill']:.0%}", "keeper" if is_stuck else "work"),
            (f" of {one['capacity_bytes']} bytes, {rate}", ""),
        ],
    ]
    for end in ("sender", "receiver"):
        lines.append([(f"    {end:<8} {_end(one[end])}", "keeper" if one[end]["state"] == "lost" else "")])
    return [*lines, [(f"    {one['waiting']}", "asleep")]] if one["waiting"] else lines


def _end(end: dict[str, Any]) -> str:
    if end["state"] == "absent" and not (end["messages"] or end["waits"] or end["lock_holder"]):
        return "absent"
    state = {"here": "asleep" if end["asleep"] else "awake", "lost": "dead"}.get(end["state"], end["state"])
    holder = "any process" if end["state"] == "absent" else f"{end['pid']} {state}"  # the former: of a queue
    if end["lock_holder"]:
        holder += f", now {end['lock_holder']}, which has its lock"
    dropped = f", {end['dropped']} dropped" if end["dropped"] else ""
    return f"{holder}: {end['messages']} messages{dropped}, {end['waits']} waits"


def _lasts(seconds: float | None) -> str:
    return "" if seconds is None or seconds <= 0 else duration(seconds / NANO)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _number(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return "-"
    value *= scale
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.2f}"
