"""Torch's operators (`c10d::`) on groups of shmring: what dispatch modes, subclasses of tensors and compilers see.

A group's own methods make a call at once if only plain tensors take part. Otherwise torch's method of that name calls
the operator. What modes and subclasses pass on arrives at the functions here, which stand below them and above the
kernels of all devices, under the key `BackendSelect`. Calls on other groups and devices go on to those kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DispatchKey, _dispatch_keyset_full_after
from torch._C import _distributed_c10d as c10d
from torch.library import Library

from shmring.torch.methods import unseen

Tensor = torch.Tensor

# Method: its operator, and the forms of its arguments, the last of which may be absent.
METHODS: dict[str, tuple] = {
    "allreduce": ("allreduce_", list, c10d.AllreduceOptions),
    "allreduce_coalesced": ("allreduce_coalesced_", list, c10d.AllreduceCoalescedOptions),
    "reduce": ("reduce_", list, c10d.ReduceOptions),
    "reduce_scatter": ("reduce_scatter_", list, list, c10d.ReduceScatterOptions),
    "reduce_scatter_single": ("_reduce_scatter_base_", Tensor, Tensor, c10d.ReduceScatterOptions),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced_", list, list, c10d.ReduceScatterOptions),
    "broadcast": ("broadcast_", list, c10d.BroadcastOptions),
    "allgather": ("allgather_", list, list, c10d.AllgatherOptions),
    "all_gather_single": ("_allgather_base_", Tensor, Tensor, c10d.AllgatherOptions),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced_", list, list, c10d.AllgatherOptions),
    "allgather_coalesced": ("allgather_coalesced_", list, list, c10d.AllgatherOptions),
    "gather": ("gather_", list, list, c10d.GatherOptions),
    "scatter": ("scatter_", list, list, c10d.ScatterOptions),
    "all_to_all_single": ("alltoall_base_", Tensor, Tensor, object, object, c10d.AllToAllOptions),
    "alltoall": ("alltoall_", list, list, c10d.AllToAllOptions),
    "barrier": ("barrier", c10d.BarrierOptions),
    "send": ("send", list, int, int),
    "recv": ("recv_", list, int, int),
    "recv_anysource": ("recv_any_source_", list, int),
}

_OPTIONS = {"reduce_op": "reduceOp", "root_rank": "rootRank", "async_op": "asyncOp", "timeout": "timeout"}
_UNUSED = ("process_group", "root_tensor", "sparse_indices", "tensor", "device_ids")
_BELOW = _dispatch_keyset_full_after(DispatchKey.BackendSelect)


class _Made(threading.local):
    """The works of the calls that operators make in this thread, each with the object that torch has in its place."""

    works: list | None = None


_made = _Made()


def by_operator(name: str) -> Callable:
    """Torch's method of this name, which calls the operator; it returns the work of the call that this leads to."""
    base = getattr(dist.ProcessGroup, name)

    def call(self, *args, **kwargs):
        before, _made.works = _made.works, []
        try:
            work = base(self, *args, **kwargs)
            return next((own for known, own in _made.works if known is work), work)
        finally:
            _made.works = before

    # C++ calls the override of a method, unless a frame of that name calls it.
    call.__code__ = call.__code__.replace(co_name=name)
    return unseen(call)


def first_tensor(arguments: Any) -> torch.Tensor | None:
    """The first tensor among these, or in lists among them."""
    for x in arguments:
        found = x if isinstance(x, Tensor) else first_tensor(x) if isinstance(x, (list, tuple)) else None
        if found is not None:
            return found
    return None


def define(kind: type, own: dict[str, Callable]) -> Library:
    """Have the operators on groups of this class call these functions, by the names of the methods."""
    library = Library("c10d", "IMPL")
    for name, (operator, *forms) in METHODS.items():
        overload = getattr(torch.ops.c10d, operator).default
        options = forms[-1] if forms[-1] is not int else None
        library.impl(operator, _kernel(overload, kind, own[name], options), "BackendSelect", with_keyset=True)
    return library


def _kernel(overload: Any, kind: type, own: Callable, options: type | None) -> Callable:
    names = [argument.name for argument in overload._schema.arguments]
    place, has_results = names.index("process_group"), len(overload._schema.returns) > 1

    def kernel(keyset, *args):
        group, x = dist.ProcessGroup.unbox(args[place]), first_tensor(args)
        if not isinstance(group, kind) or (x is not None and not x.is_cpu):
            return overload.redispatch(keyset & _BELOW, *args)
        given = dict(zip(names, args, strict=False))  # arguments that have their defaults may be absent
        arguments = [_waited(value) for name, value in given.items() if name not in _OPTIONS and name not in _UNUSED]
        if options is not None:
            arguments.append(_filled(options(), given))
        work = _boxed(own(group, *arguments))
        return (args[0], work) if has_results else work

    return unseen(kernel)


def _waited(x: Any) -> Any:
    """Without the results of functional collectives that torch does not see in lists of lists, nor unwraps."""
    if type(x) is list:
        return [_waited(each) for each in x]
    return x.trigger_wait() if hasattr(x, "trigger_wait") else x


def _filled(options: Any, given: dict[str, Any]) -> Any:
    options.asyncOp = given.get("async_op", True)
    if "reduce_op" in given:
        options.reduceOp = _reduction(given["reduce_op"])
    if "root_rank" in given:
        options.rootRank = given["root_rank"]
    if given.get("timeout", -1) > 0:
        options.timeout = timedelta(milliseconds=given["timeout"])
    return options


def _reduction(operation: torch.ScriptObject) -> dist.ReduceOp:
    kind = dist.ReduceOp.RedOpType(operation.op())
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        raise TypeError("torch's operators do not pass on the factor of PREMUL_SUM: multiply first, and use SUM")
    return dist.ReduceOp(kind)


def _boxed(work: dist.Work) -> torch.ScriptObject:
    """The work as operators return it. Torch keeps that alive, but not the object in Python."""
    kept = c10d.PythonCallbackWork(lambda timeout: work.wait(timeout))
    if _made.works is not None:
        _made.works.append((kept, work))
    return kept.boxed()
