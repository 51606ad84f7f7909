"""Plots of the results: throughput by message size, and round trips."""

from __future__ import annotations

from typing import Any


def draw(rows: list[dict[str, Any]], titles: dict[str, str], file: str) -> None:
    """Write a plot of the results to a file; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 6), layout="constrained")
    sizes = [row for row in rows if row["scene"] == "throughput"]
    for name, title in titles.items():
        points = [(_nbytes(row["row"]), row["results"][name]["per_s"]) for row in sizes if name in row["results"]]
        if points:
            left.loglog(*zip(*points, strict=True), "o-", label=title)
    left.set(xlabel="bytes of a message", ylabel="messages a second", title="one way, one message at a time")
    left.grid(True, alpha=0.3)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    trips = [row for row in rows if row["scene"] in ("round_trip", "think")]
    for offset, row in enumerate(trips):
        found = row["results"]
        names = [name for name in titles if name in found]
        places = [list(titles).index(name) + 0.35 * offset for name in names]
        colour, label = f"C{offset}", row["row"]
        right.bar(places, [found[name]["p50_us"] for name in names], 0.33, color=colour, label=f"{label}: median")
        worse = [found[name]["p99_us"] for name in names]
        right.scatter(places, worse, color=colour, edgecolor="black", zorder=3, label=f"{label}: 99 %")
    right.set_yscale("log")
    right.set_xticks(range(len(titles)), list(titles.values()), rotation=30, ha="right")
    right.set(ylabel="microseconds", title="round trip of 64 bytes")
    right.grid(True, axis="y", alpha=0.3)
    if trips:
        right.set_ylim(top=10 * right.get_ylim()[1])  # room for the legend above the slowest
        right.legend(loc="upper left", ncols=2)
    figure.savefig(file, dpi=120)


def _nbytes(label: str) -> int:
    return int(label.split()[0])
