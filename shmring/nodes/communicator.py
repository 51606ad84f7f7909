"""A communicator with ranks on several nodes: shared memory within each node, a wire between them."""

from __future__ import annotations

from typing import Any, NoReturn

from shmring.collective import objects
from shmring.nodes.messages import NodesMessages
from shmring.nodes.reductions import NodesReductions

_ONE_MACHINE = ("empty", "zeros", "array", "share", "shared_view")


class NodesCommunicator(NodesReductions, NodesMessages):
    """A group of ranks that cannot all map each other's memory; made by `shmring.from_mpi` or a process group of torch.

    It has the calls of `shmring.Communicator` on any arrays, with results equal to the bit unless ``reproducible`` is
    false. One thread at a time is in a collective; a second one waits. As a context manager it closes, or aborts if
    left with an exception.

    Attributes
    ----------
    rank, size : int
        Among the ranks of all nodes.
    name : str
        For messages and logs.
    nodes : list of list of int
        The ranks of each node.
    local : shmring.Communicator
        The ranks of this node.
    reproducible : bool
    """

    def broadcast_object(self, obj=None, root=0, *, timeout=...):
        """As `shmring.Communicator.broadcast_object`."""
        return objects.broadcast_object(self, obj, root, timeout)

    def gather_object(self, obj, root=0, *, timeout=...):
        """As `shmring.Communicator.gather_object`."""
        return objects.gather_object(self, obj, root, timeout)

    def all_gather_object(self, obj, *, timeout=...):
        """As `shmring.Communicator.all_gather_object`."""
        return objects.all_gather_object(self, obj, timeout)

    def scatter_object(self, objs=None, root=0, *, timeout=...):
        """As `shmring.Communicator.scatter_object`."""
        return objects.scatter_object(self, objs, root, timeout)

    def all_to_all_object(self, objs, *, timeout=...):
        """As `shmring.Communicator.all_to_all_object`."""
        return objects.all_to_all_object(self, objs, timeout)

    def __enter__(self) -> NodesCommunicator:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if kind is not None and not (self.is_closed or self.is_inherited or self.is_broken):
            self.abort(f"{kind.__name__}: {value}")
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a communicator belongs to its process and can be neither copied nor pickled")

    def __getattr__(self, name: str) -> Any:
        if name in _ONE_MACHINE:
            raise TypeError(
                f"{name}() needs memory that all ranks can map, and the ranks are on {len(self.nodes)} nodes: call it "
                "on comm.local, the communicator of this node's ranks"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
