"""Explain a job that hangs: what every rank is in and for how long, the ranks it waits for, and its line of Python.

It is one account of each communicator of the job, the one that a `CollectiveTimeoutError` has. The job goes on, or goes
on hanging. The line is that of calls that have waited for a millisecond or more. Of a process without communicators it
is the channels and queues that the process has open, as `shmring top` shows them.
"""

from __future__ import annotations

import argparse
import os

from shmring.channels.inspect import look_at_rings, with_rates
from shmring.collectives.observe.account import account
from shmring.core.memory.open_files import OpenFile, open_files
from shmring.watch.find import Group, Job, look_at_jobs
from shmring.watch.page import channels_lines, origin_text, text
from shmring.watch.report import channel_report, origin

from .arguments import BadArgument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring dump``."""
    parser.add_argument(
        "job", metavar="PID|SESSION", help="a process of the job, or the start of its session as `shmring top` shows it"
    )


def main(args: argparse.Namespace) -> int:
    """Find the job and print its accounts."""
    files = list(open_files())
    jobs = [job for job in look_at_jobs(files).jobs if _is_meant(job, args.job)]
    accounts = [_account(job) for job in jobs] or _channels(files, args.job)
    if not accounts:
        raise BadArgument(f"{args.job!r}: {_reason(args.job)}")
    print("\n\n".join(accounts))
    return 0


def _is_meant(job: Job, wanted: str) -> bool:
    return int(wanted) in job.pids if wanted.isdecimal() else job.session.startswith(wanted)


def _reason(wanted: str) -> str:
    """Why there is no such job."""
    if not wanted.isdecimal():
        return "no job of this user has such a session; `shmring top --once` lists them"
    try:
        owner = os.stat(f"/proc/{wanted}").st_uid
    except OSError:
        return "there is no such process"
    if owner != os.geteuid():
        return f"it belongs to uid {owner}; only that user's `shmring` can read its memory"
    return "this process has no communicator, channel or queue that can be read"


def _channels(files: list[OpenFile], pid: str) -> list[str]:
    rings = look_at_rings(file for file in files if str(file.pid) == pid)
    if not rings:
        return []
    return [text(channels_lines([channel_report(one, False) for one in with_rates(rings, rings, 0.0)]))]


def _account(job: Job) -> str:
    parts = [_group(job, group) for group in job.groups]
    across = {node for group in job.groups for node in {m.node for m in group.members} & (job.keepers | job.cycle)}
    if len(job.groups) > 1 and across:
        pids = sorted({m.process.pid for g in job.groups for m in g.members if m.process and m.node in across})
        verb = "wait for one another" if job.cycle and not job.keepers else "keep the others waiting"
        parts.append(f"over all communicators, processes {', '.join(map(str, pids))} {verb}")
    return "\n".join([f"job {job.session}{origin_text(origin(job))}", *parts])


def _group(job: Job, group: Group) -> str:
    name = f"communicator {group.name}, " if group.name else ""
    failure = f", broken: {group.failure}" if group.failure else ""
    stopped = [m for m in group.members if m.process and m.process.is_stopped]
    notes = [f"rank {m.rank} (pid {m.process.pid}) is stopped by a signal or a debugger" for m in stopped if m.process]
    unseen = [m for m in group.members if m.look is not None and m.process is None]
    notes += [f"rank {m.rank} is process {m.look.header.pid} of another container" for m in unseen if m.look]
    lines = [*account([m.look for m in group.members]).splitlines(), *notes]
    return "\n".join([f"{name}{len(group.members)} ranks{failure}", *(f"  {line}" for line in lines)])
