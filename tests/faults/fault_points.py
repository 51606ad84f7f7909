"""Where the injection points lie that calls pass: which steps of which call the fault grid interrupts."""

from __future__ import annotations

import re
from pathlib import Path

from fault_calls import CALLS

PACKAGE = Path(__file__).resolve().parents[2] / "shmring"

EAGER = (
    "start@1",
    "write@1",
    "eager@1",
    "publish@1",
    "published@1",
    "read@1",
    "conclude@1",
    "concluding@1",
    "concluded@1",
    "sleep@1",
    "look@1",
    "wake@1",
)
PLANNED = (
    "execute@1",
    "claim@1",
    "claim@6",
    "copy@1",
    "copy@7",
    "publish@2",
    "published@5",
    "await@1",
    "awaited@1",
    "awaited@4",
    "fold@1",
    "fold@5",
    "release@1",
    "released@3",
    "finish@1",
    "finishing@1",
    "finished@1",
    "sleep@1",
    "look@1",
    "wake@1",
    "wake@3",
)
MAPPED = ("agree@1", "start@1", "read@1", "concluded@1", "agreed@1", "copy@1", "fold@1", "finish@1", "finished@1")
MESSAGE = (
    "open@1",
    "push@1",
    "lay@1",
    "laid@1",
    "pull@1",
    "taken@1",
    "p2p_sleep@1",
    "push@20",
    "lay@20",
    "laid@20",
    "pull@20",
    "taken@20",
)
LEAVING = ("leave@1", "left@1", "dropped@1")
ALLOCATING = ("start@1", "start@2", "published@1", "published@2", "concluded@1", "concluded@2", "line@1", "line@2")

# Those of channels, fan-ins, broadcasts and queues, which know no ranks: test_fault_channels.py.
IN_CHANNELS = {
    "sender": "announce announced ring_sleep ring_wake",
    "receiver": "give given ring_sleep ring_wake",
    "disconnected receiver": "give given",
    "disconnecting sender": "disconnected",
    "broadcast sender": "announce announced ring_sleep ring_wake",
    "putter": "putting signal announce announced put ring_sleep ring_wake retract",
    "writer of a latest value": "overwrite written newest",
    "reader of a latest value": "lease leased",
    "getter": "settle_get getting give given got unsignal ring_sleep ring_wake",
}

# Points that a call passes only in trouble or in a race, not in these; test_fault_points.py goes to them.
IN_TROUBLE = ("report", "reported", "elsewhere", "inherit", "unlocked")


def points_of(name):
    """The points at which a call is interrupted; not every call comes to every one."""
    base = name.split()[0]
    if base in ("ring", "sendrecv", "requests"):
        return MESSAGE if name.endswith("large") else MESSAGE[:7]
    if base in ("split", "close", "subgroup", "shrink"):
        return (*LEAVING, *EAGER)
    if base in ("empty", "shared_result"):
        return ALLOCATING
    if base == "share":
        return (*ALLOCATING, "move@1", "moved@1", "agree@1", "fold@1", "finished@1", "restore@1")
    if base in ("all_reduce_shared", "all_to_all_private"):
        return MAPPED
    if base == "all_reduce_exchange":
        return (*PLANNED, "await_release@1", "await_release@2")
    return PLANNED if name.endswith("large") else (*EAGER, "line@1")


MOMENTS = {name: points_of(name) for name in CALLS}


def points_in_sources():
    """The names of all points there are."""
    files = [*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd"), *PACKAGE.rglob("*.h")]
    texts = (path.read_text() for path in files if path.name != "faults.h")
    lines = [line for text in texts for line in text.splitlines() if "fault_point(" in line]
    return {name for line in lines for name in re.findall(r'"(\w+)"', line)}
