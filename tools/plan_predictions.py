"""Predicted times of flat and hierarchical plans on modelled machines, for docs/maintainers/predicted-times.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plan_costs import choose
from plan_times import MACHINES, MachineModel, predict

from shmring.base.text import size_text
from shmring.plan.hierarchical import FOLDING, HIERARCHICAL_BUILDERS, hierarchical_from
from shmring.plan.hierarchy import Hierarchy
from shmring.plan.limits import Costs, Limits

SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
OF_BLOCKS = ("reduce_scatter", "all_gather")


class Prediction(NamedTuple):
    """One collective on one machine: microseconds flat and hierarchical, and the one that is chosen."""

    machine: str
    kind: str
    size: int
    nbytes: int
    flat_us: float
    hierarchical_us: float
    chosen: str


def limits_of(machine: MachineModel) -> Limits:
    """The limits that calibration would lead to on such a machine; the longest latency sets that of a barrier."""
    return Limits(costs=Costs(machine.links[-1].latency + 4e-7, machine.core_bytes_per_second))


def prediction(name: str, kind: str, size: int, nbytes: int, wide: int = 1) -> Prediction:
    """One prediction; ``nbytes`` of the vector or of all blocks together, ``wide`` as in `choose`."""
    machine = MACHINES[name](size)
    limits = limits_of(machine)
    part = nbytes // size if kind in OF_BLOCKS else nbytes
    form = {"wide": wide} if kind in FOLDING else {}
    hierarchy = Hierarchy(machine.levels[-1])
    chosen = "hierarchical" if nbytes > hierarchical_from(kind, hierarchy, limits, **form) else "flat"
    flat = [choose(kind, r, size, part, limits=limits) for r in range(size)]
    hierarchical = [HIERARCHICAL_BUILDERS[kind](r, hierarchy, part, limits, **form) for r in range(size)]
    flat_us, hierarchical_us = (1e6 * predict(plans, machine) for plans in (flat, hierarchical))
    return Prediction(name, kind, size, nbytes, flat_us, hierarchical_us, chosen)


def predictions(size: int, sizes: Sequence[int] = SIZES, wide: int = 1) -> list[Prediction]:
    """The predictions of all collectives, machines and sizes; with ``wide`` above 1 of reductions only."""
    kinds = [kind for kind in HIERARCHICAL_BUILDERS if wide == 1 or kind in FOLDING]
    return [prediction(name, kind, size, n, wide) for name in MACHINES for kind in kinds for n in sizes]


def table(found: Sequence[Prediction]) -> str:
    """As Markdown: microseconds, flat / hierarchical, one column per size; the chosen one in bold."""
    sizes = list(dict.fromkeys(p.nbytes for p in found))
    lines = [f"| machine | collective | {' | '.join(map(size_text, sizes))} |", "| --- " * (2 + len(sizes)) + "|"]
    for machine, kind in dict.fromkeys((p.machine, p.kind) for p in found):
        cells = {p.nbytes: _cell(p) for p in found if (p.machine, p.kind) == (machine, kind)}
        lines.append(f"| {machine} | {kind} | {' | '.join(cells[n] for n in sizes)} |")
    return "\n".join(lines)


def plot(found: Sequence[Prediction], file: str) -> None:
    """Draw times over sizes into ``file``, in the format that its ending names: a panel for each machine."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    machines = list(dict.fromkeys(p.machine for p in found))
    figure, panels = pyplot.subplots(
        1, len(machines), figsize=(6.5 * len(machines), 4.5), squeeze=False, layout="constrained"
    )
    for panel, machine in zip(panels[0], machines, strict=True):
        for number, kind in enumerate(dict.fromkeys(p.kind for p in found)):
            own = [p for p in found if (p.machine, p.kind) == (machine, kind)]
            sizes = [p.nbytes for p in own]
            style = {"color": f"C{number}", "marker": "o", "markersize": 3}
            panel.plot(sizes, [p.flat_us for p in own], linestyle=":", **style)
            panel.plot(sizes, [p.hierarchical_us for p in own], label=kind, **style)
        ticks = sorted({p.nbytes for p in found})
        panel.set(
            title=f"predicted: {machine}, {found[0].size} ranks", ylabel="microseconds; dotted: flat", yscale="log"
        )
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [size_text(n).replace(" ", "\n") for n in ticks])
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _cell(p: Prediction) -> str:
    flat, hierarchical = (f"{us:.3g}" if us < 1000 else f"{us:.0f}" for us in (p.flat_us, p.hierarchical_us))
    return f"{flat} / **{hierarchical}**" if p.chosen == "hierarchical" else f"**{flat}** / {hierarchical}"
