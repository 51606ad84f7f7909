"""The wire of gloo, through torch's process groups; its methods are those of `shmring.nodes.mpi_wire`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shmring.nodes.communicator import NodesCommunicator, refuse
from shmring.nodes.discovery import Places
from shmring.torch.reduce_ops import NAMES

_FOR_EVER = timedelta(days=3650)
_UNUSED = 0x7FFFFFFF  # a tag that no message has
_OPS = {name: dist.ReduceOp(kind) for kind, name in NAMES.items() if name in ("sum", "prod", "max", "min")}
_OPS["avg"] = _OPS["sum"]
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_TYPES = {name: getattr(torch, name) for name in (*_FLOATS, "int8", "int32", "int64", "uint8")}
_NOTHING = np.empty(0, np.uint8)


class GlooCommunicator(NodesCommunicator):
    """A group of ranks on several nodes, made by a process group of torch: gloo between them."""


_BY_TORCH = "is not a call of a group of torch over several nodes: torch.distributed has "
refuse(GlooCommunicator, _BY_TORCH + "new_group", "split", "subgroup", "dup")
refuse(
    GlooCommunicator, _BY_TORCH + "messages",
    "send", "recv", "sendrecv", "isend", "irecv", "probe", "iprobe", "send_object", "recv_object",
)  # fmt: skip


class GlooTeam:
    """Ranks that make collectives together, connected by a store."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size = rank, size
        with _new_threads_do_not_preempt():
            self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def reduces(self, kind: str, op: str, dtype: str) -> bool:
        """As of `MpiTeam`. Gloo's min and max lose NaNs."""
        if kind not in ("all_reduce", "reduce") or op not in _OPS or dtype not in _TYPES:
            return False
        return dtype in _FLOATS[:2] if op == "avg" else op in ("sum", "prod") or dtype not in _FLOATS

    def begin(self, kind, x, out, in_place=False, root=-1, sizes=None, got=None, op=None, dtype="uint8") -> dist.Work:
        """As of `MpiTeam`. What moves blocks is an exchange, in which some are empty; but for equal all_gathers."""
        n, is_root = self.size, self.rank == root
        if kind == "barrier":
            return self.gloo.barrier(_options(c10d.BarrierOptions))
        if kind == "broadcast":
            return self.gloo.broadcast([torch.from_numpy(out)], _options(c10d.BroadcastOptions, rootRank=root))
        if kind in ("all_reduce", "reduce"):
            if out is None:  # gloo writes partial results there
                out = x.copy()
            elif not in_place:
                out[...] = x
            to = torch.from_numpy(out).view(_TYPES[dtype])
            if kind == "all_reduce":
                return self.gloo.allreduce([to], _options(c10d.AllreduceOptions, reduceOp=_OPS[op]))
            return self.gloo.reduce([to], _options(c10d.ReduceOptions, reduceOp=_OPS[op], rootRank=root))
        if in_place:
            x = x.copy()
        if kind == "all_gather" and not sizes:
            to, of = torch.from_numpy(out), torch.from_numpy(x)
            return self.gloo._allgather_base(to, of, _options(c10d.AllgatherOptions))
        if not sizes:
            sizes = [(out if kind == "scatter" else x).nbytes // (n if kind == "all_to_all" else 1)] * n
        own, none = sizes[self.rank], [0] * n
        to_root = [own * (r == root) for r in range(n)]
        sent, taken = {
            "all_gather": ([own] * n, sizes),
            "gather": (to_root, sizes if is_root else none),
            "scatter": (sizes if is_root else none, to_root),
            "all_to_all": (sizes, got or sizes),
        }[kind]
        of = np.tile(x, n) if kind == "all_gather" else _NOTHING if x is None else x
        to = torch.from_numpy(_NOTHING if out is None else out)
        return self.gloo.alltoall_base(to, torch.from_numpy(of), taken, sent, _options(c10d.AllToAllOptions))

    def settled(self, c: Any) -> None:
        """As of `MpiTeam`."""

    def cut(self) -> None:
        """Close all connections; gloo has no call for this, but does so when a receive is late."""
        for peer in range(self.size):
            if peer != self.rank:
                with contextlib.suppress(RuntimeError):
                    self.gloo.recv([torch.empty(1, device="cpu")], peer, _UNUSED).wait(timedelta(milliseconds=1))


class GlooWire:
    """As `MpiWire`, over this store."""

    errors = (RuntimeError,)

    def __init__(self, store: Any, places: Places, timeout: timedelta) -> None:
        self.whole = GlooTeam(dist.PrefixStore("whole", store), places.rank, places.size, timeout)
        self.lane = None
        if places.has_lane:
            of_lane = dist.PrefixStore(f"lane{places.place}", store)
            self.lane = GlooTeam(of_lane, places.node, len(places.nodes), timeout)

    def messages_of(self, group: Any) -> None:
        """None: torch makes messages on ``whole.gloo``."""

    def wait(self, work: dist.Work, seconds: float, since: float) -> bool:
        """As of `MpiWire`."""
        try:
            return work.wait(timedelta(seconds=max(seconds, 1e-3)))  # of less than a millisecond: without a limit
        except RuntimeError:
            return work.is_completed() and work.wait()  # raises if it has failed

    def alarm(self, text: str) -> None:
        """Let the other ranks know that this one has failed."""
        for team in (self.whole, self.lane):
            if team is not None:
                team.cut()

    def read_alarm(self) -> None:
        """Gloo tells by errors: connections that are closed."""

    def leave(self, is_cut_short: bool) -> None:
        """Join gloo's threads: one that still holds the arrays of the last call would free them as the interpreter
        ends, which aborts the process. Where a call has failed or is under way, they may wait for ever."""
        for team in (self.whole, self.lane):
            if team is not None and not is_cut_short:
                team.gloo = None


def _options(kind: type, **values: Any) -> Any:
    options = kind()
    options.timeout = _FOR_EVER
    for name, value in values.items():
        setattr(options, name, value)
    return options


@contextlib.contextmanager
def _new_threads_do_not_preempt() -> Iterator[None]:
    """Threads that the calling thread starts meanwhile do not take the processor from a running thread when they wake.

    Gloo's thread tries the lock of a connection again and again while another thread holds it to send. Had it taken the
    processor from that thread, it would do so until the end of its time slice, some milliseconds later.
    """
    is_changed = False
    with contextlib.suppress(OSError):  # where the system forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            is_changed = True
    try:
        yield
    finally:
        if is_changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
