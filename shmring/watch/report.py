"""Jobs as plain values with rates: the JSON of ``shmring top``, from which its pages are drawn, too."""

from __future__ import annotations

import os
import time
from typing import Any

from shmring.channels.inspect import ChannelLook, RingLooks, look_at_rings, with_rates
from shmring.collectives.bootstrap.tuning import are_near
from shmring.collectives.observe.account import ranks_text
from shmring.core.blocks.look import held_blocks
from shmring.core.blocks.pages import TARGET
from shmring.core.memory.open_files import open_files
from shmring.core.placement.topology import discover
from shmring.watch.find import Group, Job, Machine, Member, look_at_jobs
from shmring.watch.processes import program_of, started_at, user_of

NANO = 1e-9
_IDLE_SHARE = 0.05  # of a processor: a rank that uses less, and is in no call, sleeps or waits for something else


class Watcher:
    """Looks again and again, and compares with the look before.

    Keeps numbers only, so that it may end at any time and nothing is left of it.
    """

    def __init__(self) -> None:
        groups = discover().last_level_groups
        self._domains = {processor: i for i, members in enumerate(groups) for processor in members}
        self._before: dict[tuple, Member] = {}
        self._before_ns = 0
        self._rings: RingLooks = {}
        self._unchanged: dict[tuple, tuple[tuple, int]] = {}

    def look(self) -> dict[str, Any]:
        """Look once. Rates are those since the look before, and None in the first one. Does not block."""
        refused: list[int] = []
        found_files = list(open_files(refused, TARGET))
        files = [file for file in found_files if file.target != TARGET]
        machine, rings = look_at_jobs(files, refused), look_at_rings(files)
        elapsed_ns = machine.now_ns - self._before_ns if self._before_ns else 0
        channels = with_rates(self._rings, rings, elapsed_ns * NANO)
        found = {
            "uid": os.geteuid(),
            "time": time.time(),
            "interval_s": elapsed_ns * NANO or None,
            "jobs": [self._job(job, machine, elapsed_ns) for job in machine.jobs],
            "channels": [channel_report(one, elapsed_ns > 0) for one in channels],
            "blocks": [held._asdict() for held in held_blocks(found_files)],
            "unreadable": list(machine.unreadable),
        }
        self._before = {
            _key(job, group, m): m for job in machine.jobs for group in job.groups for m in group.members if m.look
        }
        self._unchanged = {key: one for key, one in self._unchanged.items() if key in self._before}
        self._before_ns, self._rings = machine.now_ns, rings
        return found

    def _job(self, job: Job, machine: Machine, elapsed_ns: int) -> dict[str, Any]:
        return {
            "session": job.session,
            **origin(job),
            "communicators": [
                {
                    "name": group.name,
                    "size": len(group.members),
                    "complete": group.is_complete,
                    "failure": group.failure,
                    **_nearness(group),
                    "ranks": [self._rank(job, group, m, machine.now_ns, elapsed_ns) for m in group.members],
                }
                for group in job.groups
            ],
        }

    def _rank(self, job: Job, group: Group, member: Member, now_ns: int, elapsed_ns: int) -> dict[str, Any]:
        process, look, standing = member.process, member.look, member.standing
        since_ns = now_ns - standing.since_ns if standing.awaits and 0 < standing.since_ns <= now_ns else None
        rates = self._rates(_key(job, group, member), member, now_ns, elapsed_ns)
        kept = [m.standing.since_ns for m in group.members if member.rank in m.standing.awaits and m.standing.since_ns]
        return {
            "rank": member.rank,
            "pid": process.pid if process else None,
            "own_pid": look.header.pid if look else None,
            "command": process.command if process else "",
            "processor": process.processor if process else None,
            "cache_domain": self._domains.get(process.processor) if process else None,
            "process_state": process.state if process else "",
            "state": _state(member, rates["cpu_share"]),
            "call": standing.call,
            "place": standing.place,
            "last_calls": list(look.last_calls) if look else [],
            "awaits": list(standing.awaits),
            "waiting_s": None if since_ns is None else since_ns * NANO,
            "unchanged_s": self._unchanged_for(_key(job, group, member), member, now_ns),
            "keeps": [m.rank for m in group.members if member.rank in m.standing.awaits]
            if member.node in job.keepers
            else [],
            "keeps_for_s": max(0, now_ns - min(kept)) * NANO if kept and member.node in job.keepers else None,
            "in_cycle": member.node in job.cycle,
            "calls": look.calls if look else None,
            "bytes": look.nbytes if look else None,
            "rounds": look.published if look else None,
            "waited_s": look.waited_ns * NANO if look else None,
            **rates,
        }

    def _unchanged_for(self, key: tuple, member: Member, now_ns: int) -> float | None:
        """For how long at least the rank has been in what it is in: since the first look that found it there."""
        if member.look is None:
            return None
        what = (member.look.calls, member.look.current, member.look.consumed, member.standing.call)
        if key not in self._unchanged or self._unchanged[key][0] != what:
            self._unchanged[key] = what, now_ns
        return (now_ns - self._unchanged[key][1]) * NANO

    def _rates(self, key: tuple, member: Member, now_ns: int, elapsed_ns: int) -> dict[str, float | None]:
        before, look = self._before.get(key), member.look
        if before is None or before.look is None or look is None or not elapsed_ns:
            return dict.fromkeys(("calls_per_s", "bytes_per_s", "waiting_share", "cpu_share"))
        elapsed = elapsed_ns * NANO
        waited = _waited(member, now_ns) - _waited(before, self._before_ns)
        cpu = None
        if member.process and before.process and member.process.pid == before.process.pid:
            cpu = (member.process.cpu_ns - before.process.cpu_ns) / elapsed_ns
        return {
            "calls_per_s": max(0, look.calls - before.look.calls) / elapsed,
            "bytes_per_s": max(0, look.nbytes - before.look.nbytes) / elapsed,
            "waiting_share": min(1.0, max(0.0, waited / elapsed_ns)),
            "cpu_share": cpu,
        }


