"""The builder of the plans of all collectives: it appends steps, and knows the buffers."""

from __future__ import annotations

from collections.abc import Sequence

from shmring.nodes.plan.layout import Layout, cut
from shmring.nodes.plan.steps import OUT, Await, Copy, Local, Plan, Recv, Send, Settle, Span, Step, X

CUT_NBYTES = 64 * 1024  # less than this travels on one rail
PIECE_NBYTES = 512 * 1024  # of a slice, where it is pipelined


class Builder:
    """Builds the plan of one rank, step by step.

    Parameters
    ----------
    layout : Layout
    rank : int
    itemsize : int
        Bytes of an element.
    """

    def __init__(self, layout: Layout, rank: int, itemsize: int) -> None:
        self.layout = layout
        self.rank = rank
        self.itemsize = itemsize
        self.node, self.local = layout.places[rank]
        self.ours = layout.nodes[self.node]
        self.is_alone = len(self.ours) == 1
        self.others = [node for node in range(len(layout)) if node != self.node]
        self.piece_count = max(1, PIECE_NBYTES // itemsize)
        self.steps: list[Step] = []
        self.is_after = False  # whether ranks of the node have exchanged data with other nodes
        self._temps: dict[str, int] = {}
        self._partials: set[str] = set()

    def plan(self, algorithm: str) -> Plan:
        """The plan made of the steps so far."""
        return Plan(algorithm, tuple(self.steps), self._temps, frozenset(self._partials))

    def temp(self, name: str, count: int, is_partial: bool = False) -> Span:
        """A buffer of the plan."""
        name = f"{name}{len(self._temps)}"
        self._temps[name] = count
        if is_partial:
            self._partials.add(name)
        return Span(name, 0, count)

    # ---- rails ----

    def rails(self, count: int) -> list[int]:
        """The elements of ``count`` that each local rank sends and receives; 0 for those that are not leaders."""
        n = self.layout.nleaders if count * self.itemsize >= CUT_NBYTES else 1
        return cut(count, n) + [0] * (len(self.ours) - n)

    def slice_of(self, span: Span) -> Span | None:
        """This rank's slice of it, None if it has none: on one rail the first local rank has all, be it empty."""
        counts = self.rails(span.count)
        if self.local and not counts[self.local]:
            return None
        return span.part(sum(counts[: self.local]), counts[self.local])

    def peer(self, node: int) -> int:
        """The rank of another node on this rank's rail."""
        return self.layout.nodes[node][self.local]

    # ---- steps ----

    def add(self, *steps: Step) -> None:
        """Append steps."""
        self.steps += steps

    def send(self, span: Span, node: int, stream: int = 0) -> None:
        """Send to the same rail's rank of another node."""
        self.add(Send(span, self.peer(node), stream))

    def recv(self, span: Span, node: int, stream: int = 0) -> None:
        """Receive from the same rail's rank of another node."""
        self.add(Recv(span, self.peer(node), stream))

    def wait(self, node: int, stream: int = 0) -> None:
        """Wait for what is received from there."""
        self.add(Await(self.peer(node), stream))

    def settle(self) -> None:
        """Wait until what was sent may be overwritten; nothing if nothing was sent."""
        if any(isinstance(step, Send) for step in self.steps):
            self.add(Settle())

    def local_call(self, call: str, source: Span | None, out: Span | None, *, root: int = 0, counts=()) -> None:
        """A collective within the node; nothing where it has one rank."""
        if not self.is_alone:
            if len(set(counts)) == 1:
                counts = ()
            self.add(Local(call, source, out, tuple(counts), root, self.is_after))

    def share(self, span: Span) -> None:
        """Give all ranks of the node the slices of ``span`` that its leaders have."""
        counts = self.rails(span.count)
        if counts[0] == span.count:
            self.local_call("broadcast", span, span)
        else:
            own = span.split(counts)[self.local]
            self.local_call("all_gather", own, span, counts=counts)

    def exchange(self, spans: Sequence[Span], source: Span | None = None, meanwhile: Sequence[Step] = ()) -> None:
        """Send this rank's slice of its node's span to all other nodes, and receive theirs; ``source`` has ours.

        ``meanwhile`` are steps before the wait.
        """
        self.is_after = True
        own = self.slice_of(spans[self.node]) if source is None else source
        for node in self.others:
            part = self.slice_of(spans[node])
            if part is not None:
                self.recv(part, node)
        for node in self.others:
            if own is not None:
                self.send(own, node)
        self.add(*meanwhile)
        for node in self.others:
            if self.slice_of(spans[node]) is not None:
                self.wait(node)

    # ---- order of ranks ----

    def in_node_order(self, sizes: Sequence[int]) -> tuple[Span, list[Span]]:
        """A block with the parts of all ranks, node by node, and the span of each node: OUT itself if possible."""
        total = sum(sizes)
        block = Span(OUT, 0, total) if self.layout.is_ordered else self.temp("block", total)
        return block, block.split([sum(sizes[r] for r in ranks) for ranks in self.layout.nodes])

    def put_in_order(self, block: Span, out: Span, sizes: Sequence[int]) -> None:
        """Copy the ranks' parts from the order of nodes into that of ranks, if they differ."""
        if self.layout.is_ordered:
            return
        targets = out.split(list(sizes))
        parts = block.split([sizes[r] for r in self.layout.order])
        self.add(*(Copy(targets[r], part) for r, part in zip(self.layout.order, parts, strict=True)))

    def by_node(self, sizes: Sequence[int]) -> Span:
        """X, one part for each rank, in the order of nodes: itself if it is in that order."""
        whole = Span(X, 0, sum(sizes))
        if self.layout.is_ordered:
            return whole
        block = self.temp("block", whole.count)
        parts = whole.split(list(sizes))
        targets = block.split([sizes[r] for r in self.layout.order])
        self.add(*(Copy(target, parts[r]) for r, target in zip(self.layout.order, targets, strict=True)))
        return block
