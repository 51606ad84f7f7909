"""The collectives of several nodes: a part within each node, the wire's own collective between nodes, a part again.

Where a local part saves something, that way and the wire alone take turns in the first calls of each kind and size,
some calls in a row each, as a call may leave its work to the next ones; then all ranks agree on the quickest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

NRUNS = 7  # of each way; the first one is not counted
RUN = 4  # calls
GAIN = 0.9  # of the time of the wire alone, from which on another way is taken
LANES_NBYTES = 8192  # from which on an all_reduce may go by all lanes


class Collectives:
    """The ways of the calls of one `NodesGroup`; each takes a `shmring.nodes.executor.NodesCall`."""

    def __init__(self, places: Any, wire: Any) -> None:
        self.places, self.whole, self.lane = places, wire.whole, wire.lane
        self.is_leader = places.place == 0
        self.seconds: dict[tuple, dict[str, list[float]]] = {}  # of each kind and size, of each way
        self.chosen: dict[tuple, str] = {}

    def make(self, c: Any) -> None:
        """Make a call of which no way is settled."""
        ways = self._ways(c)
        key = (c.kind, c.nbytes.bit_length(), *ways)
        name = self.chosen.get(key) if len(ways) > 1 else "wire"
        if name is None:
            self._try(key, ways, c)
            return
        if not c.counts:
            is_plain = name == "wire" and (not c.op or (c.op != "avg" and self.whole.reduces(c.kind, c.op, c.dtype)))
            c.settle((is_plain and self.whole.settled(c)) or ways[name])
        ways[name](c)

    def stats(self) -> list[dict[str, Any]]:
        """The kinds and sizes of calls with several ways: the way taken, and the seconds of each in the trials."""
        return [
            {"call": key[0], "most_nbytes": (1 << key[1]) - 1, "way": name, "seconds": self.seconds[key]}
            for key, name in self.chosen.items()
        ]

    def _try(self, key: tuple, ways: dict[str, Callable], c: Any) -> None:
        seconds = self.seconds.setdefault(key, {name: [] for name in ways})
        name = list(ways)[sum(map(len, seconds.values())) // RUN % len(ways)]
        began = time.perf_counter()
        ways[name](c)
        seconds[name].append(time.perf_counter() - began)
        if len(list(seconds.values())[-1]) == NRUNS * RUN:
            runs = np.reshape(list(seconds.values()), (len(ways), NRUNS, RUN)).mean(axis=2)
            times = np.median(runs[:, 1:], axis=1)  # of the slowest rank:
            content = times.view(np.uint8)
            self._run(self.whole, c, "all_reduce", content, content, True, op="max", dtype="float64")
            best = int(times.argmin())
            self.chosen[key] = list(ways)[best if times[best] < GAIN * times[0] else 0]

    def _ways(self, c: Any) -> dict[str, Callable]:
        """The ways of a call, the wire alone first; equal on all ranks."""
        places = self.places
        ways: dict[str, Callable] = {"wire": self._wire}
        is_of_wire = not c.op or self.whole.reduces(c.kind, c.op, c.dtype)
        if len(places.nodes) == places.size or (c.op == "avg" and not is_of_wire):
            return ways
        if c.kind == "all_reduce":
            ways["leaders"] = self._leaders
            if places.is_even and c.nbytes >= LANES_NBYTES:
                ways["lanes"] = self._lanes
        elif c.kind == "broadcast" and places.of[c.root][1] < places.nlanes:
            ways["parts"] = self._broadcast
        elif c.kind == "reduce_scatter" and places.is_even and not c.counts:
            ways["parts"] = self._reduce_scatter
        elif c.kind == "all_gather" and places.is_sorted:
            ways["parts"] = self._all_gather
        elif c.kind == "barrier":
            ways["parts"] = self._barrier
        return ways

    def _run(self, team, c, kind, x, out, in_place=False, root=-1, sizes=None, got=None, op=None, dtype="uint8"):
        """A collective of the wire. Its memory is kept here: mpi4py does not keep that of all kinds."""
        if in_place and kind in ("all_to_all", "reduce_scatter"):
            x, in_place = x.copy(), False
        c.wait(team.begin(kind, x, out, in_place, root, sizes, got, op, dtype), (x, out))

    def _reduce_by(self, team, c, kind, x, out, in_place=False, root=-1, sizes=None):
        """A reduction by the wire; or what it lacks is gathered as bytes, and our kernels reduce it in rank order."""
        if team.reduces(kind, c.op, c.dtype):
            self._run(team, c, kind, x, out, in_place, root, sizes, op=c.op, dtype=c.dtype)
            if c.op == "avg" and out is not None:
                numbers = out.view(np.float32 if c.dtype in ("float32", "complex64") else np.float64)
                np.divide(numbers, self.whole.size, out=numbers)
            return
        n, is_scatter = team.size, kind == "reduce_scatter"
        rows = np.empty((n, out.nbytes if is_scatter else x.nbytes), np.uint8)
        if is_scatter:
            blocks = sizes or [out.nbytes] * n
            self._run(team, c, "all_to_all", x, rows.reshape(-1), sizes=blocks, got=[out.nbytes] * n)
        else:
            self._run(team, c, "all_gather", x, rows.reshape(-1))
        last = {"scan": team.rank + 1, "exscan": team.rank}.get(kind, n)
        if out is not None and last:
            c.fold(out, rows[:last])

    # ---- the wire alone ----

    def _wire(self, c: Any) -> None:
        sizes = got = None
        if c.counts and c.kind == "all_to_all":
            n, rank = self.whole.size, self.whole.rank
            sizes = [k * c.itemsize for k in c.counts[rank * n : rank * n + n]]
            got = [k * c.itemsize for k in c.counts[rank::n]]
        elif c.counts:
            sizes = [k * c.itemsize for k in c.counts]
        if c.op:
            self._reduce_by(self.whole, c, c.kind, c.x, c.out, c.in_place, c.root, sizes)
        else:
            self._run(self.whole, c, c.kind, c.x, c.out, c.in_place, c.root, sizes, got)

    # ---- with a part in each node ----

    def _barrier(self, c: Any) -> None:
        c.local("barrier")
        if self.is_leader:
            self._run(self.lane, c, "barrier", None, None)
        c.local("barrier")

    def _leaders(self, c: Any) -> None:
        """An all_reduce by the leaders, the first ranks of the nodes."""
        c.local("reduce", c.x, c.out if self.is_leader else None, 0)
        if self.is_leader:
            self._reduce_by(self.lane, c, "all_reduce", c.out, c.out, True)
        c.local("broadcast", c.out, c.out, 0)

    def _lanes(self, c: Any) -> None:
        """An all_reduce by all lanes, each of which has a part of the array."""
        n = self.places.nlanes
        each, more = divmod(c.nbytes // c.itemsize, n)
        sizes = [(each + (k < more)) * c.itemsize for k in range(n)]
        own = part(c.out, sizes, self.places.place)
        c.local("reduce_scatter", c.x, own, counts=sizes)
        self._reduce_by(self.lane, c, "all_reduce", own, own, True)
        c.local("all_gather", own, c.out, counts=sizes)

    def _broadcast(self, c: Any) -> None:
        node, place = self.places.of[c.root]
        if self.places.place == place:
            self._run(self.lane, c, "broadcast", c.x, c.out, True, node)
        c.local("broadcast", c.out, c.out, place)

    def _all_gather(self, c: Any) -> None:
        places = self.places
        sizes = [k * c.itemsize for k in c.counts] if c.counts else [c.nbytes] * places.size
        of_nodes = [sum(sizes[r] for r in ranks) for ranks in places.nodes]
        ours = part(c.out, of_nodes, places.node) if self.is_leader else None
        c.local("gather", c.x, ours, 0, [sizes[r] for r in places.ours])
        if self.is_leader:
            between = of_nodes if len(set(of_nodes)) > 1 else None
            self._run(self.lane, c, "all_gather", ours, c.out, True, sizes=between)
        c.local("broadcast", c.out, c.out, 0)

    def _reduce_scatter(self, c: Any) -> None:
        nodes = self.places.nodes
        rows = c.x.reshape(self.whole.size, -1)[[ranks[k] for k in range(self.places.nlanes) for ranks in nodes]]
        ours = np.empty(len(nodes) * c.out.nbytes, np.uint8)
        c.local("reduce_scatter", rows.reshape(-1), ours)
        self._reduce_by(self.lane, c, "reduce_scatter", ours, c.out)


def part(x: np.ndarray, sizes: Sequence[int], i: int) -> np.ndarray:
    """The ``i``-th part of an array with parts of these sizes: a view."""
    ends = list(accumulate(sizes, initial=0))
    return x[ends[i] : ends[i + 1]]
