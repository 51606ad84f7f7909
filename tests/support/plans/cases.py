"""A planner for each builder, and small outboxes in which pipelines loop."""

from shmring.collectives.plan.choose import BUILDERS, ROOTED
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.collectives.plan.limits import Limits
from support.plans.reference import CollectiveCall

# Every builder except those with one shared result, which `CollectiveCall` does not describe.
ALL_BUILDERS = tuple(name for name in BUILDERS if name[1] != "zero_copy_shared")
BLOCKS = frozenset(kind.name for kind in COLLECTIVES.values() if kind.takes_counts and not kind.takes_op)
PLACES = ("out of place", "in place")
# (kind, algorithm, place): every builder in every form it has.
FORMS = tuple(
    (*b, place) for b in ALL_BUILDERS for place in PLACES if (*b, place) != ("all_to_all", "zero_copy", "in place")
)


def planner(algorithm, limits):
    """``call, rank -> plan`` by the builder of this name."""

    def plan(call, rank):
        arguments = [rank, call.size, call.nbytes, call.itemsize, limits]
        return BUILDERS[call.kind, algorithm](*arguments, *([call.root] if call.kind in ROOTED else []))

    return plan


def small(size, nslots=4, lines=0):
    """The smallest outbox in which every collective of ``size`` ranks fits, and some ``lines`` of 64 bytes more."""
    return Limits(nslots=nslots, slot_nbytes=max(128, 64 * size) + 64 * lines)


def roots_of(kind, size):
    """The roots to try."""
    return range(size) if kind in ROOTED else (0,)


def call_of(kind, size, nbytes, place="out of place", root=0, itemsize=8):
    """A `CollectiveCall`, of whole items."""
    return CollectiveCall(kind, size, nbytes, itemsize, root, place == "in place")
