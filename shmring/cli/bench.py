"""Time shmring and other installed implementations in turn on the same processors, and check their results.

  shmring bench                                        all_reduce, 2 ranks, 8 B to 64 MiB
  shmring bench --op broadcast,barrier -n 4 --sizes 8..1Mi
  shmring bench --python mpich=~/mpich/bin/python      with an environment that has mpi4py and MPICH
  shmring bench --shared --share --plan --rewrite --json result.json --plot result.png
  shmring bench --op all --report machine.md           tables like those of docs/benchmarks.md
  shmring bench --channels --plot channels.svg         channels and queues between two processes

Every implementation found in this Python, or in those named, takes part: MPI through mpi4py (MPICH, Open MPI, Intel
MPI), gloo of torch.distributed, the operator of DeepSpeed, and pipes of the standard library. docs/benchmarks.md
describes the method.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable

from shmring.bench import metrics
from shmring.bench.competitors import OURS, Competitor, RankLayout, find, find_channels
from shmring.bench.report import as_json
from shmring.bench.runner import Row, Settings, run
from shmring.bench.stored import beside, left_out
from shmring.bench.tables import Table, as_markdown
from shmring.engine.recording import SUFFIX
from shmring.placement.cpus import allowed_processors
from shmring.placement.topology import discover

from . import progress
from .arguments import BadArgument, checked, count, duration, output_file, plot_file, ranks, whole_number
from .trace import merge, merged_text

PYTHONS = "SHMRING_BENCH_PYTHONS"
DEEPSPEED = "SHMRING_BENCH_DEEPSPEED"
DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring bench``."""
    add = parser.add_argument
    ops = f"{', '.join(metrics.OPS)}; or all; or death: a rank is killed; of channels {', '.join(metrics.CHANNEL_OPS)}"
    add("--channels", action="store_true", help="compare channels and queues between two processes instead")
    add("--op", type=_ops, metavar="NAMES", help=f"{ops} (default: all_reduce; all of channels)")
    add("--dtype", choices=DTYPES, default="float32", metavar="NAME", help="of the elements (default: float32)")
    add("-n", "--ranks", type=ranks, default=2, metavar="N", help="processes of each competitor (default: 2)")
    add(
        "--sizes",
        type=checked(metrics.parse_sizes),
        metavar="SIZES",
        help=f"bytes of all ranks' data together: 8,4Ki,1Mi or 8..64Mi (default: {metrics.DEFAULT_SIZES})",
    )
    add("--seconds", type=duration, default=2.0, metavar="S", help="per row, at least 5 cycles (default: 2)")
    add("--cycles", type=count, metavar="N", help="number of cycles per row, instead of seconds")
    add(
        "--slice",
        type=duration,
        metavar="MS",
        help="milliseconds per slice, after half as many of warm-up (default: 10; 30 if ranks share processors)",
    )
    add("--rewrite", action="store_true", help="every rank rewrites its input before each call; the time includes it")
    add("--shared", action="store_true", help="time shared arrays, too")
    add("--share", action="store_true", help="time private arrays that comm.share has made shared, too")
    add("--plan", action="store_true", help="time persistent plans, too")
    add("--peers", type=_names, metavar="NAMES", help="only these competitors (none: only shmring)")
    add(
        "--python",
        action="append",
        default=[],
        metavar="LABEL=PATH",
        help=f"search another interpreter, too; also from {PYTHONS}=LABEL=PATH:LABEL=PATH",
    )
    add(
        "--deepspeed",
        default=os.environ.get(DEEPSPEED, ""),
        metavar="FOLDER",
        help=f"DeepSpeed's sources, to build its operator with torch; also from {DEEPSPEED}",
    )
    add("--bind", default="auto", metavar="WHERE", help="auto, none, or processors by rank: 0,2,4 (default: auto)")
    add(
        "--patience",
        type=duration,
        default=30.0,
        metavar="S",
        help="seconds to wait for an answer of a competitor (default: 30)",
    )
    add("--seed", type=whole_number, default=0, metavar="N", help="of the random order of competitors (default: 0)")
    add("--long", action="store_true", help="all numbers of each competitor, instead of one line per size")
    add(
        "--split",
        action="store_true",
        help="two lines for a size if the placement of the processors changed: near, and far",
    )
    add("--json", type=_json_file, metavar="FILE", help="write all results as JSON (-: standard output, no table)")
    add("--report", type=output_file, metavar="FILE", help="write the tables of docs/benchmarks.md as Markdown")
    add("--plot", type=plot_file, metavar="FILE", help="draw into FILE (.png, .svg, .pdf); needs matplotlib")
    add("--trace", metavar="DIR", help="record timelines of shmring's calls, and merge them into DIR/trace.json")
    add("--list", action="store_true", help="only list the competitors")


