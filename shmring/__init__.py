"""Communication between the processes of one machine: shared-memory rings, SIMD reductions, collectives.

    comm = shmring.init()                # in each of the processes that ``shmring run -n 4 program.py`` starts
    comm.all_reduce(gradients)           # in place, any array on the CPU

``shmring.spawn(fn, size)`` starts the processes itself. See ``docs/index.md``.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("shmring.collective.api") is None:
    raise ImportError(
        f"shmring is not compiled here ({__path__[0]}): this is its source tree. Install it with "
        "`pip install .` and import it from elsewhere, or build it in place with `python setup.py build_ext --inplace`"
    )

from shmring.arrays.lease import Lease
from shmring.arrays.reduce import kernels
from shmring.channels.api import channel, open_channel
from shmring.channels.broadcast import BroadcastSender
from shmring.channels.fan_in import FanInReceiver
from shmring.channels.fans import broadcast_channel, fan_in
from shmring.channels.inspect import list_channels
from shmring.channels.queue import JoinableQueue, Queue
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver, RecordSender
from shmring.channels.sender import Sender
from shmring.collective.async_work import Work
from shmring.communicator import Communicator
from shmring.errors import (
    AbortedError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    DisconnectedError,
    EndOfStreamError,
    RendezvousError,
    RendezvousTimeoutError,
    MessageError,
    MessageTimeoutError,
    MessageTooLongError,
    MismatchError,
    ObjectError,
    OutOfSharedMemoryError,
    PeerLostError,
    RankFailedError,
    RoleTakenError,
    SegmentError,
    ShmringError,
)
from shmring.launch.init import init
from shmring.launch.spawn import spawn
from shmring.memory.sweep import leftovers, sweep
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG, Message, Request
from shmring.placement.topology_file import topology
from shmring.version import __version__

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "AbortedError",
    "BroadcastSender",
    "BrokenError",
    "ClosedError",
    "CollectiveTimeoutError",
    "Communicator",
    "DisconnectedError",
    "EndOfStreamError",
    "FanInReceiver",
    "JoinableQueue",
    "Lease",
    "RendezvousError",
    "RendezvousTimeoutError",
    "Message",
    "MessageError",
    "MessageTimeoutError",
    "MessageTooLongError",
    "MismatchError",
    "ObjectError",
    "OutOfSharedMemoryError",
    "PeerLostError",
    "Queue",
    "RankFailedError",
    "Receiver",
    "RecordReceiver",
    "RecordSender",
    "Request",
    "RoleTakenError",
    "SegmentError",
    "Sender",
    "ShmringError",
    "Work",
    "__version__",
    "broadcast_channel",
    "channel",
    "fan_in",
    "init",
    "kernels",
    "leftovers",
    "list_channels",
    "open_channel",
    "spawn",
    "sweep",
    "topology",
]


def get_include() -> str:
    """The folder of C headers that Cython code which cimports from shmring must have on its include path."""
    return f"{__path__[0]}/_c"
