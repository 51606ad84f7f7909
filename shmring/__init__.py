"""Communication between the processes of one machine: shared-memory rings, SIMD reductions, collectives.

    comm = shmring.init()                # in each of the processes that ``shmring run -n 4 program.py`` starts
    comm.all_reduce(gradients)           # in place, any array on the CPU

``shmring.spawn(fn, size)`` starts the processes itself. See ``docs/index.md``.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("shmring.calls") is None:
    raise ImportError(
        f"shmring is not compiled here ({__path__[0]}): this is its source tree. Install it with "
        "`pip install .` and import it from elsewhere, or build it in place with `python setup.py build_ext --inplace`"
    )

from shmring.broadcasting import BroadcastSender
from shmring.channels import channel, open_channel
from shmring.communicator import Communicator
from shmring.errors import (
    AbortedError,
    BrokenError,
    ClosedError,
    CollectiveTimeoutError,
    DisconnectedError,
    EndOfStreamError,
    MeetingError,
    MeetingTimeoutError,
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
from shmring.fanning import FanInReceiver
from shmring.fans import broadcast_channel, fan_in
from shmring.joining import init
from shmring.launch import spawn
from shmring.lending import Lease
from shmring.queueing import JoinableQueue, Queue
from shmring.receiver import Receiver
from shmring.recordends import RecordReceiver, RecordSender
from shmring.reduce import kernels
from shmring.requests import ANY_SOURCE, ANY_TAG, Message, Request
from shmring.sender import Sender
from shmring.topologyfile import topology
from shmring.version import __version__
from shmring.work import Work

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
    "MeetingError",
    "MeetingTimeoutError",
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
    "open_channel",
    "spawn",
    "topology",
]


def get_include() -> str:
    """The folder of C headers that Cython code which cimports from shmring must have on its include path."""
    return f"{__path__[0]}/_c"
