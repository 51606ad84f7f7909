"""Time shmring and whatever else is installed, in turn on the same processors, and see that the answers are right.

  shmring bench                                        all_reduce, 2 ranks, 8 B to 64 MiB
  shmring bench --op broadcast,barrier -n 4 --sizes 8..1Mi
  shmring bench --python mpich=~/mpich/bin/python      an environment with mpi4py and MPICH takes part, too
  shmring bench --shared --plan --rewrite --json result.json --plot result.png

Who is installed in this Python, or in those named, takes part by itself: MPI through mpi4py (MPICH, Open MPI, Intel
MPI), torch.distributed's gloo, DeepSpeed's operator, and pipes of the standard library. docs/benchmarks.md has the
method.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys

from shmring.bench import competitors as field
from shmring.bench import metrics as figures
from shmring.bench.progress import Progress
from shmring.bench.report import as_json
from shmring.bench.runner import Row, Settings, run
from shmring.bench.table import Table
from shmring.placement.cpus import allowed_processors

PYTHONS = "SHMRING_BENCH_PYTHONS"
DEEPSPEED = "SHMRING_BENCH_DEEPSPEED"
DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring bench``."""
    add = parser.add_argument
    add("--op", type=_ops, default=["all_reduce"], metavar="NAMES", help=f"{', '.join(figures.OPS)}; or all")
    add("--dtype", choices=DTYPES, default="float32", metavar="NAME", help="of the elements (default: float32)")
    add("-n", "--ranks", type=_positive, default=2, metavar="N", help="processes of each competitor (default: 2)")
    add(
        "--sizes",
        type=_checked(figures.parse_sizes),
        default=figures.DEFAULT_SIZES,
        metavar="SIZES",
        help="bytes of all ranks' data together: 8,4Ki,1Mi or 8..64Mi (default: %(default)s)",
    )
    add("--seconds", type=_seconds, default=2.0, metavar="S", help="for each row, 5 cycles at least (default: 2)")
    add("--cycles", type=_positive, metavar="N", help="this many turns of everybody in each row, instead of seconds")
    add(
        "--slice",
        type=_seconds,
        metavar="MS",
        help="milliseconds of each turn, after half as many to warm up (default: 10; 30 if ranks share processors)",
    )
    add("--rewrite", action="store_true", help="every rank rewrites its input before each call, and that is counted in")
    add("--shared", action="store_true", help="arrays in shared memory take part")
    add("--plan", action="store_true", help="persistent plans take part")
    add("--peers", type=_names, metavar="NAMES", help="only these of the competitors found (none: no others)")
    add(
        "--python",
        action="append",
        default=[],
        metavar="LABEL=PATH",
        help=f"look into another interpreter, too; also from {PYTHONS}=LABEL=PATH:LABEL=PATH",
    )
    add(
        "--deepspeed",
        default=os.environ.get(DEEPSPEED, ""),
        metavar="FOLDER",
        help=f"DeepSpeed's sources, to build its operator from where torch is; also from {DEEPSPEED}",
    )
    add("--bind", default="auto", metavar="WHERE", help="auto, none, or processors by rank: 0,2,4 (default: auto)")
    add(
        "--patience", type=_seconds, default=30.0, metavar="S", help="before a silent competitor is ended (default: 30)"
    )
    add("--seed", type=int, default=0, metavar="N", help="of the order of turns (default: 0)")
    add("--long", action="store_true", help="all figures of each competitor, instead of one line for each size")
    add("--split", action="store_true", help="two lines for a size where the processors were moved: near, and far")
    add("--json", metavar="FILE", help="write everything there (-: to standard output, and no table)")
    add("--plot", metavar="FILE", help="draw latency and bandwidth (.png, .svg, .pdf); needs matplotlib")
    add("--list", action="store_true", help="only say who can take part")


