"""The communicator: the face of a group of ranks, put together from its abilities."""

from shmring.coalescing import Coalescing
from shmring.explaining import Explaining
from shmring.groups import GroupCalls
from shmring.locating import Locating
from shmring.objectmessages import ObjectMessageCalls
from shmring.objects import ObjectCalls
from shmring.persistent import Persistent
from shmring.sharedarrays import SharedArrayCalls


class Communicator(
    ObjectMessageCalls, Coalescing, Persistent, Explaining, Locating, ObjectCalls, GroupCalls, SharedArrayCalls
):
    """A group of ranks on one machine. Made by `init`; not by calling this class.

    One thread at a time is in a call; a second one waits for its turn. All ranks must make the same collective calls in
    the same order. Use it as a context manager: left with an exception it aborts, so that peers fail at once with
    `AbortedError`; else it closes.

    Attributes
    ----------
    rank : int
        This process's number, from 0 to ``size - 1``.
    size : int
        How many ranks there are.
    name : str
        For messages and logs.
    """
