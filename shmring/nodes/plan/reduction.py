"""Plans of the collectives that reduce over several nodes.

Two algorithms, chosen by `shmring.nodes.plan.call`:

- *gather*: one rank of each node gets the vectors of all ranks and reduces them. One message between nodes.
- *direct*: each node reduces one part of the vector, which all others send to it. Two messages one after the other;
  pipelined in pieces.

By default operands are added in the order of all ranks, so the result has the bits of one machine: what is sent is the
vectors of single ranks. With ``merged`` each node first adds its own ranks, and the nodes exchange one vector each.
A scan is a chain: a sum of all ranks before goes from node to node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from shmring.nodes.plan.build import Builder
from shmring.nodes.plan.layout import Layout, cut
from shmring.nodes.plan.steps import OUT, Await, Copy, Fold, Plan, Recv, Send, Settle, Span, X


class Rows:
    """The vectors that are added: one for each rank, or if ``merged`` one for each node."""

    def __init__(self, b: Builder, merged: bool) -> None:
        self.merged = merged
        self.counts = [1 if merged else len(ranks) for ranks in b.layout.nodes]
        self.order = [(node, 0) for node in range(len(b.layout))] if merged else list(b.layout.places)


def all_reduce(layout: Layout, rank: int, count: int, itemsize: int, algorithm: str, merged: bool = False) -> Plan:
    """OUT is the sum of all ranks' X on every rank."""
    b = Builder(layout, rank, itemsize)
    out = Span(OUT, 0, count)
    if algorithm == "gather" and layout.size == len(layout):
        _fold_pieces(b, Span(X, 0, count), out)
        return b.plan(algorithm)
    if algorithm == "gather":
        _gather_rows(b, Rows(b, merged), count, [(out, 0)], range(len(layout)), 0)
        b.local_call("broadcast", out, out)
        return b.plan(algorithm)
    rails = b.rails(count)
    own = out.split(rails)[b.local]
    rows = _rail_rows(b, Span(X, 0, count), rails, merged)
    b.is_after = True
    parts = cut(own.count, len(layout))
    if _has_rail(b):
        _fold_direct(b, Rows(b, merged), [row.split(parts) for row in rows], own.split(parts), returns=True)
    b.local_call("all_gather", own, out, counts=rails)
    return b.plan(algorithm)


def reduce(
    layout: Layout, rank: int, count: int, itemsize: int, algorithm: str, root: int, merged: bool = False
) -> Plan:
    """OUT is the sum of all ranks' X on the root; the other ranks have no OUT."""
    b = Builder(layout, rank, itemsize)
    home, first = layout.places[root]
    out = Span(OUT, 0, count)
    if algorithm == "gather":
        _gather_rows(b, Rows(b, merged), count, [(out, 0)], [home], first)
        return b.plan(algorithm)
    rails = b.rails(count)
    is_home = b.node == home
    own = out if rank == root and b.is_alone else b.temp("own", rails[b.local] if is_home else 0)
    rows = _rail_rows(b, Span(X, 0, count), rails, merged)
    b.is_after = True
    parts = [0] * len(layout)
    parts[home] = rails[b.local]
    if _has_rail(b):
        targets = [own if node == home else own.part(0, 0) for node in range(len(layout))]
        _fold_direct(b, Rows(b, merged), [row.split(parts) for row in rows], targets, returns=False)
    if is_home:
        b.local_call("gather", own, out if rank == root else None, root=first, counts=rails)
    return b.plan(algorithm)


