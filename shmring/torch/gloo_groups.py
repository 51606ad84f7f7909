"""The process groups of shmring that `takeover` makes in place of gloo's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from shmring.torch.processgroup import ProcessGroup


class GlooGroup(ProcessGroup):
    """A `shmring.torch.ProcessGroup` under the name of gloo, on one machine."""

    _recorded_as = "gloo"
    _in_background = "shmring: {} in the background"  # gloo has one event that begins with its name for each call

    def name(self) -> str:
        """The name that the program asked for.

        C++ calls `getBackendName`, which is shmring's: with the name gloo DistributedDataParallel would look for gloo's
        class.
        """
        return "gloo"


class MixedGroup(GlooGroup):
    """Makes calls on tensors of the CPU by shmring, all others by a group of torch.

    Parameters
    ----------
    group : GlooGroup
        The group whose communicator and store this one uses.
    others : torch.distributed.ProcessGroup
        The group with the backends of the other devices.
    """

    def __init__(self, group: GlooGroup, others: dist.ProcessGroup) -> None:
        super().__init__(group.comm, group.get_group_store(), timedelta(seconds=group._timeout_s or 0))
        self._others = others

    @property
    def bound_device_id(self):
        """The device to which the other backends are bound, or None."""
        return self._others.bound_device_id

    @property
    def _device_types(self) -> list[torch.device]:
        return [*super()._device_types, *self._others._device_types]

    def _get_backend(self, device: torch.device):
        return self if _is_cpu(device) else self._others._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls wait for live peers, on all devices."""
        super().set_timeout(timeout)
        for device in self._others._device_types:
            self._others._get_backend(device)._set_default_timeout(timeout)

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device) -> None:
        if _is_cpu(device):
            super()._start_coalescing(device)
        else:
            self._others._start_coalescing(device)

    def _end_coalescing(self, device) -> dist.Work:
        return super()._end_coalescing(device) if _is_cpu(device) else self._others._end_coalescing(device)

    def barrier(self, opts=None):
        """Complete once every rank has called, on the device of the options."""
        device = opts and opts.device
        return super().barrier(opts) if device is None or _is_cpu(device) else self._others.barrier(opts)

    def abort(self) -> None:
        """Break the group on all ranks at once, on all devices."""
        self._others.abort()
        super().abort()

    def shutdown(self) -> None:
        """Leave the group, on all devices."""
        self._others.shutdown()
        super().shutdown()


def _is_cpu(device) -> bool:
    return torch.device(device).type == "cpu"


def _first_tensor(arguments) -> torch.Tensor | None:
    for x in arguments:
        found = x if isinstance(x, torch.Tensor) else _first_tensor(x) if isinstance(x, (list, tuple)) else None
        if found is not None:
            return found
    return None


def _routed(name: str) -> Callable:
    own = getattr(GlooGroup, name)

    def call(self, *args, **kwargs):
        x = _first_tensor(args)
        by = self._others if x is not None and x.device.type != "cpu" else None
        return own(self, *args, **kwargs) if by is None else getattr(by, name)(*args, **kwargs)

    call.__name__, call.__doc__ = name, own.__doc__
    return call


for _name in (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "broadcast", "allgather", "all_gather_single", "all_gather_single_coalesced",
    "allgather_coalesced", "gather", "scatter", "all_to_all_single", "alltoall", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "alltoall_base",
    "send", "recv", "recv_anysource",
):  # fmt: skip
    setattr(MixedGroup, _name, _routed(_name))
