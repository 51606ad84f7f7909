"""Metrics in the text format of Prometheus: served on the loopback address, or as a file for a node exporter."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shmring.watch.report import Watcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"

# Name -> type and help; the help has the unit. These names are stable.
METRICS = {
    "shmring_jobs": ("gauge", "Running jobs of this user that can be seen."),
    "shmring_communicator_ranks": ("gauge", "Ranks of a communicator."),
    "shmring_communicator_broken": ("gauge", "1 if the communicator is broken."),
    "shmring_rank_calls_total": ("counter", "Collectives that the rank has begun."),
    "shmring_rank_bytes_total": ("counter", "Bytes of the arrays that it passed to them."),
    "shmring_rank_rounds_total": ("counter", "Rounds of collectives that it has published."),
    "shmring_rank_waited_seconds_total": ("counter", "Seconds that it has waited in collectives; waits that are over."),
    "shmring_rank_waiting_seconds": ("gauge", "Seconds that its present wait has lasted; 0 if it does not wait."),
    "shmring_rank_keeps": ("gauge", "Ranks that wait for it while it waits for none."),
    "shmring_rank_state": ("gauge", "1, with the state of the rank as a label."),
    "shmring_channel_fill_ratio": ("gauge", "Part of a channel's ring that is filled, from 0 to 1."),
    "shmring_channel_capacity_bytes": ("gauge", "Size of a channel's ring."),
    "shmring_channel_messages_total": ("counter", "Messages that an end of a channel has sent or received."),
    "shmring_channel_dropped_total": ("counter", "Messages that were dropped there."),
    "shmring_channel_waits_total": ("counter", "Calls of that end that found the ring full, or empty."),
    "shmring_channel_end_lost": ("gauge", "1 if the process of that end has died."),
}

Sample = tuple[str, dict[str, Any], float | int | None]


def exposition(found: dict[str, Any]) -> str:
    """The result of `Watcher.look` in the text format."""
    by_name: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in _samples(found):
        if value is not None:
            text = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
            by_name[name].append(f"{name}{{{text}}} {value}" if labels else f"{name} {value}")
    lines = []
    for name, (kind, text) in METRICS.items():
        if by_name[name]:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *by_name[name]]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _samples(found: dict[str, Any]) -> Iterator[Sample]:
    yield "shmring_jobs", {}, len(found["jobs"])
    for job in found["jobs"]:
        for group in job["communicators"]:
            labels = {"session": job["session"], "communicator": group["name"]}
            yield "shmring_communicator_ranks", labels, group["size"]
            yield "shmring_communicator_broken", labels, int(bool(group["failure"]))
            for one in group["ranks"]:
                yield from _rank(one, labels | {"rank": one["rank"]})
    for one in found["channels"]:
        yield from _channel(one)


def _rank(one: dict[str, Any], labels: dict[str, Any]) -> Iterator[Sample]:
    yield "shmring_rank_calls_total", labels, one["calls"]
    yield "shmring_rank_bytes_total", labels, one["bytes"]
    yield "shmring_rank_rounds_total", labels, one["rounds"]
    yield "shmring_rank_waited_seconds_total", labels, one["waited_s"]
    yield "shmring_rank_waiting_seconds", labels, one["waiting_s"] or 0
    yield "shmring_rank_keeps", labels, len(one["keeps"])
    yield "shmring_rank_state", labels | {"state": one["state"]}, 1


def _channel(one: dict[str, Any]) -> Iterator[Sample]:
    labels = {"channel": one["name"]}
    yield "shmring_channel_fill_ratio", labels, one["fill"]
    yield "shmring_channel_capacity_bytes", labels, one["capacity_bytes"]
    for end in ("sender", "receiver"):
        at = labels | {"end": end}
        yield "shmring_channel_messages_total", at, one[end]["messages"]
        yield "shmring_channel_dropped_total", at, one[end]["dropped"]
        yield "shmring_channel_waits_total", at, one[end]["waits"]
        yield "shmring_channel_end_lost", at, int(one[end]["state"] == "lost")


def server(port: int) -> ThreadingHTTPServer:
    """A server of ``/metrics`` on the loopback address; port 0: any that is free. Each request is a look."""
    watcher, lock = Watcher(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            with lock:
                body = exposition(watcher.look()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    return ThreadingHTTPServer((LOOPBACK, port), Handler)


def write_file(path: str, look: Callable[[], dict[str, Any]]) -> None:
    """Replace the file by the present metrics, in one step: a reader never sees a part."""
    folder = os.path.dirname(path) or "."
    fd, unfinished = tempfile.mkstemp(prefix=".shmring-", dir=folder)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(exposition(look()))
        os.chmod(unfinished, 0o644)  # node exporters are other users
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
