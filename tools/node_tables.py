"""Print the tables of docs/maintainers/nodes-internals.md: what reductions over nodes send, and predicted times."""

from __future__ import annotations

from shmring.base.text import size_text
from shmring.nodes.plan.call import Network, choose, cost
from shmring.nodes.plan.layout import Layout

VARIANTS = (("gather", False), ("direct", False), ("gather", True), ("direct", True))
LAYOUTS = ((2, 1), (2, 2), (4, 1), (4, 8), (16, 8), (64, 8), (64, 128))
NETWORKS = {"10 Gb/s Ethernet": Network(25e-6, 0.8e-9), "200 Gb/s InfiniBand": Network(2e-6, 0.04e-9)}
SIZES = (8, 64 << 10, 1 << 20, 64 << 20)


def layout(nodes: int, each: int) -> Layout:
    """``nodes`` of ``each`` ranks."""
    return Layout([range(node * each, (node + 1) * each) for node in range(nodes)])


def name(algorithm: str, merged: bool) -> str:
    """The algorithm as text."""
    return f"{algorithm}, merged" if merged else algorithm


def costs() -> str:
    """What an all_reduce of a vector of s bytes sends, in multiples of s."""
    lines = ["| nodes x ranks | " + " | ".join(name(*v) for v in VARIANTS) + " |", "| --- |" + " --- |" * len(VARIANTS)]
    unit = 1 << 20
    for nodes, each in LAYOUTS:
        row = []
        for algorithm, merged in VARIANTS:
            found = cost("all_reduce", layout(nodes, each), unit, algorithm, merged)
            row.append(f"{found.total / unit:.5g} / {found.rounds}")
        lines.append(f"| {nodes} x {each} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def predictions(network: Network) -> str:
    """Predicted microseconds of an all_reduce between nodes, and the algorithm, by default and merged."""
    lines = [f"| nodes x ranks | {' | '.join(map(size_text, SIZES))} |", "| --- |" + " --- |" * len(SIZES)]
    for nodes, each in LAYOUTS[1:]:
        row = []
        for size in SIZES:
            both = []
            for merged in (False, True):
                algorithm = choose("all_reduce", layout(nodes, each), size, merged, network)
                seconds = network.seconds(cost("all_reduce", layout(nodes, each), size, algorithm, merged))
                both.append(f"{1e6 * seconds:.3g} {algorithm}")
            row.append("; ".join(both))
        lines.append(f"| {nodes} x {each} | " + " | ".join(row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(costs(), *(f"{title}:\n\n{predictions(network)}" for title, network in NETWORKS.items()), sep="\n\n")