def reduce_scatter(
    layout: Layout, rank: int, sizes: Sequence[int], itemsize: int, algorithm: str, merged: bool = False
) -> Plan:
    """OUT is this rank's part, ``sizes[rank]`` elements, of the sum of all ranks' X."""
    b = Builder(layout, rank, itemsize)
    ours = [sizes[r] for r in b.ours]
    own = Span(OUT, 0, sizes[rank])
    if algorithm == "gather":
        blocks = own if b.is_alone else b.temp("blocks", sum(ours))
        starts = [0, *accumulate(sizes)]
        outs = [(to, starts[r]) for r, to in zip(b.ours, blocks.split(ours), strict=True)]
        _gather_rows(b, Rows(b, merged), sum(sizes), outs, range(len(layout)), 0)
        if not b.is_alone:
            b.local_call("broadcast", blocks, blocks)  # of what is short, faster than a scatter
            b.add(Copy(own, blocks.split(ours)[b.local]))
        return b.plan(algorithm)
    x = b.by_node(sizes)
    counts = [sum(sizes[r] for r in ranks) for ranks in layout.nodes]
    rails = [b.rails(count) for count in counts]
    is_own = rails[b.node] == ours  # each rank of the node adds the part that it gets
    is_one = all(rail[0] == count for rail, count in zip(rails, counts, strict=True))  # one rail has everything
    mine = own if is_own else b.temp("mine", rails[b.node][b.local])
    if is_one:
        rows = _rail_rows(b, x, [x.count] + [0] * (len(ours) - 1), merged)
        by_row = [row.split([row.count and count for count in counts]) for row in rows]
    else:
        columns = [_rail_rows(b, part, rails[node], merged) for node, part in enumerate(x.split(counts))]
        by_row = [list(row) for row in zip(*columns, strict=True)]
    if _has_rail(b):
        targets = [mine if node == b.node else mine.part(0, 0) for node in range(len(layout))]
        _fold_direct(b, Rows(b, merged), by_row, targets, returns=False)
    b.is_after = True
    if not is_own:
        whole = mine if is_one and b.local == 0 else b.temp("node", sum(ours))
        if is_one:
            b.local_call("broadcast", whole, whole)
        else:
            b.local_call("all_gather", mine, whole, counts=rails[b.node])
        b.add(Copy(own, whole.split(ours)[b.local]))
    return b.plan(algorithm)


def scan(layout: Layout, rank: int, count: int, itemsize: int, exclusive: bool) -> Plan:
    """OUT is the sum of X on the ranks to this one, or if ``exclusive`` on those before."""
    b = Builder(layout, rank, itemsize)
    rails = b.rails(count)
    own = rails[b.local]
    rows = _rail_rows(b, Span(X, 0, count), rails, merged=False)
    results = b.temp("results", len(b.ours) * own).split([own] * len(b.ours))
    carry, last = b.temp("carry", own, is_partial=True), b.temp("last", own)
    done = 0
    for i, (node, locals_) in enumerate(layout.runs):
        if node == b.node and own:
            before = None
            if i:
                b.recv(carry, layout.runs[i - 1][0], 2 * i)
                b.wait(layout.runs[i - 1][0], 2 * i)
                before = carry
                if exclusive:
                    b.recv(last, layout.runs[i - 1][0], 2 * i + 1)
                    b.wait(layout.runs[i - 1][0], 2 * i + 1)
            for at, local in enumerate(locals_):
                if exclusive and done + at:
                    b.add(Copy(results[local], last))
                b.add(Fold(last if exclusive else results[local], (rows[local],), before, done + at + 1))
                b.add(Fold(carry, (rows[local],), before))
                before = carry
            if i + 1 < len(layout.runs):
                b.send(carry, layout.runs[i + 1][0], 2 * i + 2)
                if exclusive:
                    b.send(last, layout.runs[i + 1][0], 2 * i + 3)
                b.settle()
        done += len(locals_)
    is_first = exclusive and rank == 0  # its OUT stays as it is
    if b.is_alone:
        b.add(*([] if is_first else [Copy(Span(OUT, 0, count), results[0])]))
        return b.plan("chain")
    b.is_after = True
    whole = Span(results[0].buffer, 0, len(b.ours) * own)
    target = b.temp("unused", count) if is_first else Span(OUT, 0, count)
    b.local_call("all_to_all", whole, target, counts=[rail for rail in rails for _ in b.ours])
    return b.plan("chain")


# ---- algorithms ------------------------------------------------------------------------------------------------------


def _gather_rows(
    b: Builder, rows: Rows, count: int, outs: list[tuple[Span, int]], targets: Sequence[int], collector: int
) -> None:
    """The gather algorithm, for vectors of ``count`` elements.

    On the local rank ``collector`` of each target node, every span of ``outs`` is a part of the result, from the
    element beside it on.
    """
    is_target = b.node in targets
    first = collector if is_target else 0
    wanted = [n if node == b.node or is_target else 0 for node, n in enumerate(rows.counts)]
    if b.local != first or b.is_alone:
        wanted[b.node] = 0
    block = b.temp("rows", count * sum(wanted) if b.local == first else 0)
    x = Span(X, 0, count)
    if b.local != first:
        b.local_call("reduce" if rows.merged else "gather", x, None, root=first)
        b.is_after = True
        return
    spans = block.split([n * count for n in wanted])
    own = spans[b.node] = x if b.is_alone else spans[b.node]
    b.local_call("reduce" if rows.merged else "gather", x, own, root=first)
    b.is_after = True
    peers = {node: b.layout.nodes[node][collector if node in targets else 0] for node in b.others}
    if is_target:
        b.add(*(Recv(spans[node], peers[node]) for node in b.others))
    b.add(*(Send(own, peers[node]) for node in b.others if node in targets))
    if is_target:
        b.add(*(Await(peers[node]) for node in b.others))
        b.settle()
        for out, start in outs:
            sources = tuple(spans[node].part(i * count + start, out.count) for node, i in rows.order)
            b.add(Fold(out, sources, None, b.layout.size))


