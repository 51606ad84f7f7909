"""Flat against nested plans, predicted (`predict`) for machines that nobody here has: the table and the plot of
``docs/placement.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .choose import HIERARCHICAL_BUILDERS, choose
from .hierarchical_cost import FOLDING, hierarchy_for
from .limits import DEFAULT_LIMITS, Costs
from .predict import HOSTS, Host, predict

SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
OF_BLOCKS = ("reduce_scatter", "all_gather")


class Prediction(NamedTuple):
    """One collective on one machine: microseconds flat and nested; which of the two the cost model takes."""

    host: str
    kind: str
    size: int
    nbytes: int
    flat_us: float
    hierarchical_us: float
    chosen: str


def costs_of(host: Host) -> Costs:
    """What the ranks of such a machine would come to when they meet: a barrier takes as long as the farthest word."""
    far = host.borders[-1]
    return Costs(far.latency + 4e-7, host.core_bytes_per_second, link_bytes_per_second=far.bytes_per_second)


def prediction(name: str, kind: str, size: int, nbytes: int, wide: int = 1) -> Prediction:
    """Of the vector, or all blocks, ``nbytes``; ``wide`` as in `choose`."""
    host = HOSTS[name](size)
    costs = costs_of(host)
    part = nbytes // size if kind in OF_BLOCKS else nbytes
    form = {"wide": wide} if kind in FOLDING else {}
    hierarchy = hierarchy_for(kind, host.hierarchy, nbytes, DEFAULT_LIMITS, costs, **form)
    flat = [choose(kind, r, size, part, costs=costs) for r in range(size)]
    nested = [
        HIERARCHICAL_BUILDERS[kind](r, hierarchy or host.hierarchy, part, DEFAULT_LIMITS, costs, **form)
        for r in range(size)
    ]
    flat_us, hierarchical_us = (1e6 * predict(plans, host) for plans in (flat, nested))
    return Prediction(name, kind, size, nbytes, flat_us, hierarchical_us, "hierarchical" if hierarchy else "flat")


def predictions(size: int, sizes: Sequence[int] = SIZES, wide: int = 1) -> list[Prediction]:
    """All of them; of the folds only if they have prefixes of their own width."""
    kinds = [kind for kind in HIERARCHICAL_BUILDERS if wide == 1 or kind in FOLDING]
    return [prediction(name, kind, size, n, wide) for name in HOSTS for kind in kinds for n in sizes]


def table(found: Sequence[Prediction]) -> str:
    """As Markdown: microseconds, flat / nested, a column for each size; in bold what the cost model takes."""
    sizes = list(dict.fromkeys(p.nbytes for p in found))
    lines = [f"| machine | collective | {' | '.join(_size(n) for n in sizes)} |", "| --- " * (2 + len(sizes)) + "|"]
    for host, kind in dict.fromkeys((p.host, p.kind) for p in found):
        cells = {p.nbytes: _cell(p) for p in found if (p.host, p.kind) == (host, kind)}
        lines.append(f"| {host} | {kind} | {' | '.join(cells[n] for n in sizes)} |")
    return "\n".join(lines)


def plot(found: Sequence[Prediction], file: str) -> None:
    """Draw times over sizes into ``file``, in the format that its ending names: a panel for each machine."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    hosts = list(dict.fromkeys(p.host for p in found))
    figure, panels = pyplot.subplots(
        1, len(hosts), figsize=(6.5 * len(hosts), 4.5), squeeze=False, layout="constrained"
    )
    for panel, host in zip(panels[0], hosts, strict=True):
        for number, kind in enumerate(dict.fromkeys(p.kind for p in found)):
            own = [p for p in found if (p.host, p.kind) == (host, kind)]
            sizes = [p.nbytes for p in own]
            style = {"color": f"C{number}", "marker": "o", "markersize": 3}
            panel.plot(sizes, [p.flat_us for p in own], linestyle=":", **style)
            panel.plot(sizes, [p.hierarchical_us for p in own], label=kind, **style)
        ticks = sorted({p.nbytes for p in found})
        panel.set(title=f"predicted: {host}, {found[0].size} ranks", ylabel="microseconds; dotted: flat", yscale="log")
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [_size(n).replace(" ", "\n") for n in ticks])
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _cell(p: Prediction) -> str:
    flat, nested = (f"{us:.3g}" if us < 1000 else f"{us:.0f}" for us in (p.flat_us, p.hierarchical_us))
    return f"{flat} / **{nested}**" if p.chosen == "hierarchical" else f"**{flat}** / {nested}"


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