def main(args: argparse.Namespace) -> int:
    """Run it; 0, or 1 if a competitor of ours failed or was wrong, or 2 if it could not be run as asked."""
    try:
        pythons = _pythons([*filter(None, os.environ.get(PYTHONS, "").split(":")), *args.python])
        stage = _stage(args.ranks, args.bind)
    except ValueError as error:
        return _refuse(str(error))
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        return _refuse("--plot needs matplotlib; `pip install matplotlib` gets it")
    if args.plot and all(op in figures.WITHOUT_SIZE for op in args.op):
        return _refuse("--plot draws over sizes, and a barrier has none")
    progress = Progress()
    found, problems = field.find(pythons, args.deepspeed, lambda label: progress(f"looking at {label or 'Python'}", 0))
    progress.clear()
    try:
        taking_part = _chosen(found, args)
    except ValueError as error:
        return _refuse(str(error))
    is_quiet = args.json == "-"
    if not is_quiet:
        for one in found if args.list else taking_part:
            print(f"{one.name:<16} {one.title}")
        for name, problem in problems.items():
            print(f"{name:<16} cannot take part: {problem}")
    if args.list:
        return 0
    settings = Settings(
        ops=args.op,
        sizes=args.sizes,
        dtype=args.dtype,
        seconds=args.seconds,
        cycles=args.cycles,
        slice_s=(args.slice or (30 if stage.crowded else 10)) / 1e3,
        rewrite=args.rewrite,
        patience=args.patience,
        seed=args.seed,
    )
    table = Table(taking_part, args.long, args.split)
    rows: list[Row] = []

    def show(row: Row) -> None:
        rows.append(row)
        progress.clear()
        if not is_quiet:
            print("\n".join(table.lines(row)), flush=True)

    try:
        run(taking_part, stage, settings, show, progress)
    finally:  # interrupted, it keeps what it has
        progress.clear()
        if args.json and rows:
            _write(args.json, json.dumps(as_json(rows, taking_part, problems, stage, settings), indent=1))
        if args.plot and rows:
            from shmring.bench.plot import draw

            draw(rows, taking_part, args.plot)
    ours = [one.name for one in taking_part if one.is_ours]
    return int(any(row.results[name].failed for row in rows for name in ours))


def _chosen(found: list[field.Competitor], args: argparse.Namespace) -> list[field.Competitor]:
    """Those who take part: shmring, its other ways on request, and the peers that are wanted."""
    names = [one.name for one in found]
    wanted = args.peers if args.peers is not None else [one.name for one in found if not one.is_ours]
    for name in wanted:
        if name not in [*names, *(each.partition("@")[0] for each in names)]:
            raise ValueError(f"no {name!r} here; there are {', '.join(names)}")
    ways = ["shmring", "torch-shmring", *(["shared"] if args.shared else []), *(["plan"] if args.plan else [])]
    return [one for one in found if {one.name, one.name.partition("@")[0]} & {*wanted, *ways}]


def _stage(ranks: int, bind: str) -> field.Stage:
    """Where the ranks go."""
    allowed = sorted(allowed_processors())
    if bind == "none" or (bind == "auto" and ranks > len(allowed)):
        return field.Stage(ranks, None, len(allowed))
    try:
        chosen = allowed[:ranks] if bind == "auto" else [int(one) for one in bind.split(",")]
    except ValueError:
        raise ValueError(f"--bind {bind}: auto, none, or a list of processors") from None
    if len(chosen) != ranks or set(chosen) - set(allowed):
        raise ValueError(f"--bind {bind}: one processor for each of {ranks} ranks is needed, out of {allowed}")
    return field.Stage(ranks, tuple((one,) for one in chosen), len(set(chosen)))


def _pythons(texts: list[str]) -> dict[str, str]:
    """Interpreters by label, this one first."""
    pythons = {"": sys.executable}
    for text in texts:
        label, equals, path = text.partition("=")
        path = os.path.abspath(os.path.expanduser(path if equals else label))
        label = label if equals else os.path.basename(os.path.dirname(os.path.dirname(path)))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ValueError(f"--python {text}: {path} is not a program")
        if label in pythons:
            raise ValueError(f"--python {text}: there is a {label!r} already")
        pythons[label] = path
    return pythons


def _ops(text: str) -> list[str]:
    names = list(figures.OPS) if text == "all" else _names(text)
    for name in names:
        if name not in figures.OPS:
            raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(figures.OPS)}, all")
    return names


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _checked(parse):
    def argument(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a time")
    return number


def _write(file: str, text: str) -> None:
    if file == "-":
        print(text)
        return
    with open(file, "w") as out:
        out.write(text + "\n")


def _refuse(why: str) -> int:
    print(f"shmring bench: {why}", file=sys.stderr)
    return 2
