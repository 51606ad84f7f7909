"""Executes the plans of all ranks of several nodes on arrays of float64, in one process, and counts what crosses.

Messages are delivered as late as possible (when they are awaited), and memory is watched: a step that writes what is
still being sent, or touches what is being received, fails. X and OUT share memory where the test wants them to.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from shmring.nodes.plan.layout import Layout
from shmring.nodes.plan.steps import OUT, Await, Local, Plan, Span, X


class Traffic:
    """Messages and elements from one node to another."""

    def __init__(self):
        self.messages = defaultdict(int)
        self.elements = defaultdict(int)

    def into(self, node):
        return sum(n for (_, to), n in self.elements.items() if to == node)

    def out_of(self, node):
        return sum(n for (at, _), n in self.elements.items() if at == node)


class Simulation:
    """``plans``, ``xs`` and ``outs`` are those of each rank; ``outs[r]`` may be ``xs[r]``, or None."""

    def __init__(self, layout: Layout, plans: list[Plan], xs, outs, watched: bool = True):
        self.layout, self.plans, self.watched = layout, plans, watched
        self.memory = [
            {X: xs[r], OUT: outs[r], **{name: np.full(count, np.nan) for name, count in plans[r].temps.items()}}
            for r in range(layout.size)
        ]
        self.at = [0] * layout.size
        self.posted = [defaultdict(deque) for _ in plans]  # (peer, stream): spans
        self.sending = [[] for _ in plans]
        self.wires = defaultdict(deque)  # (from, to, stream): contents
        self.received = [defaultdict(int) for _ in plans]
        self.traffic = Traffic()
        self.rounds = [0] * layout.size  # length of the longest chain of messages before this rank's next step

    def run(self) -> Traffic:
        moved = True
        while moved:
            moved = False
            for r in range(self.layout.size):
                while self.at[r] < len(self.plans[r].steps) and self._step(r, self.plans[r].steps[self.at[r]]):
                    moved = True
        stuck = {r: self.plans[r].steps[at] for r, at in enumerate(self.at) if at < len(self.plans[r].steps)}
        assert not stuck, f"deadlock: {stuck}"
        assert not any(self.wires.values()), "messages that no rank received"
        assert not any(queue for posted in self.posted for queue in posted.values())
        return self.traffic

    def view(self, r: int, span: Span) -> np.ndarray:
        whole = self.memory[r][span.buffer]
        assert 0 <= span.start <= span.stop <= len(whole), f"rank {r}: {span} of {len(whole)} elements"
        return whole[span.start : span.stop]

    def _read(self, r: int, span: Span) -> np.ndarray:
        view = self.view(r, span)
        for queue in self.posted[r].values() if self.watched else ():
            others = [self.view(r, other) for other in queue if other.count and span.count]
            assert not any(np.may_share_memory(view, other) for other in others), f"rank {r} receives into {span}"
        return view

    def _write(self, r: int, span: Span) -> np.ndarray:
        view = self._read(r, span)
        for sent, _ in self.sending[r] if self.watched else ():
            overlaps = sent.size and view.size and np.may_share_memory(view, sent)
            assert not overlaps, f"rank {r} overwrites what it sends"
        return view

    def _put(self, r: int, span: Span, content: np.ndarray) -> None:
        """As `_write`, where a part that has its content already may be on its way to another node."""
        self._read(r, span)[:] = content
        assert all(np.array_equal(view, copy, equal_nan=True) for view, copy in self.sending[r])

    def _step(self, r: int, step) -> bool:
        if isinstance(step, Local):
            return self._local(step, r)
        if isinstance(step, Await) and not self.wires[step.peer, r, step.stream]:
            return False
        getattr(self, f"_{type(step).__name__.lower()}")(r, step)
        self.at[r] += 1
        return True

    def _send(self, r, step):
        assert self.layout.places[step.peer][0] != self.layout.places[r][0]
        view = self._read(r, step.span)
        if self.watched:
            self.sending[r].append((view, view.copy()))
        self.wires[r, step.peer, step.stream].append((view.copy(), self.rounds[r] + 1))
        nodes = self.layout.places[r][0], self.layout.places[step.peer][0]
        self.traffic.messages[nodes] += 1
        self.traffic.elements[nodes] += step.span.count

    def _recv(self, r, step):
        self._write(r, step.span)
        self.posted[r][step.peer, step.stream].append(step.span)

    def _await(self, r, step):
        content, rounds = self.wires[step.peer, r, step.stream].popleft()
        span = self.posted[r][step.peer, step.stream].popleft()
        assert span.count == len(content)
        self.view(r, span)[:] = content
        self.rounds[r] = max(self.rounds[r], rounds)

    def _settle(self, r, step):
        assert not self.watched or step.nmessages <= len(self.sending[r])
        del self.sending[r][: step.nmessages or None]

    def _copy(self, r, step):
        self._put(r, step.out, self._read(r, step.source).copy())

    def _fold(self, r, step):
        rows = [self._read(r, span).copy() for span in ((step.before,) if step.before else ()) + step.sources]
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        self._write(r, step.out)[:] = total

    # ---- within a node: when all its ranks have come ----

    def _local(self, step: Local, r: int) -> bool:
        ranks = self.layout.nodes[self.layout.places[r][0]]
        steps = []
        for peer in ranks:
            ahead = self.plans[peer].steps[self.at[peer] :]
            if not ahead or not isinstance(ahead[0], Local):
                return False
            steps.append(ahead[0])
        assert len({(one.call, one.root) for one in steps}) == 1, steps
        for peer, one in zip(ranks, steps, strict=True):  # else an engine without threads could not go on
            assert not (one.is_after and any(self.posted[peer].values())), f"rank {peer} sleeps with receives"
        assert len({one.counts for one in steps}) == 1
        pairs = zip(ranks, steps, strict=True)
        sources = [None if one.source is None else self._read(peer, one.source).copy() for peer, one in pairs]
        outs = [one.out for one in steps]

        def put(i, content):
            assert outs[i].count == len(content), (step, outs[i], len(content))
            self._put(ranks[i], outs[i], content)

        _LOCAL[step.call](steps, sources, put)
        for peer in ranks:
            self.at[peer] += 1
        latest = max(self.rounds[peer] for peer in ranks)
        for peer in ranks:
            self.rounds[peer] = latest
        return True


def _blocks(content, counts, n):
    counts = list(counts) or [len(content) // n] * n
    assert sum(counts) == len(content)
    return np.split(content, np.cumsum(counts)[:-1])


def _broadcast(steps, sources, put):
    for i in range(len(steps)):
        if i != steps[0].root:
            put(i, sources[steps[0].root])


def _checked_counts(steps, sources):
    if steps[0].counts:
        assert [len(source) for source in sources] == list(steps[0].counts)
    return np.concatenate(sources)


def _gather(steps, sources, put):
    put(steps[0].root, _checked_counts(steps, sources))


def _all_gather(steps, sources, put):
    for i in range(len(steps)):
        put(i, _checked_counts(steps, sources))


def _scatter(steps, sources, put):
    root = steps[0].root
    for i, block in enumerate(_blocks(sources[root], steps[0].counts, len(steps))):
        put(i, block)


def _all_to_all(steps, sources, put):
    n, counts = len(steps), steps[0].counts
    blocks = [_blocks(source, counts[i * n : (i + 1) * n], n) for i, source in enumerate(sources)]
    for i in range(n):
        put(i, np.concatenate([row[i] for row in blocks]))


def _sum(sources):
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total


def _reduce(steps, sources, put):
    put(steps[0].root, _sum(sources))


def _reduce_scatter(steps, sources, put):
    for i, block in enumerate(_blocks(_sum(sources), steps[0].counts, len(steps))):
        put(i, block)


def _barrier(steps, sources, put):
    pass


_LOCAL = {
    "broadcast": _broadcast, "gather": _gather, "all_gather": _all_gather, "scatter": _scatter,
    "all_to_all": _all_to_all, "reduce": _reduce, "reduce_scatter": _reduce_scatter, "barrier": _barrier,
}  # fmt: skip
