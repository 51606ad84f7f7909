"""The processes of JAX's distributed client as ranks of one communicator, and the groups that XLA asks for.

Rank, size and rendezvous come from that client, not from the environment: all processes may have the same one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.config import configure
from shmring.core.base.lifecycle import exit_reason
from shmring.core.base.weak_set import WeakSet
from shmring.core.memory.segment import boot_id
from shmring.errors import AbortedError, BrokenError, RendezvousError, ShmringError
from shmring.launch.init import init

if TYPE_CHECKING:
    from shmring.communicator import Communicator

Activity = Callable[[], tuple[int, int]]

# Keyword arguments of `shmring.init`, from `shmring.jax.initialize`.
settings: dict[str, Any] = {}

# Seconds, at most, for all processes to make their backend, and to come to a group's first call.
_PATIENCE_S = 300.0
# Seconds without an operation from when this process began to exit until its peers may wait for it no longer.
_QUIET_S = 2.0
_PREFIX = "shmring/"
_ONE_DEVICE = (
    "JAX's collectives of this kind take one device in a process: set jax_num_cpu_devices to 1 and remove "
    "--xla_force_host_platform_device_count from XLA_FLAGS, or start more processes"
)


class _World:
    """The communicator of all processes, and what is known of their devices."""

    def __init__(
        self, client: Any, size: int, communicator: Communicator | None, activity: Activity, problem: str = ""
    ) -> None:
        self.client = client
        self.activity = activity
        self.size = size
        self.communicator = communicator
        self.problem = problem  # why there is no communicator
        self.owner: dict[int, int] = {}  # rank of a device, for those that were the first of a group
        self.groups: WeakSet[Communicator] = WeakSet()
        self.exits = threading.Event()
        threading.Thread(target=self._leave_at_exit, name="shmring.jax exit", daemon=True).start()

    def _leave_at_exit(self) -> None:
        """Close all communicators once this process exits and makes no more calls: then peers that wait raise.

        At exit JAX waits for the other processes, which may wait in a group for this one. Dispatched work may
        still be running, so communicators are closed once it has finished. A thread that is started now waits for that,
        because none can be started during the interpreter's exit.
        """
        self.exits.wait()
        before = None
        while before != (before := self.activity()) or before[0] != before[1]:
            time.sleep(_QUIET_S)
        for one in self.communicators():
            one.close()

    def communicators(self) -> list[Communicator]:
        """All open communicators, those of groups first."""
        return [*self.groups, *([self.communicator] if self.communicator else [])]


_world: _World | None = None


def connect(activity: Activity) -> tuple[int, int]:
    """Make the communicator of all processes; returns rank and size.

    ``activity`` returns how many operations have begun, and how many have ended.

    If a process cannot take part, no process can make a group, and each warns with the reason: JAX ignores the result
    of MPI's start.
    """
    global _world
    state = _client_state()
    if _world is None or _world.client is not state.client:  # a backend that is made again keeps the communicator
        try:
            session = agree(state.client, state.process_id, state.num_processes)
            made = init(
                rank=state.process_id,
                size=state.num_processes,
                session=session,
                rendezvous_timeout=_patience(),
                **settings,
            )
            _world = _World(state.client, state.num_processes, made, activity)
        except Exception as error:
            problem = f"shmring.{type(error).__name__}: {error}"
            _world = _World(state.client, state.num_processes, None, activity, problem)
            warnings.warn(f"no collective of JAX will work: {_world.problem}", RuntimeWarning, stacklevel=2)
    return state.process_id, state.num_processes


def split(color: int, key: int) -> tuple[Communicator | None, str, int]:
    """Make the group of the processes that give the same colour.

    ``color`` is the number of the group's first device, ``key`` the place of this process's device in it. The size
    of the group is not given: so all processes take part in each split and compare their arguments. Returns the group;
    or None, the reason, and the size as far as it is known.
    """
    assert _world is not None, "a group before the start"
    if _world.communicator is None:
        return None, _world.problem, _world.size
    world = _world.communicator
    try:
        given = world.all_gather(np.array([color, key], np.int64), timeout=_patience()).tolist()
    except BrokenError as error:
        why = f"shmring.{type(error).__name__}: no group of the device {color} and others can be made: {error}"
        return None, f"{why}; all processes must come to the first use of each group of devices", world.size
    members = sorted((k, rank) for rank, (c, k) in enumerate(given) if c == color)
    if problem := inconsistency(given, _world.owner):
        return None, f"shmring.MismatchError: {problem}", members[-1][0] + 1
    try:
        group = world.subgroup([rank for _, rank in members], rendezvous_timeout=_patience())
        _world.groups.add(group)
        return group, "", len(members)
    except ShmringError as error:
        return None, f"shmring.{type(error).__name__}: {error}", len(members)


def exit() -> None:
    """JAX has begun to exit. After an uncaught exception peers get an error at once, and are not waited for."""
    if _world is None:
        return
    reason = exit_reason()
    for one in _world.communicators() if reason else ():
        with contextlib.suppress(ShmringError):  # broken before
            one.abort(reason)
    if reason or any(map(_is_aborted, _world.communicators())):
        _forget_client()
    _world.exits.set()


def _is_aborted(one: Communicator) -> bool:
    """Whether an exception has ended another process, which does not wait for this one."""
    try:
        one._engine.check_usable()
    except AbortedError:
        return True
    except ShmringError:  # others may wait for this one
        return False
    return False


def _forget_client() -> None:
    """Have JAX not wait for the other processes, which may never come; also not in the destructor of its client."""
    state = _client_state()
    for part in (state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    state.client = state.service = None


def inconsistency(given: list, owner: dict[int, int]) -> str:
    """The mistake in the colours and keys of all ranks, or an empty text.

    Pure, but for ``owner``, to which the first device of each group is added. Equal on all ranks.
    """
    known = dict(owner)
    groups: dict[int, list] = {}
    for rank, (color, key) in enumerate(given):
        groups.setdefault(color, []).append((key, rank))
    for color, members in groups.items():
        members.sort()
        if [key for key, _ in members] != list(range(len(members))):
            places = ", ".join(f"{key} (rank {rank})" for key, rank in members)
            return (
                f"the group whose first device is {color} has devices at the places {places}, not from 0 to "
                f"{len(members) - 1} each once: a process has several devices, or not all processes make the same "
                f"calls in the same order. {_ONE_DEVICE}"
            )
        first = members[0][1]
        other = next((device for device, rank in known.items() if rank == first and device != color), None)
        if known.setdefault(color, first) != first or other is not None:
            return (
                f"rank {first} gives device {color} as its own, which is of rank {known[color]}, or has device "
                f"{other}, too: not all processes make the same calls in the same order. {_ONE_DEVICE}"
            )
    sizes = {color: len(members) for color, members in groups.items()}
    if len(set(sizes.values())) > 1:
        # Of ranks that make rows and columns of a mesh in different order, some groups look complete.
        parts = ", ".join(f"{size} from device {color}" for color, size in sizes.items())
        return (
            f"groups made at the same time have different sizes ({parts}): not all processes make the same calls in "
            "the same order, or axis_index_groups has groups of different sizes, which work with gloo alone"
        )
    owner.update(known)
    return ""


def _client_state() -> Any:
    from jax._src import distributed

    if distributed.global_state.client is None:
        raise RuntimeError("JAX has no distributed client: call shmring.jax.initialize() first")
    return distributed.global_state


def _patience() -> float:
    limit = configure(**settings).timeout
    return _PATIENCE_S if limit is None else min(limit, _PATIENCE_S)


# ---- agreement over JAX's key-value store ----------------------------------------------------------------------------


def agree(client: Any, rank: int, size: int) -> str:
    """The session's key, made by rank 0 once all processes have described themselves; raises on all if one is unfit."""
    limit_ms = int(1000 * _patience())
    client.key_value_set(f"{_PREFIX}process/{rank}", json.dumps(_describe()))
    if rank == 0:
        client.key_value_set(f"{_PREFIX}session", json.dumps(_judge(client, size, limit_ms)))
    # Rank 0 may wait as long itself before it writes.
    verdict = json.loads(client.blocking_key_value_get(f"{_PREFIX}session", 2 * limit_ms))
    if "error" in verdict:
        raise RendezvousError(verdict["error"])
    return verdict["session"]


