"""Groups of shmring for programs that ask for gloo: with ``SHMRING_TORCH_TAKEOVER=gloo`` in the environment.

The function of torch that makes a group, `_new_process_group_helper`, is wrapped. Where a program asks for gloo on
CPUs, it makes a group of shmring, and enters it under the name that the program gave; on several machines, gloo's.
Nothing is wrapped where the setting is absent.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed.distributed_c10d as c10d

from shmring.core.base.pace import Pace

SETTING = "SHMRING_TORCH_TAKEOVER"
BACKEND = "shmring_as_gloo"  # under which torch finds `_make` while it makes a group


def take_over() -> None:
    """Wrap torch's function, if the setting asks for it. Idempotent."""
    value = os.environ.get(SETTING, "")
    if value not in ("", "gloo"):
        raise ValueError(f"{SETTING}={value!r} in the environment: must be gloo, or not set")
    if value and not hasattr(c10d.Backend, BACKEND.upper()):
        c10d.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu"])
        c10d._new_process_group_helper = _wrapped(c10d._new_process_group_helper)


def _make(options, join: Callable):
    """Torch calls this for `BACKEND`, with the ``join`` that `_wrapped` passes in place of the program's options."""
    return join(options)


def _wrapped(helper: Callable) -> Callable:
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def new_process_group(*args, **kwargs):
        asked = signature.bind(*args, **kwargs).arguments
        rank = asked["group_rank"]
        config = c10d.BackendConfig(c10d.Backend(asked["backend"]))
        if config.get_device_backend_map().get("cpu") != c10d.Backend.GLOO or rank is None or rank < 0:
            return helper(*args, **kwargs)

        def make_with(**changes):
            call = signature.bind(*args, **kwargs)
            call.arguments.update(changes)
            return helper(*call.args, **call.kwargs)

        from shmring.torch.connect import SeveralMachinesError

        join = functools.partial(_join, make_with, asked["backend"], config)
        try:
            group, store = make_with(backend=f"cpu:{BACKEND}", backend_options=join, device_id=None)
        except SeveralMachinesError:
            return helper(*args, **kwargs)
        c10d._world.pg_map[group] = asked["backend"], store
        c10d._world.pg_backend_config[group] = str(config)
        return group, store

    return new_process_group


def _join(make_with: Callable, asked: str, config: c10d.BackendConfig, options):
    """Make the group. All ranks of it call."""
    from shmring.torch.connect import make
    from shmring.torch.gloo_groups import GlooGroup
    from shmring.torch.processgroup import forget

    agree(options.store, options.group_rank, options.group_size, options.timeout)
    group = make(options, None, GlooGroup, one_machine=True)
    others = {device: name for device, name in config.get_device_backend_map().items() if device != "cpu"}
    if not others or (":" not in asked and not torch.accelerator.is_available()):
        return group  # gloo by itself is for all devices, of which there are none but the processors
    rest, _ = make_with(backend=",".join(f"{device}:{name}" for device, name in others.items()))
    forget(rest)
    group.add_backends(rest)
    return group


def agree(store, rank: int, size: int, timeout: timedelta) -> None:
    """Return once all ranks have the setting; raise on all that have it if a rank makes a group of gloo instead.

    Such a rank stores its address under the keys of gloo, and waits for the addresses of the others. These join its
    group before they raise, so its first call fails at once instead of at the timeout.
    """
    from shmring.errors import RendezvousError
    from shmring.torch.connect import late
    from shmring.torch.errors import torch_form

    turn = (store.add("shmring/takeover", 1) - 1) // size
    keys = [f"shmring/takeover/{turn}/{r}" for r in range(size)]
    store.set(keys[rank], "")
    deadline, pace = time.monotonic() + timeout.total_seconds(), Pace()
    while not store.check(keys):
        missing = [r for r in range(size) if not store.check([keys[r]])]
        # In later turns the keys of gloo may be those of an earlier group.
        without = [r for r in missing if turn == 0 and store.check([f"0/{r}"])]
        # A rank may have come meanwhile: gloo's key of a rank that has the setting comes after its own key.
        without = [r for r in without if not store.check([keys[r]])]
        if without and without == missing:
            c10d.ProcessGroupGloo(store, rank, size, timeout)
            ranks = ", ".join(map(str, without))
            text = f"{SETTING}=gloo is not set for rank {ranks}: set it for all ranks or for none"
            raise torch_form(RendezvousError(text), None)
        if time.monotonic() > deadline:
            raise late(missing, timeout)
        pace.pause()
