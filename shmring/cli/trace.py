"""Merge the timelines of a job's ranks into a file for https://ui.perfetto.dev or chrome://tracing, and summarize them.

A job records its calls with SHMRING_TRACE=DIR in its environment, or with comm.trace(DIR).
"""

from __future__ import annotations

import argparse
import json
import os

from shmring.watch import perfetto, skew
from shmring.watch.timeline import Timeline, read

from .arguments import BadArgument, output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring trace``."""
    parser.add_argument("directory", metavar="DIR", help="the directory of the timelines")
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE", help="the merged file (default: DIR/trace.json)"
    )
    parser.add_argument("--json", action="store_true", help="write the summary as one JSON object")


def main(args: argparse.Namespace) -> int:
    """Read, merge, summarize."""
    timelines, path, count = merge(args.directory, args.output)
    found = skew.summary(timelines)
    if args.json:
        print(json.dumps(found | {"file": path, "events": count}, indent=2))
    else:
        print(skew.text(found))
        print(merged_text(timelines, path, count))
    return 0


def merge(directory: str, output: str | None = None) -> tuple[list[Timeline], str, int]:
    """Write the merged file; the timelines, the path of that file, and how many events it has."""
    try:
        timelines = read(directory)
    except ValueError as error:
        raise BadArgument(str(error)) from None
    path = output or os.path.join(directory, "trace.json")
    with open(path, "w") as file:
        return timelines, path, perfetto.write(timelines, file)


def merged_text(timelines: list[Timeline], path: str, count: int) -> str:
    """Where the merged file is, for people."""
    return f"{count} events of {len(timelines)} timelines are in {path}: open it in https://ui.perfetto.dev"
