"""Merge the timelines of a job's ranks into a file for https://ui.perfetto.dev or chrome://tracing, and summarize them.

A job records its calls with SHMRING_TRACE=DIR in its environment, or with comm.trace(DIR).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from shmring.watch import perfetto, skew
from shmring.watch.picture import timeline_drawing
from shmring.watch.timeline import read

from .arguments import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring trace``."""
    parser.add_argument("directory", metavar="DIR", help="the directory of the timelines")
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE", help="the merged file (default: DIR/trace.json)"
    )
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw the last calls into FILE, too")
    parser.add_argument("--json", action="store_true", help="write the summary as one JSON object")


def main(args: argparse.Namespace) -> int:
    """Read, merge, summarize."""
    timelines = read(args.directory)
    path = args.output or os.path.join(args.directory, "trace.json")
    with open(path, "w") as file:
        count = perfetto.write(timelines, file)
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(timeline_drawing(timelines))
    found = skew.summary(timelines)
    if args.json:
        json.dump(found | {"file": path, "events": count}, sys.stdout, indent=2)
        print()
    else:
        print(skew.text(found))
        print(f"{count} events of {len(timelines)} timelines are in {path}: open it in https://ui.perfetto.dev")
    return 0