def origin(job: Job) -> dict[str, Any]:
    """The program, user and start of a job, from its first visible process."""
    seen = [member.process for group in job.groups for member in group.members if member.process]
    if not seen:
        return {"program": "", "user": "", "started": None}
    first = min(seen, key=lambda process: process.start_time)
    started = started_at(first.start_time)
    return {"program": program_of(first.pid), "user": user_of(first.pid), "started": started}


def _state(member: Member, cpu_share: float | None) -> str:
    """The state of a rank; what its memory does not show is known of its process."""
    if member.process and member.process.is_stopped:
        return "stopped"
    is_idle = member.standing.state == "computing" and cpu_share is not None and cpu_share < _IDLE_SHARE
    return "idle" if is_idle else member.standing.state


def _key(job: Job, group: Group, member: Member) -> tuple:
    return (job.session, group.name, *member.node)


def _waited(member: Member, at_ns: int) -> int:
    """Time spent in waits for collectives, with the one under way."""
    look, standing = member.look, member.standing
    assert look is not None
    under_way = at_ns - look.waiting_since if standing.awaits and look.current and look.waiting_since else 0
    return look.waited_ns + max(0, under_way)


def _nearness(group: Group) -> dict[str, Any]:
    """The barrier measured when the communicator was made; the slowest rank's time."""
    us = max((member.look.barrier_us for member in group.members if member.look), default=0)
    if not us:
        return {"barrier_us": None, "nearness": None}
    return {"barrier_us": us, "nearness": "near" if are_near(us, len(group.members)) else "far"}


def channel_report(one: ChannelLook, has_rates: bool) -> dict[str, Any]:
    """One ring as numbers and words; without rates they are None."""
    ring = one.ring
    ends = {
        name: {
            "pid": end.pid,
            "lock_holder": holder,
            "state": end.state,
            "asleep": end.asleep,
            "messages": end.messages,
            "dropped": end.dropped,
            "waits": end.waits,
            "sleeps": end.sleeps,
        }
        for name, end, holder in zip(("sender", "receiver"), (ring.producer, ring.consumer), one.holders, strict=True)
    }
    return {
        "name": one.name,
        "capacity_bytes": ring.nslots * ring.slot_nbytes,
        "fill": ring.fill,
        "waiting": one.waiting,
        "messages_per_s": one.messages_per_s if has_rates else None,
        "bytes_per_s": one.nbytes_per_s if has_rates else None,
        **ends,
    }


def edges_text(ranks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The wait-for graph of a communicator: which ranks wait, and for which ones; ranks that wait alike together."""
    shared: dict[tuple[int, ...], list[int]] = {}
    for one in ranks:
        # One that waits for all others that are late does not wait for itself: alike all the same.
        if one["awaits"]:
            shared.setdefault(tuple(one["awaits"]), []).append(one["rank"])
    return [(ranks_text(waiting), ranks_text(awaited)) for awaited, waiting in shared.items()]
