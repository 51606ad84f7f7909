"""A communicator with ranks on several nodes: shared memory within each node, a wire between them."""

from __future__ import annotations

from typing import Any

from shmring.communicator import Communicator
from shmring.nodes.group import NodesGroup


class NodesCommunicator(Communicator):
    """A group of ranks that cannot all map each other's memory; made by `shmring.from_mpi` or a process group of torch.

    It is a `shmring.Communicator` whose calls go over several machines. What needs memory that all ranks map raises
    `TypeError`, and is on ``local``: `empty`, `array`, `share`, `shared_view`, `shared_result`, `explain`,
    `trace`; and `shrink`.
    """

    _engine: NodesGroup

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in order."""
        return self._engine.places.nodes

    @property
    def local(self) -> Communicator:
        """The ranks of this node."""
        return self._engine.local

    def stats(self) -> dict[str, Any]:
        """The calls so far as ``rounds``, how each kind and size is made as ``ways``, the node's as ``local``."""
        engine = self._engine
        return {"rounds": engine.rounds, "ways": engine.collectives.stats(), "local": engine.local.stats()}

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} on {self.nodes}>"


def refuse(kind: type[NodesCommunicator], why: str, *names: str) -> None:
    """Have these calls of a class of communicators raise `TypeError`."""
    for name in names:

        def call(self: NodesCommunicator, *args: Any, name: str = name, **kwargs: Any) -> None:
            raise TypeError(f"{name}() {why}; the ranks are on {len(self.nodes)} nodes")

        call.__doc__ = f"Refused with `TypeError`: {name}() {why}."
        setattr(kind, name, call)


refuse(
    NodesCommunicator,
    "needs memory that all ranks can map: call it on comm.local, the communicator of this node's ranks",
    "empty",
    "array",
    "share",
    "shared_view",
    "shared_result",
    "explain",
    "trace",
    "shrink",
)
