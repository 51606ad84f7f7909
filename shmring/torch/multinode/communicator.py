"""A communicator with ranks on several nodes: shared memory within each node, gloo between nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

import shmring
from shmring.torch.multinode.collectives import MultinodeCollectives
from shmring.torch.multinode.messages import MultinodeMessages


class MultinodeCommunicator(MultinodeCollectives, MultinodeMessages):
    """The communicator of a `shmring.torch.ProcessGroup` whose ranks cannot all map each other's memory.

    It has the calls of `shmring.Communicator` that the group makes, for tensors, with results equal to the bit.

    Attributes
    ----------
    rank, size : int
        Among the ranks of all nodes.
    nodes : list of list of int
        The ranks of each node.
    local : shmring.Communicator
        The ranks of this node.
    """


def join(
    nodes: Sequence[Sequence[int]], rank: int, session: str, store, timeout_s: float | None, settings: dict
) -> MultinodeCommunicator:
    """Connect the ranks: those of a node in shared memory, others over the network. All ranks call.

    ``nodes`` is what `shmring.torch.multinode.discovery.nodes` finds, ``session`` unique to this group, ``store`` the
    group's, ``timeout_s`` that of the rendezvous. ``settings`` are fields of `shmring.config.Config`, the ``timeout``
    of calls among them.
    """
    node = next(i for i, ranks in enumerate(nodes) if rank in ranks)
    local = shmring.init(
        rank=nodes[node].index(rank),
        size=len(nodes[node]),
        session=f"{session}.{node}",
        rendezvous_timeout=timeout_s,
        **settings,
    )
    try:
        own_store = dist.PrefixStore(session, store)
        return MultinodeCommunicator(local, nodes, rank, session, own_store, local.config.timeout)
    except BaseException:
        local.abort("another node could not be reached")
        local.close()
        raise
