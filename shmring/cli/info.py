"""Show versions, kernels, topology, limits, launcher, thresholds, running jobs, blocks, and names left by dead jobs.

The names of live jobs are never removed: their rendezvous is in progress.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
from typing import Any

import numpy

from shmring.channels.inspect import ChannelLook, list_channels
from shmring.collectives.bootstrap.environment import detected, discover
from shmring.collectives.bootstrap.tuning import derive
from shmring.config import configure
from shmring.core.blocks.look import HeldBlocks, held_blocks
from shmring.core.kernel.reduce import kernels
from shmring.core.memory import names
from shmring.core.memory.sweep import Leftover, leftovers
from shmring.core.placement.topology import last_level_nbytes, second_level_nbytes
from shmring.core.placement.topology_file import dump
from shmring.core.placement.topology_file import topology as look_at_machine
from shmring.core.ring.inspect import EndLook
from shmring.version import __version__
from shmring.watch.find import look_at_jobs
from shmring.watch.places import Place, places

from .arguments import duration

_LIMITS = {
    "memory lock": resource.RLIMIT_MEMLOCK,
    "address space": resource.RLIMIT_AS,
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring info``."""
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    parser.add_argument("--topology-json", action="store_true", help="only the topology, as JSON")
    parser.add_argument("--channels", action="store_true", help="only the open channels: waiting ends, fill, rates")
    parser.add_argument(
        "--interval",
        type=duration,
        default=0.5,
        metavar="S",
        help="seconds over which rates are measured (default: 0.5)",
    )
    parser.add_argument("--clean", action="store_true", help="remove the names left by dead jobs")


def main(args: argparse.Namespace) -> int:
    """Collect the facts and print them."""
    if args.channels:
        return _show_channels(list_channels(args.interval), args.json)
    if args.topology_json:
        print(dump(look_at_machine()))
        return 0
    removed = _clean() if args.clean else []
    standing = leftovers()
    machine = look_at_machine()
    ranks, blocks = places(look_at_jobs()), held_blocks()
    facts = {
        "version": {"shmring": __version__, "python": platform.python_version(), "numpy": numpy.__version__},
        "platform": platform.platform(),
        "kernels": kernels(),
        "topology": dataclasses.asdict(machine),
        "limits": {name: _limit(number) for name, number in _LIMITS.items()},
        "thresholds": _thresholds(machine.usable),
        "launcher": _launcher(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("SHMRING_")},
        "ranks": [place._asdict() for place in ranks],
        "blocks": [held._asdict() for held in blocks],
        "leftovers": [leftover._asdict() for leftover in standing],
        "removed": removed,
    }
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        print(_for_people(facts, machine.describe(), ranks, blocks, standing))
    return 0


def _show_channels(looks: list[ChannelLook], as_json: bool) -> int:
    if as_json:
        ends = [{"producer": x.ring.producer._asdict(), "consumer": x.ring.consumer._asdict()} for x in looks]
        rings = [x.ring._asdict() | end | {"fill": x.ring.fill} for x, end in zip(looks, ends, strict=True)]
        facts = [x._asdict() | {"ring": ring, "waiting": x.waiting} for x, ring in zip(looks, rings, strict=True)]
        print(json.dumps(facts))
        return 0
    for x in looks:
        sender, receiver, ring = x.ring.producer, x.ring.consumer, x.ring
        print(f"{x.name}{'' if x.is_named else '  (unlinked)'}")
        rates = f"{x.messages_per_s:.0f} messages/s, {x.nbytes_per_s / 1e6:.1f} MB/s"
        print(f"  {ring.nslots * ring.slot_nbytes} bytes, {ring.fill:.0%} full, {rates}")
        print(f"  sender   {_end(sender)}")
        print(f"  receiver {_end(receiver)}")
        print(f"  {x.waiting or 'no end waits'}")
    if not looks:
        print("no channel is open")
    return 0


def _end(end: EndLook) -> str:
    if end.state == "absent":
        return "absent"
    dropped = f", {end.dropped} dropped" if end.dropped else ""
    return f"{end.pid} {end.state}: {end.messages} messages{dropped}, {end.waits} waits, {end.sleeps} sleeps"


