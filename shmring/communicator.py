"""The communicator: the face of a group of ranks, put together from its abilities."""

from shmring.collective.coalesced import Coalescing
from shmring.collective.explain import Explaining
from shmring.collective.groups import GroupCalls
from shmring.collective.objects import ObjectCalls
from shmring.collective.persistent import PersistentPlans
from shmring.collective.placement_report import Locating
from shmring.collective.shared_arrays import SharedArrayCalls
from shmring.p2p.objects import ObjectMessageCalls


class Communicator(
    ObjectMessageCalls, Coalescing, PersistentPlans, Explaining, Locating, ObjectCalls, GroupCalls, SharedArrayCalls
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
