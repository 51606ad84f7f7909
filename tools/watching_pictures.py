"""Draw the pictures of docs/watching.md: three stories are played in real processes, and watched.

    python tools/watching_pictures.py docs/pictures

A page of ``shmring top`` is drawn as a terminal shows it, a timeline as a row of bars for each rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

import numpy as np

from shmring.collectives.observe.account import duration
from shmring.watch.page import Line, page
from shmring.watch.report import Watcher
from shmring.watch.timeline import Timeline, name_of, read

SLOW = """
import time, numpy as np, shmring
def step(comm, x):
    if comm.rank == 2:
        time.sleep(0.05)      # the slow part of one rank
    comm.all_reduce(x)
with shmring.init() as comm:
    x = np.ones(1000, np.float32)
    while True:
        step(comm, x)
"""
DISAGREE = """
import time, numpy as np, shmring
comm = shmring.init()
comm.barrier()
try:
    comm.all_reduce(np.ones(8 if comm.rank else 9))
except shmring.MismatchError:
    time.sleep(1000)
"""
QUEUE = """
import os, shmring
queue = shmring.Queue(capacity_nbytes=1 << 16)
if os.fork() == 0:
    queue.get()
    os.kill(os.getpid(), 9)
queue.put(b"x" * 100)
os.wait()
while True:
    queue.put(b"x" * 100)      # waits for ever once it is full
"""


# Colours that can be read on the dark ground below.
_COLOURS = {
    "": "#d4d4d4",
    "title": "#ffffff",
    "faint": "#8a8a8a",
    "keeper": "#ff6b6b",
    "asleep": "#6bc5d8",
    "work": "#8fce7e",
}
_GROUND, _WAIT, _CALL, _MESSAGE, _FAILED = "#1e1e1e", "#455a64", "#8fce7e", "#d8b46b", "#ff6b6b"
_FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_CHARACTER, _LINE, _MARGIN = 7.8, 18, 14

# What is drawn of a timeline: the last calls of each rank.
_CALLS, _WIDTH, _ROW, _LEFT = 40, 860, 34, 90


def drawing(lines: list[Line]) -> str:
    """The lines of a page, as a terminal shows them."""
    columns = max((sum(len(part) for part, _ in line) for line in lines), default=1)
    body = []
    for row, line in enumerate(lines):
        column, y = 0, _MARGIN + _LINE * (row + 0.75)
        for part, style in line:
            weight = ' font-weight="bold"' if style in ("title", "keeper") else ""
            x, length = _MARGIN + column * _CHARACTER, len(part) * _CHARACTER
            body.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{_COLOURS[style]}"{weight} xml:space="preserve" '
                f'textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs">{escape(part)}</text>'
            )
            column += len(part)
    return _svg(2 * _MARGIN + columns * _CHARACTER, 2 * _MARGIN + len(lines) * _LINE, body)


def timeline_drawing(timelines: list[Timeline]) -> str:
    """The last calls of each rank, on one axis: what it waited in them is dark."""
    shown = [(one, one.calls[one.calls["end_ns"] > 0][-_CALLS:]) for one in timelines]
    shown = [(one, calls) for one, calls in shown if len(calls)]
    start = min((int(calls["start_ns"].min()) for _, calls in shown), default=0)
    end = max((int(calls["end_ns"].max()) for _, calls in shown), default=1)
    scale = (_WIDTH - _LEFT - _MARGIN) / max(1, end - start)
    body = []
    for row, (one, calls) in enumerate(shown):
        y = _MARGIN + row * _ROW
        label = f"rank {one.facts['rank']}"
        body.append(f'<text x="{_MARGIN}" y="{y + 17}" fill="{_COLOURS[""]}">{label}</text>')
        body += [_slice(call, y, start, scale) for call in calls]
    bottom = _MARGIN + len(shown) * _ROW + 16
    body.append(f'<text x="{_LEFT}" y="{bottom}" fill="{_COLOURS["faint"]}">0</text>')
    span = duration(end - start)
    body.append(f'<text x="{_WIDTH - _MARGIN}" y="{bottom}" fill="{_COLOURS["faint"]}" text-anchor="end">{span}</text>')
    return _svg(_WIDTH, bottom + _MARGIN, body)


def _slice(call: np.void, y: float, start: int, scale: float) -> str:
    x = _LEFT + (int(call["start_ns"]) - start) * scale
    took = max(0, int(call["end_ns"]) - int(call["start_ns"]))
    waited = min(took, int(call["waited_ns"]))
    colour = _FAILED if call["failed"] else _MESSAGE if call["peer"] >= 0 else _CALL
    title = f"<title>{escape(name_of(call['signature']))}: {duration(took)}, {duration(waited)} of it waiting</title>"
    drawn = _bar(x, y, max(1.0, took * scale), colour, title)
    if waited * scale <= 0.5:
        return drawn
    at = _LEFT + (max(int(call["wait_ns"]), int(call["start_ns"])) - start) * scale
    return drawn + _bar(at, y, waited * scale, _WAIT, title)


def _bar(x: float, y: float, width: float, colour: str, title: str) -> str:
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="24" fill="{colour}">{title}</rect>'


def _svg(width: float, height: float, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONT}" font-size="13">'
    )
    ground = f'<rect width="100%" height="100%" rx="6" fill="{_GROUND}"/>'
    return "\n".join([head, ground, *body, "</svg>\n"])


def play(folder, name, program, *, ranks, trace=None):
    """Run a story, and draw what is seen of it after a second."""
    script = Path(folder) / f"train_{name}.py"
    script.write_text(program)
    command = [sys.executable, "-m", "shmring", "run", "-n", str(ranks), script.name]
    environment = os.environ | ({"SHMRING_TRACE": trace} if trace else {})
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        watcher = Watcher()
        while not (found := watcher.look())["jobs"] and not found["channels"]:
            time.sleep(0.1)
        time.sleep(2)
        watcher.look()
        time.sleep(1)
        Path(sys.argv[1], f"watching-{name}.svg").write_text(drawing(page(watcher.look())))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def main():
    """All three."""
    os.makedirs(sys.argv[1], exist_ok=True)
    os.environ["SHMRING_FILE_PREFIX"] = f"story{os.getpid()}"  # no other job is in the pictures
    with tempfile.TemporaryDirectory() as folder:
        play(folder, "slow", SLOW, ranks=4, trace=f"{folder}/timelines")
        Path(sys.argv[1], "watching-timeline.svg").write_text(timeline_drawing(read(f"{folder}/timelines")))
        play(folder, "disagree", DISAGREE, ranks=3)
        play(folder, "queue", QUEUE, ranks=1)


if __name__ == "__main__":
    main()
