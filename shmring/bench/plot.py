"""Plots of latency and bus bandwidth over size, with the bounds of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from . import metrics
from .competitors import Competitor
from .runner import Row


def draw(rows: Sequence[Row], competitors: Sequence[Competitor], file: str) -> None:
    """Draw into ``file``, in the format that its ending names: two panels for each collective."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    with_size = [row for row in rows if row.nbytes and row.op not in metrics.ONCE]
    ops = list(dict.fromkeys(row.op for row in with_size))
    if not ops:
        raise ValueError("nothing that was measured has a size to draw over")
    figure, panels = pyplot.subplots(len(ops), 2, figsize=(13, 4.5 * len(ops)), squeeze=False, layout="constrained")
    for (left, right), op in zip(panels, ops, strict=True):
        own = [row for row in with_size if row.op == op]
        if any(result.trips_us for result in own[0].results.values()):
            _draw_percentiles(left, own[0], competitors)
            right.set_axis_off()
            continue
        _panel(left, own, competitors, lambda row, us: us)
        left.set(title=f"{op}, {own[0].dtype}, {own[0].size} ranks", ylabel="microseconds per call", yscale="log")
        _panel(right, own, competitors, lambda row, us: metrics.bus_bandwidth(row.op, row.nbytes, us, row.size))
        right.set(title="bus bandwidth", ylabel="GB/s")
        _draw_ceiling(left, right, own)
        for panel in (left, right):
            panel.set_xscale("log", base=2)
            sizes = [row.nbytes for row in own]
            panel.set_xticks(sizes, [metrics.size_text(n).replace(" ", "\n") for n in sizes])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
        left.legend(fontsize="small")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw_percentiles(panel, row: Row, competitors: Sequence[Competitor]) -> None:
    """A bar for each competitor, up to the median of its round trips, and a point for 99 % of them."""
    trips = {one.name: metrics.percentiles(us) for one in competitors if (us := row.results[one.name].trips_us)}
    panel.bar(list(trips), [one["p50"] for one in trips.values()], label="median")
    panel.scatter(list(trips), [one["p99"] for one in trips.values()], color="black", zorder=3, label="99 %")
    panel.set(ylabel="microseconds", yscale="log", title=f"{row.op}, {metrics.size_text(row.nbytes)}")
    panel.tick_params(axis="x", rotation=30)
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize="small")


def _panel(panel, rows: Sequence[Row], competitors: Sequence[Competitor], value) -> None:
    """A line for each competitor: the median, with a band between the quartiles."""
    for number, one in enumerate(competitors):
        timed = [row for row in rows if row.results[one.name].us]
        if not timed:
            continue
        spreads = [metrics.summary(row.results[one.name].us) for row in timed]
        sizes = [row.nbytes for row in timed]
        line = {
            key: [value(row, s[key]) for row, s in zip(timed, spreads, strict=True)] for key in ("median", "q1", "q3")
        }
        style = {"color": f"C{number % 10}", "linewidth": 2.2 if one.is_ours else 1.2}
        panel.plot(sizes, line["median"], marker="o", markersize=3, label=one.name, **style)
        panel.fill_between(sizes, line["q1"], line["q3"], color=style["color"], alpha=0.15, linewidth=0)


def _draw_ceiling(left, right, rows: Sequence[Row]) -> None:
    """Draw the bounds: one word one way for small calls, a copy for private arrays (shared ones copy nothing)."""
    ceiling = {"color": "black", "linestyle": "--", "linewidth": 1}
    trips = [(row.nbytes, metrics.summary(row.trip_ns)["median"] / 2e3) for row in rows if row.trip_ns]
    if trips:
        left.plot(*zip(*trips, strict=True), label="one word, one way", color="black", linestyle=":", linewidth=1)
    copies = [(row, metrics.summary(row.copy_us)["median"]) for row in rows if row.copy_us]
    if copies:
        sizes = [row.nbytes for row, _ in copies]
        left.plot(sizes, [us for _, us in copies], label="a copy on all ranks", **ceiling)
        right.plot(sizes, [row.nbytes / us / 1e3 for row, us in copies], **ceiling)