def main(args: argparse.Namespace) -> int:
    """Run it; 0, or 1 if shmring failed or gave a wrong result, or 2 if the arguments cannot be satisfied."""
    _prepare_trace(args.trace)
    pythons = _pythons([*filter(None, os.environ.get(PYTHONS, "").split(":")), *args.python])
    layout = _layout(args.ranks, args.bind)
    rows = _rows(args)
    _check_plot(args, rows)
    found, problems = find_channels(rows) if args.channels else find(pythons, args.deepspeed, _show_search)
    progress.clear(sys.stderr)
    chosen = _chosen(found, args)
    is_quiet = args.json == "-"
    if not is_quiet:
        for one in found if args.list else chosen:
            print(f"{one.name:<16} {one.title}")
        for name, problem in problems.items():
            print(f"{name:<16} cannot take part: {problem}")
    if args.list:
        return 0
    settings = _settings(args, layout, rows)
    table = Table(chosen, args.long, args.split)
    done: list[Row] = []

    def show(row: Row) -> None:
        done.append(row)
        progress.clear(sys.stderr)
        if not is_quiet:
            print("\n".join(table.lines(row)), flush=True)

    try:
        run(chosen, layout, settings, show, _show_step(time.monotonic()))
    finally:  # an interrupted run keeps its rows
        progress.clear(sys.stderr)
        if done and not is_quiet:
            print("\n".join([*beside(done, chosen), *left_out(done, found, problems, layout)]))
        if args.json and done:
            _write(args.json, json.dumps(as_json(done, chosen, problems, layout, settings), indent=1))
        if args.report and done:
            _write(args.report, as_markdown(done, chosen, layout, settings, discover()))
        if args.plot and done:
            from shmring.bench.plot import draw

            draw(done, chosen, args.plot)
        if args.trace and done:
            print(merged_text(*merge(args.trace)), file=sys.stderr if is_quiet else sys.stdout)
    ours = [one.name for one in chosen if one.is_ours]
    return int(any(row.results[name].failed for row in done for name in ours))


def _show_search(label: str) -> None:
    progress.show(sys.stderr, 0, after=f" looking at {label or 'Python'}")


def _show_step(started: float) -> Callable[[str, float], None]:
    """A function that shows the step that comes next, the fraction done, and an estimate of the remaining time."""

    def show(what: str, done: float) -> None:
        left = f"{(time.monotonic() - started) * (1 - done) / done:.0f} s left" if done else ""
        progress.show(sys.stderr, done, after=f" {what}  {left}")

    return show


def _prepare_trace(directory: str | None) -> None:
    if directory is None:
        return
    if os.path.isdir(directory) and any(name.endswith(SUFFIX) for name in os.listdir(directory)):
        raise BadArgument(f"--trace {directory}: it has timelines already; name a directory without")
    os.environ["SHMRING_TRACE"] = directory  # of the processes that are started


