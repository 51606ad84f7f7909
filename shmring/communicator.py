"""The communicator of a group of ranks, put together from mixins."""

from shmring.collective.coalesced import CoalescedCalls
from shmring.collective.explain import ExplainCalls
from shmring.collective.groups import GroupCalls
from shmring.collective.objects import ObjectCalls
from shmring.collective.persistent import PersistentPlans
from shmring.collective.placement_report import PlacementCalls
from shmring.collective.tracing import TraceCalls
from shmring.p2p.objects import ObjectMessageCalls
from shmring.shared.share import ShareCalls


class Communicator(
    ObjectMessageCalls,
    CoalescedCalls,
    PersistentPlans,
    ExplainCalls,
    PlacementCalls,
    ObjectCalls,
    GroupCalls,
    ShareCalls,
    TraceCalls,
):
    """A group of ranks on one machine. Made by `init`; not by calling this class.

    One thread at a time is in a call; a second one waits. All ranks must make the same collective calls in the same
    order. Use it as a context manager: left with an exception it aborts, so that peers raise `AbortedError` at once;
    else it closes.

    Attributes
    ----------
    rank : int
        The number of this process, from 0 to ``size - 1``.
    size : int
        The number of ranks.
    name : str
        For messages and logs.
    """