def _fold_pieces(b: Builder, own: Span, out: Span) -> None:
    """The gather algorithm where every node has one rank: each sends its vector to all, a piece while others travel."""
    blocks = b.temp("rows", own.count * len(b.others)).split([own.count] * len(b.others))
    rows = sorted([(b.node, own), *zip(b.others, blocks, strict=True)])
    pieces = [(node, list(row.pieces(b.piece_count))) for node, row in rows]
    for k in range(len(pieces[0][1])):
        for node, row in pieces:
            if node != b.node:
                b.recv(row[k], node)
        for node in b.others:
            b.send(pieces[b.node][1][k], node)
    for k, result in enumerate(out.pieces(b.piece_count)):
        for node in b.others:
            b.wait(node)
        b.add(Settle(len(b.others)))  # since the result may belong there
        b.add(Fold(result, tuple(row[k] for _, row in pieces), None, b.layout.size))


def _has_rail(b: Builder) -> bool:
    return b.local < b.layout.nleaders


def _rail_rows(b: Builder, part: Span, rails: list[int], merged: bool) -> list[Span]:
    """This rail's slice of ``part``, a part of X, of each rank of the node; or the node's sum of it."""
    if b.is_alone:
        return [part]
    own, is_one = rails[b.local], rails[0] == part.count
    block = b.temp("rows", own if merged else own * len(b.ours))
    if is_one:
        b.local_call("reduce" if merged else "gather", part, block if b.local == 0 else None)
    elif merged:
        b.local_call("reduce_scatter", part, block, counts=rails)
    else:
        b.local_call("all_to_all", part, block, counts=rails * len(b.ours))
    if merged:
        return [block]
    return block.split([own] * len(b.ours))


def _fold_direct(b: Builder, rows: Rows, ours: list[list[Span]], targets: list[Span], returns: bool) -> None:
    """The direct algorithm: ``ours[i][node]`` is row i's part for a node, ``targets[node]`` where its result belongs.

    With ``returns`` every node then gets the results of all parts. In pieces: a piece is added while others travel.
    """
    own = targets[b.node]
    inbox = b.temp("inbox", own.count * sum(rows.counts[node] for node in b.others))
    blocks = inbox.split([own.count * rows.counts[node] for node in b.others])
    by_node = {node: block.split([own.count] * rows.counts[node])
               for node, block in zip(b.others, blocks, strict=True)}  # fmt: skip
    by_node[b.node] = [row[b.node] for row in ours]
    results = list(own.pieces(b.piece_count)) if own.count else []
    columns = {node: [list(row.pieces(b.piece_count)) for row in by_node[node]] for node in by_node}
    awaited = [(node, i) for node in b.others for i in range(rows.counts[node])] if results else []
    for k in range(len(results)):
        for node, i in awaited:
            b.recv(columns[node][i][k], node, i)
    theirs = {node: list(targets[node].pieces(b.piece_count)) for node in b.others if returns and targets[node].count}
    sent = _send_pieces(b, ours)
    stream = max(rows.counts)
    for k in range(max([len(results), len(sent)])):
        if k < len(results):
            for node, i in awaited:
                b.wait(node, i)
            b.add(Fold(results[k], tuple(columns[node][i][k] for node, i in rows.order), None, b.layout.size))
            for node in b.others if returns else ():
                b.send(results[k], node, stream)
        if k < len(sent):
            b.add(Settle(sent[k]))  # since the results may belong there
        for node in theirs:
            if k < len(theirs[node]):
                b.recv(theirs[node][k], node, stream)
    for node, pieces in theirs.items():
        for _ in pieces:
            b.wait(node, stream)


def _send_pieces(b: Builder, ours: list[list[Span]]) -> list[int]:
    """Send every other node its parts, piece by piece; returns the number of messages of each piece."""
    sends = [(node, i, list(row[node].pieces(b.piece_count)))
             for node in b.others for i, row in enumerate(ours) if row[node].count]  # fmt: skip
    counts = []
    for k in range(max([len(pieces) for _, _, pieces in sends], default=0)):
        with_piece = [one for one in sends if k < len(one[2])]
        counts.append(len(with_piece))
        for node, i, pieces in with_piece:
            b.send(pieces[k], node, i)
    return counts
