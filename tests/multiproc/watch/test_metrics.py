"""Metrics: what is served and written, and the names of `comm.stats()`."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from support.command import status_of_command
from support.harness import PATIENCE, report, run_ranks, start_ranks
from support.installed import ROOT
from support.waits import until_waiting

from shmring.watch.prometheus import METRICS, exposition
from shmring.watch.report import Watcher

WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # one elsewhere has another loopback
SAMPLE = re.compile(r'(?P<name>\w+)(\{(?P<labels>(\w+="(\\.|[^"\\])*",?)*)\})? (?P<value>[0-9.e+-]+)')


def parsed(text):
    """(name, labels) -> value; each line must have the format, each metric its type before its samples."""
    found, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, _ = line.split(maxsplit=3)
            typed |= {name} if what == "TYPE" else set()
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match["name"] in typed & METRICS.keys()
        labels = re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', match["labels"] or "")
        found[match["name"], frozenset(labels)] = float(match["value"])
    return found


def of_rank(found, name, rank, session):
    return [
        value
        for (one, labels), value in found.items()
        if one == name and {("rank", str(rank)), ("session", session)} <= labels
    ]


def wait_for_an_end(comm, path):
    for _ in range(10):
        comm.all_reduce(np.ones(4))
    if comm.rank == 1:
        until_waiting(comm, 0)
        report("rank 0 waits")
    while comm.rank == 1 and not os.path.exists(path):
        time.sleep(0.005)
    comm.barrier()


def session_of(pid):
    return next(
        job["session"]
        for job in Watcher().look()["jobs"]
        if pid in {one["pid"] for group in job["communicators"] for one in group["ranks"]}
    )


def check(text, session):
    found = parsed(text)
    assert found["shmring_jobs", frozenset()] >= 1
    assert of_rank(found, "shmring_rank_calls_total", 0, session)[0] >= 11
    assert of_rank(found, "shmring_rank_bytes_total", 0, session)[0] >= 320
    assert of_rank(found, "shmring_rank_waiting_seconds", 0, session)[0] > 0
    assert of_rank(found, "shmring_rank_keeps", 1, session) == [1]
    assert of_rank(found, "shmring_rank_keeps", 0, session) == [0]


def test_metrics_are_served_on_the_loopback_address_and_written_to_a_file(tmp_path):
    gang = start_ranks(2, wait_for_an_end, str(tmp_path / "end"))
    gang.wait_for("rank 0 waits", [1])
    session = session_of(gang.pids[0])
    command = [sys.executable, "-m", "shmring", "top", "--prometheus", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            for _ in range(2):
                with WITHOUT_PROXY.open(url, timeout=60 * PATIENCE) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    check(answer.read().decode(), session)
            with pytest.raises(urllib.error.HTTPError) as caught:
                WITHOUT_PROXY.open(url.replace("/metrics", "/other"), timeout=60 * PATIENCE)
            caught.value.close()
            assert caught.value.code == 404
        finally:
            process.kill()
    path = tmp_path / "shmring.prom"
    assert status_of_command("top", "--once", "--prometheus-file", str(path)) == 0
    check(path.read_text(), session)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["shmring.prom"]
    (tmp_path / "end").touch()
    gang.results()


def test_labels_are_escaped():
    found = {"jobs": [], "channels": [], "uid": 0}
    job = {"session": 'a"b\\c\nd', "communicators": [{"name": "", "size": 1, "failure": "", "ranks": []}]}
    text = exposition(found | {"jobs": [job]})
    assert 'session="a\\"b\\\\c\\nd"' in text
    labels = frozenset({("session", 'a\\"b\\\\c\\nd'), ("communicator", "")})
    assert ("shmring_communicator_ranks", labels) in parsed(text)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_what_is_no_port_is_refused(port, capsys):
    assert status_of_command("top", "--prometheus", port) == 2
    capsys.readouterr()


def documented_names():
    """The first column of the table of `comm.stats()`."""
    table = (ROOT / "docs/metrics.md").read_text().partition("`comm.stats()` has the following")[2]
    rows = re.findall(r"^\| (`.*?) \|", table.partition("\n## ")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def statistics(comm):
    before = comm.stats()
    comm.all_reduce(np.ones(10))
    comm.barrier()
    after = comm.stats()
    comm.close()
    return before, after, comm.stats()


def test_statistics_count_and_have_the_documented_names():
    for before, after, closed in run_ranks(2, statistics):
        assert set(after) == documented_names()
        assert after["calls"] - before["calls"] == 2
        assert after["bytes"] - before["bytes"] == 80
        assert after["waited_s"] >= before["waited_s"] >= 0
        assert (closed["calls"], closed["bytes"], closed["waited_s"]) == (None, None, None)


def test_every_metric_is_documented():
    text = (ROOT / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in text for name in METRICS)
