"""Show the running jobs of this user: what each rank does, which ranks wait, and for which ranks.

Attaches to running programs, which need no option for it, and reads copies: watching does not slow a job down. Jobs
are found by their processes, so run it where one process of the job can be seen: on the host, or in any
of the job's containers. The jobs of other users cannot be read. On a terminal the page is renewed until Ctrl-C; with
`rich` installed (pip install 'shmring[top]') it does not flicker, and is cut to the terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable

from shmring.watch.page import STYLES, Line, page, text
from shmring.watch.prometheus import server, write_file
from shmring.watch.report import Watcher

from .arguments import duration, output_file, port

_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``shmring top``."""
    parser.add_argument("--once", action="store_true", help="print one page and end; the default without a terminal")
    parser.add_argument(
        "--json", action="store_true", help="write JSON objects, one in each line; with --once a single one"
    )
    parser.add_argument(
        "--interval",
        type=duration,
        default=1.0,
        metavar="S",
        help="seconds between looks, over which rates are measured (default: 1)",
    )
    parser.add_argument(
        "--prometheus",
        type=port,
        metavar="PORT",
        help="serve metrics for Prometheus on the loopback address, nothing else; 0: any free port",
    )
    parser.add_argument(
        "--prometheus-file",
        type=output_file,
        metavar="FILE",
        help="write the metrics into FILE at each look, for the textfile collector of a node exporter",
    )
    parser.add_argument("--plain", action="store_true", help="do without rich")


def main(args: argparse.Namespace) -> int:
    """Look, print, wait, until interrupted."""
    if args.prometheus is not None:
        return _serve(args.prometheus)
    watcher = Watcher()
    if args.prometheus_file:
        return _repeat(lambda: write_file(args.prometheus_file, watcher.look), args)
    watcher.look()
    time.sleep(args.interval)
    if args.json:
        return _repeat(lambda: print(json.dumps(watcher.look()), flush=True), args)
    is_terminal = sys.stdout.isatty()
    if args.once or not is_terminal:
        print(text(page(watcher.look()), colours=is_terminal))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        if args.plain or not _watch_with_rich(watcher, args.interval):
            while True:
                print(_CLEAR + text(page(watcher.look()), colours=True), flush=True)
                time.sleep(args.interval)
    return 0


def _repeat(step: Callable[[], object], args: argparse.Namespace) -> int:
    while True:
        step()
        if args.once:
            return 0
        time.sleep(args.interval)


def _serve(port: int) -> int:
    with server(port) as http:
        host, bound = http.server_address[:2]
        print(f"http://{host!s}:{bound}/metrics", flush=True)
        http.serve_forever()
    return 0


def _watch_with_rich(watcher: Watcher, interval: float) -> bool:
    """Renew the page until interrupted; False if rich is not installed."""
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        return False

    def drawn(lines: list[Line]) -> Text:
        parts = [(part, STYLES[style]) for line in lines for part, style in [*line, ("\n", "")]]
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")

    with Live(drawn(page(watcher.look())), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(drawn(page(watcher.look())), refresh=True)