def _judge(client: Any, size: int, limit_ms: int) -> dict[str, str]:
    """On rank 0: the key of the session, or the error of all."""
    found = []
    for rank in range(size):
        try:
            found.append(json.loads(client.blocking_key_value_get(f"{_PREFIX}process/{rank}", limit_ms)))
        except Exception as error:  # of jaxlib, a class of which differs between releases
            return {"error": f"rank {rank} has not made its CPU backend within {limit_ms / 1000:g} s ({error})"}
    for rank, one in enumerate(found):
        if one["machine"] != found[0]["machine"]:
            return {
                "error": f"rank {rank} runs on {one['host']}, rank 0 on {found[0]['host']}, or they do not share "
                "/dev/shm: JAX over shmring runs on one machine; use gloo between machines"
            }
        if one["ndevices"] > 1:
            return {"error": f"rank {rank} has {one['ndevices']} CPU devices. {_ONE_DEVICE}"}
    return {"session": f"jax{secrets.token_hex(8)}"}


def _describe() -> dict[str, Any]:
    return {"machine": _machine(), "host": socket.gethostname(), "ndevices": _ndevices()}


def _machine() -> str:
    """A text that is equal in processes that can meet in shared memory."""
    place = os.stat("/dev/shm")
    return f"{boot_id().hex()} {place.st_dev} {place.st_ino}"


def _ndevices() -> int:
    """The number of CPU devices that this process will have."""
    from jax._src import xla_bridge

    number = xla_bridge.num_cpu_devices.value
    if number >= 0:
        return number
    forced = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(forced[-1]) if forced else 1
