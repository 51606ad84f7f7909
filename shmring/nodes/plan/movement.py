"""Plans of the collectives that move data over several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shmring.nodes.plan.build import CUT_NBYTES, Builder
from shmring.nodes.plan.layout import Layout
from shmring.nodes.plan.steps import OUT, Await, Copy, Plan, Recv, Send, Settle, Span, X


def broadcast(layout: Layout, rank: int, count: int, itemsize: int, root: int) -> Plan:
    """From the root to the leaders of its node, along a binomial tree of nodes on each rail, and within the nodes.

    X is the array on all ranks.
    """
    b = Builder(layout, rank, itemsize)
    home, first = layout.places[root]
    whole = Span(X, 0, count)
    if b.node == home:
        b.local_call("broadcast", whole, whole, root=first)
    part = b.slice_of(whole)
    b.is_after = True
    if part is not None:
        _along_tree(b, part, home)
    if b.node != home:
        b.share(whole)
    return b.plan("tree")


def _along_tree(b: Builder, part: Span, home: int) -> None:
    n = len(b.layout)
    place = (b.node - home) % n
    bit = place & -place or 1 << n.bit_length()
    children = []
    while bit := bit >> 1:
        if place + bit < n:
            children.append((place + bit + home) % n)
    parent = (place - (place & -place) + home) % n
    pieces = list(part.pieces(b.piece_count))
    for piece in pieces if place else ():
        b.recv(piece, parent)
    for piece in pieces:
        if place:
            b.wait(parent)
        for child in children:
            b.send(piece, child)


def all_gather(layout: Layout, rank: int, sizes: Sequence[int], itemsize: int) -> Plan:
    """Within each node, then every node's part to every other node. X has ``sizes[rank]`` elements."""
    b = Builder(layout, rank, itemsize)
    block, spans = b.in_node_order(sizes)
    own, ours = spans[b.node], [sizes[r] for r in b.ours]
    source = Span(X, 0, sizes[rank])
    is_small = max(span.count for span in spans) * itemsize < CUT_NBYTES
    if b.is_alone:
        b.exchange(spans, source, [Copy(own, source)])
    elif is_small:  # then one rail has everything
        b.local_call("gather", source, own, counts=ours)
        b.exchange(spans)
        b.local_call("broadcast", block, block)
    else:
        b.local_call("all_gather", source, own, counts=ours)
        b.exchange(spans)
        for node in b.others:
            b.share(spans[node])
    b.put_in_order(block, Span(OUT, 0, block.count), sizes)
    return b.plan("all_to_all_nodes")


def gather(layout: Layout, rank: int, sizes: Sequence[int], itemsize: int, root: int) -> Plan:
    """Every other node's first rank gathers what the node has and sends it to the root."""
    b = Builder(layout, rank, itemsize)
    home, first = layout.places[root]
    source, ours = Span(X, 0, sizes[rank]), [sizes[r] for r in b.ours]
    if b.node != home:
        block = source
        if not b.is_alone:
            block = b.temp("block", sum(ours) if b.local == 0 else 0)
            b.local_call("gather", source, block, counts=ours)
        if b.local == 0:
            b.add(Send(block, root))
    elif rank != root:
        b.local_call("gather", source, None, root=first, counts=ours)
    else:
        block, spans = b.in_node_order(sizes)
        leaders = [layout.nodes[node][0] for node in b.others]
        b.add(*(Recv(spans[node], leader) for node, leader in zip(b.others, leaders, strict=True)))
        if b.is_alone:
            b.add(Copy(spans[home], source))
        b.local_call("gather", source, spans[home], root=first, counts=ours)
        b.add(*(Await(leader) for leader in leaders))
        b.put_in_order(block, Span(OUT, 0, block.count), sizes)
    return b.plan("by_node")


def scatter(layout: Layout, rank: int, sizes: Sequence[int], itemsize: int, root: int) -> Plan:
    """The root sends every other node's part to the node's first rank."""
    b = Builder(layout, rank, itemsize)
    home, first = layout.places[root]
    own, ours = Span(OUT, 0, sizes[rank]), [sizes[r] for r in b.ours]
    source = None
    if rank == root:
        block = b.by_node(sizes)
        spans = block.split([sum(sizes[r] for r in ranks) for ranks in layout.nodes])
        b.add(*(Send(spans[node], layout.nodes[node][0]) for node in b.others))
        source = spans[home]
        if b.is_alone:
            b.add(Settle(), Copy(own, source))
    elif b.node != home and b.local == 0:
        source = own if b.is_alone else b.temp("block", sum(ours))
        b.add(Recv(source, root), Await(root))
    b.is_after = b.node != home
    b.local_call("scatter", source, own, root=first if b.node == home else 0, counts=ours)
    return b.plan("by_node")


def all_to_all(layout: Layout, rank: int, rows: Sequence[Sequence[int]], itemsize: int, in_place: bool) -> Plan:
    """Each rank with each rank of the other nodes; within the node in shared memory.

    ``rows[i][j]`` is the elements that rank i sends to rank j.
    """
    b = Builder(layout, rank, itemsize)
    counts, out_counts = rows[rank], [row[rank] for row in rows]
    pieces = Span(X, 0, sum(counts)).split(list(counts))
    targets = Span(OUT, 0, sum(out_counts)).split(list(out_counts))
    if in_place:  # what arrives would overwrite what is still to be sent
        copies = b.temp("copy", sum(counts)).split(list(counts))
        b.add(Copy(Span(copies[0].buffer, 0, sum(counts)), Span(X, 0, sum(counts))))
        pieces = copies
    away = [r for node in b.others for r in layout.nodes[node]]
    b.add(*(Recv(targets[r], r) for r in away))
    b.add(*(Send(pieces[r], r) for r in away))
    if b.is_alone:
        b.add(Copy(targets[rank], pieces[rank]))
    else:
        source, copied = _adjacent(b, "send", [pieces[r] for r in b.ours])
        target, is_apart = _adjacent(b, "recv", [targets[r] for r in b.ours])
        b.add(*copied)
        b.local_call("all_to_all", source, target, counts=[rows[i][j] for i in b.ours for j in b.ours])
        b.add(*(Copy(copy.source, copy.out) for copy in is_apart))
    b.add(*(Await(r) for r in away))
    return b.plan("each_to_each")


def _adjacent(b: Builder, name: str, parts: list[Span]) -> tuple[Span, list[Copy]]:
    """One span of these: themselves if they are adjacent, else a buffer, and the copies that fill it."""
    if all(before.stop == after.start for before, after in pairwise(parts)):
        return Span(parts[0].buffer, parts[0].start, parts[-1].stop), []
    block = b.temp(name, sum(part.count for part in parts))
    return block, [Copy(to, part) for to, part in zip(block.split([p.count for p in parts]), parts, strict=True)]


def barrier(layout: Layout, rank: int) -> Plan:
    """The ranks of each node; their first ranks, in rounds over twice the distance (dissemination); each node again."""
    b = Builder(layout, rank, 1)
    nothing = Span(X, 0, 0)
    b.local_call("barrier", None, None)
    if b.local == 0:
        n, distance = len(layout), 1
        while distance < n:
            b.recv(nothing, (b.node - distance) % n, distance)
            b.send(nothing, (b.node + distance) % n, distance)
            b.wait((b.node - distance) % n, distance)
            distance *= 2
    b.is_after = True
    b.local_call("barrier", None, None)
    return b.plan("dissemination")
