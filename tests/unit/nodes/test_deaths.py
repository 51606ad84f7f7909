"""The TCP connections by which ranks notice that one of another node has died; a thread here is a rank."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from queue import Queue

import pytest

from shmring.nodes import addresses, deaths
from shmring.nodes.deaths import DeathWatch

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def reachable(monkeypatch):
    monkeypatch.setattr(deaths, "_unreachable", False)
    for module, name in ((addresses, "ADDRESS_S"), (deaths, "CONNECT_S"), (deaths, "JOIN_S")):
        monkeypatch.setattr(module, name, PATIENCE_S)


class Group:
    """The watches of all ranks, made at once; ``noted[rank]`` are the deaths that it noticed."""

    def __init__(self, *nodes, change=lambda texts: texts):
        self.size = sum(map(len, nodes))
        self.noted = [Queue() for _ in range(self.size)]
        self.watches = [None] * self.size
        self._texts = [""] * self.size
        self._change = change
        self._barrier = threading.Barrier(self.size)
        threads = [threading.Thread(target=self._make, args=(nodes, rank)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert None not in self.watches

    def _make(self, nodes, rank):
        def exchange(text):
            self._texts[rank] = text
            self._barrier.wait(PATIENCE_S)
            return self._change(list(self._texts))

        watch = DeathWatch("test", nodes, rank, exchange)
        watch.start(self.noted[rank].put)
        self.watches[rank] = watch

    def kill(self, rank):
        """What the kernel does when a process dies, which itself notices nothing."""
        self.watches[rank]._send = self.watches[rank]._lost = lambda *args: None
        for s in list(self.watches[rank]._peers):
            s.shutdown(socket.SHUT_RDWR)

    def close(self, *ranks):
        for rank in ranks or range(self.size):
            self.watches[rank].close()

    def all_note(self, rank, survivors):
        assert [self.noted[r].get(timeout=PATIENCE_S) for r in survivors] == [rank] * len(survivors)


@pytest.mark.parametrize("nodes", [([0], [1]), ([0, 1], [2, 3]), ([0, 2], [1, 3], [4])], ids=str)
def test_all_ranks_notice_the_death_of_any(nodes):
    for victim in (r for ranks in nodes for r in ranks):
        group = Group(*nodes)
        group.kill(victim)
        group.all_note(victim, [r for r in range(group.size) if r != victim])
        group.close()


def test_ranks_that_close_are_not_dead():
    group = Group([0, 1], [2, 3])
    group.close(1, 2)
    group.close(2)
    group.close(0, 3)
    assert all(queue.empty() for queue in group.noted)


def test_a_death_is_noticed_after_others_have_closed():
    group = Group([0, 1], [2], [3])
    group.close(1, 2)
    group.kill(3)
    group.all_note(3, [0])
    group.close()


def test_a_death_before_the_communicator_is_complete_is_not_lost():
    group = Group([0], [1])
    seen = Queue()
    group.watches[0]._lost = None
    group.kill(1)
    while not group.watches[0]._dead:
        time.sleep(0.001)
    group.watches[0].start(seen.put)
    assert seen.get_nowait() == 1
    group.close()


def test_all_sockets_and_the_thread_are_gone_after_close():
    before = len(os.listdir("/proc/self/fd"))
    group = Group([0, 1], [2, 3])
    group.close()
    assert not any(watch._thread.is_alive() for watch in group.watches)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_does_not_keep_a_connection_open():
    group = Group([0], [1])
    group.watches[0]._lost = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        pid = os.fork()
    if pid == 0:
        for watch in group.watches:
            watch.disown()
        signal.pause()
    group.watches[1]._send = group.watches[0]._send = lambda *args: None
    peers = list(group.watches[0]._peers)
    group.watches[0].close()  # without a word, as _send does nothing: to rank 1 it has died
    assert all(s.fileno() == -1 for s in peers)
    group.all_note(0, [1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    group.close()


def test_strangers_at_the_port_change_nothing():
    group = Group([0], [1])  # its port is closed now, since all are there
    seen = []

    def with_strangers(texts):
        if not seen:
            seen.append(True)
            port = int(texts[0].split()[1].partition("/")[0])
            for words in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 20, os.urandom(16) + struct.pack("<I", 1)):
                s = socket.create_connection(("127.0.0.1", port))
                s.sendall(words)
                strangers.append(s)
        return texts

    strangers = []
    other = Group([0], [1], change=with_strangers)
    for s in strangers:
        s.close()
    other.kill(1)
    other.all_note(1, [0])
    assert group.noted[0].empty()
    other.close()
    group.close()


def test_each_address_of_a_name_is_tried(monkeypatch):
    real = socket.getaddrinfo

    def several(host, port, **options):
        if host != "several":
            return real(host, port, **options)
        closed = socket.create_server(("127.0.0.1", 0))  # nothing listens there once it is closed
        dead = closed.getsockname()[1]
        closed.close()
        silent = socket.create_server(("127.0.0.1", 0))  # accepts, but never answers
        quiet.append(silent)
        return answers(dead, silent.getsockname()[1], port)

    def answers(dead, silent, port):
        for one in (dead, silent, port):
            monkeypatch.setattr(addresses, "ADDRESS_S", 0.2 if one == silent else PATIENCE_S)
            yield socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one)

    quiet = []
    monkeypatch.setattr(socket, "getaddrinfo", several)

    def by_name(texts):
        key, *places = texts[0].split()
        return [f"{key} 1/does-not-exist.invalid {places[0].partition('/')[0]}/several", *texts[1:]]

    group = Group([0], [1], change=by_name)
    assert quiet
    assert group.watches[1].is_connected
    group.kill(1)
    group.all_note(1, [0])
    group.close()
    for s in quiet:
        s.close()


def test_a_rank_whose_first_connection_was_answered_too_late_has_not_died(monkeypatch):
    def twice(host, port, **options):
        for host, patience_s in (("127.0.0.1", 0.2), ("127.0.0.2", PATIENCE_S)):
            monkeypatch.setattr(addresses, "ADDRESS_S", patience_s)
            yield socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port))
            given_up.set()

    def greet_late(watch, s, peer):
        given_up.wait(PATIENCE_S)
        return greet(watch, s, peer)

    given_up = threading.Event()
    greet = DeathWatch._greet
    monkeypatch.setattr(socket, "getaddrinfo", twice)
    monkeypatch.setattr(DeathWatch, "_greet", greet_late)
    group = Group([0], [1])
    assert group.watches[1].is_connected
    assert group.noted[0].empty()
    group.kill(1)
    group.all_note(1, [0])
    group.close()


def test_a_rank_without_a_way_warns_and_works_on(monkeypatch):
    seen = []
    monkeypatch.setattr(deaths.warnings, "warn", lambda text, kind, **_: seen.append((text, kind)))
    group = Group([0], [1], change=lambda texts: [texts[0].split()[0] + " 1/127.0.0.1", *texts[1:]])
    (text, kind), = seen
    assert kind is RuntimeWarning
    assert "rank 1 has no TCP connection to rank 0" in text
    assert deaths.ENABLED in text
    assert not group.watches[1].is_connected
    group.close()


def test_connections_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(deaths.ENABLED, "0")
    group = Group([0, 1], [2])
    assert not any(watch.is_connected for watch in group.watches)
    group.close()


def test_the_card_has_numbers_before_the_name_and_loopback_last():
    listeners = addresses.listen()
    places = addresses.card(listeners)
    assert {int(place.partition("/")[0]) for place in places} == {s.getsockname()[1] for s in listeners}
    hosts = [place.partition("/")[2] for place in places]
    named = hosts.index(socket.gethostname())
    assert "127.0.0.1" not in hosts[:named]
    assert "127.0.0.1" in hosts[named:]
    for s in listeners:
        s.close()


def test_a_killed_process_is_noticed_by_one_that_does_not_wait(tmp_path):
    """Two processes; the kernel closes the connection."""
    program = (
        "import sys, time, os, pathlib\n"
        "from shmring.nodes.deaths import DeathWatch\n"
        "folder, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])\n"
        "def exchange(text):\n"
        "    folder.joinpath(f'{rank}.part').write_text(text)\n"
        "    folder.joinpath(f'{rank}.part').rename(folder / f'{rank}')\n"
        "    while not all((folder / str(r)).exists() for r in (0, 1)): time.sleep(0.001)\n"
        "    return [(folder / str(r)).read_text() for r in (0, 1)]\n"
        "watch = DeathWatch('test', [[0], [1]], rank, exchange)\n"
        "watch.start(lambda lost: (print('lost', lost, flush=True), os._exit(0)))\n"
        "print('ready', watch.is_connected, flush=True)\n"
        "time.sleep(60)\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(r)], stdout=subprocess.PIPE, text=True)
        for r in (0, 1)
    ]
    for rank in ranks:
        assert rank.stdout.readline() == "ready True\n"
    ranks[0].kill()
    assert ranks[1].stdout.readline() == "lost 0\n"
    for rank in ranks:
        rank.stdout.close()
        rank.wait()
