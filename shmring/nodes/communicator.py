"""A communicator with ranks on several nodes: shared memory within each node, a wire between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmring.communicator import Communicator
from shmring.nodes.group import NodesGroup

_ONE_MACHINE = "needs memory that all ranks can map: call it on comm.local, the communicator of this node's ranks"
_BY_TORCH = "is not a call of a group of torch over several nodes: torch.distributed.new_group makes groups"
_REFUSED = {
    **dict.fromkeys(("empty", "zeros", "array", "share", "shared_view", "shared_result"), _ONE_MACHINE),
    **dict.fromkeys(("explain", "trace", "placement"), _ONE_MACHINE),
    **dict.fromkeys(("split", "subgroup", "dup", "shrink"), _BY_TORCH),
}


class NodesCommunicator(Communicator):
    """A group of ranks that cannot all map each other's memory; made by `shmring.from_mpi` or a process group of torch.

    It is a `shmring.Communicator` whose calls go over several machines: collectives give results equal to the bit
    unless ``reproducible`` is false, and a message not received in time stays under way. What needs memory that all
    ranks map raises `TypeError`: `empty`, `zeros`, `array`, `share`, `shared_view`, `shared_result`, `explain`,
    `trace` and `placement` are on ``local``.

    Parameters
    ----------
    engine : NodesGroup
    """

    engine: NodesGroup

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in order."""
        return self.engine.nodes

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.engine.node

    @property
    def local(self) -> Communicator:
        """The ranks of this node."""
        return self.engine.local

    @property
    def reproducible(self) -> bool:
        """Whether reductions have the bits of one machine."""
        return self.engine.reproducible

    def stats(self) -> dict[str, Any]:
        """The calls so far as ``rounds``, those that the wire can make as ``wire_calls``, the node's as ``local``."""
        return self.engine.stats()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} on {self.nodes}>"


def _refusal(name: str, why: str) -> Callable[..., None]:
    def refuse(self: NodesCommunicator, *args: Any, **kwargs: Any) -> None:
        raise TypeError(f"{name}() {why}; the ranks are on {len(self.nodes)} nodes")

    refuse.__doc__ = f"Refused with `TypeError`: {name}() {why}."
    refuse.__name__ = name
    return refuse


for _name, _why in _REFUSED.items():
    setattr(NodesCommunicator, _name, _refusal(_name, _why))
