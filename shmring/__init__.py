"""Communication between the processes of one machine: shared-memory rings, SIMD reductions, collectives.

    comm = shmring.init()                # in each of the processes that ``shmring run -n 4 program.py`` starts
    comm.all_reduce(gradients)           # in place, any array on the CPU

``shmring.spawn(fn, size)`` starts the processes itself. See ``docs/index.md``.
"""

from importlib import import_module as _import_module
from sys import platform as _platform
from typing import TYPE_CHECKING

from shmring.errors import (
    AbortedError,
    BlockLostError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    DisconnectedError,
    EndOfStreamError,
    MessageError,
    MessageTimeoutError,
    MessageTooLongError,
    MismatchError,
    ObjectError,
    OutOfSharedMemoryError,
    PeerLostError,
    RankFailedError,
    RendezvousError,
    RendezvousTimeoutError,
    RoleTakenError,
    SegmentError,
    ShmringError,
    WorkerLostError,
)
from shmring.version import __version__

if TYPE_CHECKING:
    from shmring.channels.api import broadcast_channel, channel, open_channel
    from shmring.channels.fan_in import FanInReceiver, fan_in
    from shmring.channels.inspect import ChannelLook, list_channels
    from shmring.channels.latest import Latest
    from shmring.channels.queue import JoinableQueue, Queue
    from shmring.channels.receiver import Receiver
    from shmring.channels.records import RecordReceiver, RecordSender
    from shmring.channels.sender import Sender
    from shmring.channels.waiting import wait
    from shmring.collectives.calls.async_work import Work
    from shmring.collectives.calls.plan import Plan
    from shmring.collectives.calls.tracing import Timeline
    from shmring.collectives.p2p.requests import ANY_SOURCE, ANY_TAG, Message, Request
    from shmring.collectives.shared.share import Shared
    from shmring.communicator import Communicator
    from shmring.core.arrays.lease import Lease
    from shmring.core.blocks.block import Block
    from shmring.core.kernel.reduce import kernels
    from shmring.core.memory.sweep import Leftover, leftovers, sweep
    from shmring.core.placement.topology import Topology
    from shmring.core.placement.topology_file import topology
    from shmring.launch.init import init
    from shmring.launch.spawn import spawn
    from shmring.nodes.from_mpi import from_mpi

# Loaded at first use (PEP 562): a program that needs the collectives alone does not load the channels, and so on.
_MODULES = {
    "shmring.core.arrays.lease": ("Lease",),
    "shmring.core.blocks.block": ("Block",),
    "shmring.core.kernel.reduce": ("kernels",),
    "shmring.channels.api": ("broadcast_channel", "channel", "open_channel"),
    "shmring.channels.fan_in": ("FanInReceiver", "fan_in"),
    "shmring.channels.inspect": ("ChannelLook", "list_channels"),
    "shmring.channels.latest": ("Latest",),
    "shmring.channels.queue": ("JoinableQueue", "Queue"),
    "shmring.channels.receiver": ("Receiver",),
    "shmring.channels.records": ("RecordReceiver", "RecordSender"),
    "shmring.channels.sender": ("Sender",),
    "shmring.channels.waiting": ("wait",),
    "shmring.collectives.calls.async_work": ("Work",),
    "shmring.collectives.calls.plan": ("Plan",),
    "shmring.collectives.calls.tracing": ("Timeline",),
    "shmring.communicator": ("Communicator",),
    "shmring.launch.init": ("init",),
    "shmring.launch.spawn": ("spawn",),
    "shmring.core.memory.sweep": ("Leftover", "leftovers", "sweep"),
    "shmring.nodes.from_mpi": ("from_mpi",),
    "shmring.collectives.p2p.requests": ("ANY_SOURCE", "ANY_TAG", "Message", "Request"),
    "shmring.core.placement.topology": ("Topology",),
    "shmring.core.placement.topology_file": ("topology",),
    "shmring.collectives.shared.share": ("Shared",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("config", "dtypes", "errors", "ring", "typing")

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "AbortedError",
    "Block",
    "BlockLostError",
    "BrokenError",
    "ChannelLook",
    "ClosedError",
    "CollectiveTimeoutError",
    "Communicator",
    "DisconnectedError",
    "EndOfStreamError",
    "FanInReceiver",
    "JoinableQueue",
    "Latest",
    "Lease",
    "Leftover",
    "Message",
    "MessageError",
    "MessageTimeoutError",
    "MessageTooLongError",
    "MismatchError",
    "ObjectError",
    "OutOfSharedMemoryError",
    "PeerLostError",
    "Plan",
    "Queue",
    "RankFailedError",
    "Receiver",
    "RecordReceiver",
    "RecordSender",
    "RendezvousError",
    "RendezvousTimeoutError",
    "Request",
    "RoleTakenError",
    "SegmentError",
    "Sender",
    "Shared",
    "ShmringError",
    "Timeline",
    "Topology",
    "Work",
    "WorkerLostError",
    "__version__",
    "broadcast_channel",
    "channel",
    "fan_in",
    "from_mpi",
    "get_include",
    "init",
    "kernels",
    "leftovers",
    "list_channels",
    "open_channel",
    "spawn",
    "sweep",
    "topology",
    "wait",
]


def get_include() -> str:
    """The folder of C headers that Cython code which cimports from shmring must have on its include path."""
    return __path__[0]


def __getattr__(name: str):
    # On other systems nothing is compiled, and only `shmring.multiprocessing` can be imported.
    if _platform != "linux" and (name in _HOMES or name in _SUBMODULES):
        raise ImportError(
            f"shmring.{name} needs Linux, and this system is {_platform}: only shmring.multiprocessing can be "
            "imported here, and gives the standard library's multiprocessing"
        )
    if name in _HOMES:
        _import_module("shmring.core")  # which says so where nothing is compiled
        value = getattr(_import_module(_HOMES[name]), name)
    elif name in _SUBMODULES:
        value = _import_module(f"shmring.{name}")
    else:
        raise AttributeError(f"module 'shmring' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, *(name for name in globals() if name.startswith("__"))})
