"""A communicator with ranks on several nodes: shared memory within each node, a wire between them."""

from __future__ import annotations

from typing import Any, NoReturn

from shmring.base.timeouts import timeout_ns
from shmring.collective import objects
from shmring.nodes.reductions import NodesReductions
from shmring.p2p.requests import ANY_SOURCE, ANY_TAG

_ONE_MACHINE = ("empty", "zeros", "array", "share", "shared_view", "shared_result", "explain", "trace", "placement")


class NodesCommunicator(NodesReductions):
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

    def _limit_ns(self, timeout) -> int:
        return timeout_ns(self._timeout_s if timeout is ... else timeout)

    def send(self, x, dst, tag=0, *, timeout=...):
        """As `shmring.Communicator.send`, except that a message not received in time stays under way."""
        self.messages.send(x, dst, tag, self._limit_ns(timeout))

    def recv(self, x, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.recv`."""
        return self.messages.recv(x, src, tag, self._limit_ns(timeout))

    def sendrecv(self, x, dst, out, src=ANY_SOURCE, *, tag=0, out_tag=ANY_TAG, timeout=...):
        """As `shmring.Communicator.sendrecv`, except that a message not received in time stays under way."""
        return self.messages.sendrecv(x, dst, tag, out, src, out_tag, self._limit_ns(timeout))

    def isend(self, x, dst, tag=0):
        """As `shmring.Communicator.isend`."""
        return self.messages.isend(x, dst, tag)

    def irecv(self, x, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.irecv`."""
        return self.messages.irecv(x, src, tag)

    def probe(self, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.probe`."""
        return self.messages.probe(src, tag, self._limit_ns(timeout))

    def iprobe(self, src=ANY_SOURCE, tag=ANY_TAG):
        """As `shmring.Communicator.iprobe`."""
        return self.messages.probe(src, tag, 0)

    def send_object(self, obj, dst, tag=0, *, timeout=...):
        """As `shmring.Communicator.send_object`."""
        self.messages.send_object(obj, dst, tag, self._limit_ns(timeout))

    def recv_object(self, src=ANY_SOURCE, tag=ANY_TAG, *, timeout=...):
        """As `shmring.Communicator.recv_object`."""
        return self.messages.recv_object(src, tag, self._limit_ns(timeout))

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
