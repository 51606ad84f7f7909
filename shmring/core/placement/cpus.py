"""The processors that this process may use, and how many of them at a time: affinity masks and control groups.

Pure functions over the roots of sysfs and procfs, given as arguments so that a test can hand in a tree of files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from shmring.core.base.control_groups import groups
from shmring.core.base.sysfs import number_in, parse_list, read, stat_fields


def allowed_processors(procfs: str = "/proc") -> tuple[int, ...]:
    """The processors in the affinity mask of the calling thread, which a cpuset has been taken out of already."""
    for status in ("thread-self/status", "self/status"):
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", read(Path(procfs) / status), re.MULTILINE)
        if match and (processors := parse_list(match[1])):
            return processors
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_processors(sysfs: str = "/sys", procfs: str = "/proc") -> float:
    """The number of processors that this process and its siblings can keep busy: affinity mask and quota together."""
    allowed = float(len(allowed_processors(procfs)))
    quota = processor_quota(sysfs, procfs)
    return allowed if quota is None else min(allowed, quota)


def processor_of(pid: int | None = None, start_time: int = 0, procfs: str = "/proc") -> int:
    """The processor on which a process's first thread runs, or ran last; by default the calling thread. -1: unknown.

    ``start_time``, if not 0, excludes another process with the same number, a later one or in another PID namespace.
    """
    fields = stat_fields("thread-self" if pid is None else pid, procfs)
    if len(fields) < 37 or start_time not in (0, number_in(fields[19])):
        return -1
    return number_in(fields[36])


def processor_quota(sysfs: str = "/sys", procfs: str = "/proc") -> float | None:
    """The tightest control-group quota above this process, in processors; None if there is none."""
    found = groups("cpu", sysfs, procfs)
    quotas = [_quota_v1(at) if version == 1 else _quota_v2(at) for version, at in found]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(directory: Path) -> float | None:
    words = read(directory / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(directory: Path) -> float | None:
    return _ratio(read(directory / "cpu.cfs_quota_us"), read(directory / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Quota by period; None where there is none (``max``, -1) or it makes no sense."""
    numerator, denominator = number_in(quota), number_in(period)
    return numerator / denominator if numerator > 0 and denominator > 0 else None
