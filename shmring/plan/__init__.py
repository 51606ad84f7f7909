"""The schedules of the collectives, as data: pure functions of rank, size, bytes and limits.

==============  ========================================================================================
`steps`         the vocabulary: Copy, Reduce, Claim, Publish, Await, Release, loops of them
`limits`        what a plan has to fit into
`pipeline`      how bytes are cut into rounds and rounds overlap
`reduction`     all_reduce, reduce, reduce_scatter, scan, exscan on private buffers
`two_shot`      the pipeline of two syncs under all_reduce and reduce
`movement`      broadcast, all_gather, gather, scatter, all_to_all on private buffers
`mapped`        the same on shared arrays, without staging
`shares`        a collective cut into shares for the threads of each rank
`hierarchy`          ranks in domains: caches, nodes, packages
`relay`         pieces that go from rank to rank, a hop a round
`nested`        collectives that know of domains: little goes across links
`crossing`      whether that pays
`choose`        which of them, by the cost model
`cost`          what a plan costs: bytes touched, staged, crossing domains; synchronisations
`simulate`      runs the plans of all ranks and finds deadlocks, races and overwritten slots
`model`         what each collective computes, and the two together: `model.verify`
`predict`       times of plans on an imagined machine; `predictions`: flat against nested
==============  ========================================================================================

``python -m shmring.plan`` shows plans and their costs. ``docs/algorithms.md`` explains them.
"""

from .choose import KINDS, algorithm, choose
from .cost import Cost, cost, total
from .limits import Costs, Limits
from .steps import Plan, describe

__all__ = ["KINDS", "Cost", "Costs", "Limits", "Plan", "algorithm", "choose", "cost", "describe", "total"]