def _clean() -> list[str]:
    """Remove the names of dead jobs; each is checked again under its lock before."""
    return [x.name for x in leftovers() if x.status == "stale" and names.remove_stale(x.name)]


def _limit(number: int) -> int | None:
    """The soft limit; None if unlimited."""
    soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _thresholds(processors: float) -> dict[str, Any]:
    """The thresholds for two ranks on this machine, each with its reason; those measured at start-up are unknown."""
    try:
        config = configure().settled(second_level_nbytes())
    except ValueError as error:
        return {"problem": str(error)}
    found = derive(config, 2, processors, 0.0, last_level_nbytes())
    if config.internals.pair_queue_nbytes < 0:
        found.why["pair_queue_nbytes"] = "derived: eight slots, from 512 KiB to 2 MiB"
    values: dict[str, Any] = {
        "slot_nbytes": config.slot_nbytes,
        "nslots": config.nslots,
        "pair_queue_nbytes": config.pair_queue_limit(2),
        "eager_nbytes": found.eager_nbytes,
        "past_cache_nbytes": found.past_cache_nbytes,
        "spin_us": config.spin_ns(2, processors) / 1e3,
        "touch_gbs": found.limits.costs.bytes_per_second / 1e9,
    }
    why = {name: found.why.get(name, "default") for name in values}
    for name in ("latency_us", "one_shot_nbytes", "flat_reduce_nbytes"):
        given = getattr(config.internals, name)
        values[name] = None if given < 0 else given
        why[name] = "measured at start-up; see comm.stats()" if given < 0 else found.why[name]
    return {name: {"value": value, "why": why[name]} for name, value in values.items()}


def _launcher() -> dict[str, Any]:
    """The job that `init` without arguments would join."""
    name = detected(os.environ)
    try:
        return {"name": name, "job": discover(os.environ)._asdict(), "problem": None}
    except ValueError as error:
        return {"name": name, "job": None, "problem": str(error) if name else None}


def _for_people(
    facts: dict[str, Any], drawing: str, ranks: list[Place], blocks: list[HeldBlocks], standing: list[Leftover]
) -> str:
    runnable = ", ".join(facts["kernels"]["runnable"])
    limits = ", ".join(f"{name} {'unlimited' if v is None else v}" for name, v in facts["limits"].items())
    versions = ", ".join(f"{name} {version}" for name, version in facts["version"].items())
    launcher = facts["launcher"]
    if job := launcher["job"]:
        launched = f"{launcher['name']}: rank {job['rank']} of {job['size']}, session {job['session']}"
    else:
        launched = f"{launcher['name']}: {launcher['problem']}" if launcher["name"] else "none"
    sections = [
        ("version", f"{versions}, {facts['platform']}"),
        ("kernels", f"{facts['kernels']['chosen']} chosen of {runnable}; SHMRING_KERNEL forces one"),
        ("topology", drawing),
        ("limits", limits),
        ("launcher", launched),
        ("settings", "\n".join(f"{name}={value}" for name, value in facts["settings"].items()) or "all by default"),
        ("thresholds", _thresholds_for_people(facts["thresholds"])),
        ("ranks", "\n".join(place.describe() for place in ranks) or "none that can be seen"),
        ("blocks", "\n".join(held.describe() for held in blocks) or "none that can be seen"),
        ("leftovers", "\n".join(f"{x.name}  {x.nbytes} bytes, pid {x.pid}: {x.status}" for x in standing) or "none"),
    ]
    if facts["removed"]:
        sections.append(("removed", "\n".join(facts["removed"])))
    elif any(x.status == "stale" for x in standing):
        sections.append(("", "`shmring info --clean` removes the stale ones"))
    return "\n".join(f"{title:<10} {text}".replace("\n", "\n" + " " * 11) for title, text in sections)


def _thresholds_for_people(thresholds: dict[str, Any]) -> str:
    if "problem" in thresholds:
        return thresholds["problem"]
    return "\n".join(
        f"{name}={'?' if one['value'] is None else one['value']}  ({one['why']})" for name, one in thresholds.items()
    )