def _rows(args: argparse.Namespace) -> list[tuple[str, int]]:
    """The calls and their bytes, a row each."""
    known = tuple(metrics.CHANNEL_OPS) if args.channels else metrics.OPS
    ops = args.op or (list(known) if args.channels else ["all_reduce"])
    ops = list(known) if ops == ["all"] else ops
    for name in ops:
        if name not in (*known, "death"):
            raise BadArgument(f"--op: no call {name!r} {'of channels' if args.channels else 'without --channels'}")
    if args.channels:
        if args.ranks != 2:
            raise BadArgument("--channels is between two processes")
        # Batches and round trips have one size.
        return [(op, n) for op in ops for n in (args.sizes if args.sizes and op in ("message", "array") else
                                                metrics.CHANNEL_OPS[op][1])]  # fmt: skip
    sizes = args.sizes or metrics.parse_sizes(metrics.DEFAULT_SIZES)
    sizes_of = {"barrier": [0], "death": [8000]}
    return [(op, n) for op in ops for n in sizes_of.get(op, sizes)]


def _check_plot(args: argparse.Namespace, rows: list[tuple[str, int]]) -> None:
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise BadArgument("--plot needs matplotlib; `pip install matplotlib` installs it")
    if args.plot and all(op in ("barrier", *metrics.ONCE) for op, _ in rows):
        raise BadArgument("--plot draws over sizes, and these calls have none")


def _settings(args: argparse.Namespace, layout: RankLayout, rows: list[tuple[str, int]]) -> Settings:
    return Settings(
        rows=rows,
        dtype="uint8" if args.channels else args.dtype,
        seconds=args.seconds,
        cycles=args.cycles,
        slice_s=(args.slice or (30 if layout.crowded else 10)) / 1e3,
        rewrite=args.rewrite,
        patience=args.patience,
        seed=args.seed,
    )


def _chosen(found: list[Competitor], args: argparse.Namespace) -> list[Competitor]:
    """The competitors of this run: shmring, its other forms on request, and the requested peers."""
    names = [one.name for one in found]
    wanted = args.peers if args.peers is not None else [one.name for one in found if not one.is_ours]
    for name in wanted:
        if name not in [*names, *(each.partition("@")[0] for each in names)]:
            raise BadArgument(f"--peers: no {name!r} here; found: {', '.join(names)}")
    ways = [way for way in OURS if way not in ("shared", "share", "plan") or getattr(args, way)]
    return [one for one in found if {one.name, one.name.partition("@")[0]} & {*wanted, *ways}]


def _layout(ranks: int, bind: str) -> RankLayout:
    """The processors of each rank."""
    allowed = sorted(allowed_processors())
    if bind == "none" or (bind == "auto" and ranks > len(allowed)):
        return RankLayout(ranks, None, len(allowed))
    try:
        chosen = allowed[:ranks] if bind == "auto" else [int(one) for one in bind.split(",")]
    except ValueError:
        raise BadArgument(f"--bind {bind}: auto, none, or a list of processors") from None
    if len(chosen) != ranks or set(chosen) - set(allowed):
        raise BadArgument(f"--bind {bind}: must name {ranks} of the processors {allowed}, one per rank")
    return RankLayout(ranks, tuple((one,) for one in chosen), len(set(chosen)))


def _pythons(texts: list[str]) -> dict[str, str]:
    """Interpreters by label, this one first."""
    pythons = {"": sys.executable}
    for text in texts:
        label, equals, path = text.partition("=")
        path = os.path.abspath(os.path.expanduser(path if equals else label))
        label = label if equals else os.path.basename(os.path.dirname(os.path.dirname(path)))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise BadArgument(f"--python {text}: {path} is not a program")
        if label in pythons:
            raise BadArgument(f"--python {text}: the label {label!r} is used twice")
        pythons[label] = path
    return pythons


def _ops(text: str) -> list[str]:
    known = (*metrics.OPS, *metrics.CHANNEL_OPS, "all")
    names = _names(text)
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names no collective; choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no collective {name!r}; choose from {', '.join(known)}")
    return names


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _json_file(text: str) -> str:
    return text if text == "-" else output_file(text)


def _write(file: str, text: str) -> None:
    if file == "-":
        print(text)
        return
    with open(file, "w") as out:
        out.write(text + "\n")
