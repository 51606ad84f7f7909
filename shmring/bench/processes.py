"""The processes of one competitor: start them with its own launcher, send orders, watch them, clean up after them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from shmring.launch.processes import describe_status, die_with_parent
from shmring.memory.spelling import user_prefix

from .competitors import Competitor, RankLayout

GRACE_S = 5.0
PAGE_WORDS = 3 * 16  # per rank: its word of the start barrier and two words for round trips, 128 bytes apart


class CompetitorFailure(Exception):
    """A competitor cannot continue; the text is the reason, shown in its row."""


class CompetitorProcesses:
    """The ranks of one competitor, running from `start` to `end`."""

    def __init__(self, competitor: Competitor, layout: RankLayout, folder: Path) -> None:
        self.competitor = competitor
        self.layout = layout
        self.folder = folder
        self.version = competitor.title
        self._launchers: list[subprocess.Popen] = []
        self._connections: dict[int, _RankConnection] = {}
        self._shared_files: set[Path] = set()
        self._page = -1  # of the start barrier; its last word is when a rank killed itself
        self._resources = contextlib.ExitStack()

    @property
    def is_up(self) -> bool:
        """Whether the ranks are running."""
        return bool(self._connections)

    def start(self, patience: float) -> None:
        """Launch the ranks and wait until all have initialised their library.

        Raises
        ------
        CompetitorFailure
            The ranks did not connect within ``patience`` seconds.
        """
        shutil.rmtree(self.folder, ignore_errors=True)  # where ranks met that have ended
        self.folder.mkdir()
        address = f"{user_prefix()[1:]}bench-{secrets.token_hex(8)}"
        deadline = time.monotonic() + patience
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.end)
            log = self._resources.enter_context(open(self.folder / "log", "wb"))
            # An abstract address leaves no file behind.
            listener = self._resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind("\0" + address)
            listener.listen(self.layout.size)
            page = self._page = os.memfd_create("start barrier")
            self._resources.callback(os.close, page)
            os.ftruncate(page, self.layout.size * PAGE_WORDS * 8)
            for command, variables in self.competitor.commands(self.layout, address, self.folder):
                self._launchers.append(
                    subprocess.Popen(
                        command,
                        env=variables,
                        cwd=self.folder,  # Python imports modules from its current directory
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                )
            while len(self._connections) < self.layout.size:
                connection = self._accept_rank(listener, deadline)
                self._connections[connection.rank] = connection
            for rank, connection in self._connections.items():
                connection.give_task(self.competitor.task_of(self.layout, rank, self.folder), page)
            answers = self._answers(deadline)
            self.version = answers[0]["version"] or self.version
            self._note_shared_files()
            on_failure.pop_all()

    def ask(self, patience: float, **order: Any) -> list[dict]:
        """Send an order to all ranks and return their answers by rank.

        Raises
        ------
        CompetitorFailure
            A rank reported a failure, died, or did not answer in ``patience`` seconds. All ranks have been ended.
        """
        try:
            self._send(order)
            answers = self._answers(time.monotonic() + patience)
            if order["do"] == "prepare":
                self._note_shared_files()
            return answers
        except CompetitorFailure:
            self.end()
            raise

    def kill_last(self, patience: float) -> list[dict]:
        """Make the last rank kill itself, and the others call; return the answers of these, or how they ended.

        All ranks have been ended then.
        """
        self._send({"do": "once", "what": "death"})
        *survivors, dead = sorted(self._connections)
        found = {rank: {"seen": f"waits for more than {patience:g} s"} for rank in survivors}
        for rank, answer in self._arriving(survivors, time.monotonic() + patience):
            if isinstance(answer, CompetitorFailure):
                word = os.pread(self._page, 8, self.layout.size * PAGE_WORDS * 8 - 8)
                us = (time.perf_counter_ns() - int.from_bytes(word, sys.byteorder)) / 1e3
                answer = {"us": us, "seen": "is ended by the launcher"}
            found[rank] = answer
        self._connections[dead].is_whole = False
        self.end()
        return list(found.values())

    def end(self) -> None:
        """Ask the ranks to quit, kill those that do not, and remove their files from shared memory."""
        for connection in self._connections.values():
            with contextlib.suppress(CompetitorFailure):
                connection.send(b'{"do": "quit"}\n')
        deadline = time.monotonic() + (GRACE_S if self._all_connected() else 0.2)
        for launcher in self._launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, deadline - time.monotonic()))
        for connection in self._connections.values():
            connection.kill()
        for launcher in self._launchers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        for connection in self._connections.values():
            connection.close()
        self._resources.close()
        for path in self._shared_files:
            with contextlib.suppress(OSError):
                path.unlink()
        self._launchers, self._connections = [], {}
        self._shared_files = set()
        self._resources = contextlib.ExitStack()

    def _send(self, order: dict[str, Any]) -> None:
        message = json.dumps(order).encode() + b"\n"
        for connection in self._connections.values():
            connection.send(message)

    def _all_connected(self) -> bool:
        return bool(self._connections) and all(connection.is_whole for connection in self._connections.values())

    def _accept_rank(self, listener: socket.socket, deadline: float) -> _RankConnection:
        """Accept the next rank; connections of other users are closed."""
        listener.settimeout(0.1)
        while True:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                for launcher in self._launchers:
                    if launcher.poll():
                        raise CompetitorFailure(
                            f"its launcher {describe_status(launcher.returncode)}{self._last_output()}"
                        ) from None
                if time.monotonic() > deadline:
                    raise CompetitorFailure(f"its ranks did not connect in time{self._last_output()}") from None
                continue
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] == os.getuid():
                return _RankConnection(connection, deadline)
            connection.close()

    def _answers(self, deadline: float) -> list[dict]:
        answers: dict[int, dict] = {}
        for rank, answer in self._arriving(self._connections, deadline):
            if isinstance(answer, CompetitorFailure):
                raise answer
            answers[rank] = answer
        if missing := sorted(self._connections.keys() - answers.keys()):
            late = ", ".join(map(str, missing))
            raise CompetitorFailure(f"no answer from rank {late} in time: it hangs, or is far too slow")
        return [answers[rank] for rank in sorted(answers)]

    def _arriving(self, ranks: Iterable[int], deadline: float) -> Iterator[tuple[int, dict | CompetitorFailure]]:
        """Each of these ranks with its answer, or the reason that it cannot give one, as they come; to the deadline."""
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self._connections[rank].socket, selectors.EVENT_READ, self._connections[rank])
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for key, _ in ready:
                    answer: dict | CompetitorFailure | None
                    try:
                        answer = key.data.read(self._last_output)
                    except CompetitorFailure as failure:
                        answer = failure
                    if answer is not None:
                        selector.unregister(key.fileobj)
                        yield key.data.rank, answer

    def _last_output(self) -> str:
        """The last line that the processes printed: usually the reason of a failure."""
        text = (self.folder / "log").read_text(errors="replace")
        lines = [line.strip(" -=*\t") for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()]
        printed = [line for line in lines if line]
        return f": {printed[-1][:200]}" if printed else ""

    def _note_shared_files(self) -> None:
        """Record the files of /dev/shm that the ranks have mapped, to remove them even if the ranks are killed."""
        for connection in self._connections.values():
            self._shared_files |= set(_mapped_shared_files(connection.pid))


class _RankConnection:
    """The runner's end of the connection to one rank."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self.is_whole = True
        self._inbox = b""
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        hello: dict | None = None
        while hello is None:
            hello = self.read()
        self.rank, self.pid = hello["rank"], hello["pid"]
        # A pidfd, because the kernel may reuse the pid before the process is killed.
        self._process = os.pidfd_open(self.pid)
        reading, self._liveness = os.pipe()
        self._reading = reading

    def give_task(self, task: dict, page: int) -> None:
        """Send the rank its task, with the descriptors of the start barrier's page and of the liveness pipe."""
        socket.send_fds(self.socket, [json.dumps(task).encode() + b"\n"], [page, self._reading])
        os.close(self._reading)
        self._reading = -1

    def send(self, message: bytes) -> None:
        """Send an order."""
        try:
            self.socket.sendall(message)
        except OSError as error:
            self.is_whole = False
            raise CompetitorFailure(f"cannot send to rank {self.rank}: {error.strerror}") from None

    def read(self, last_output: Callable[[], str] = str) -> dict | None:
        """Read what has arrived; returns an answer once it is complete."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        self._inbox += data
        if not data:
            self.is_whole = False
            raise CompetitorFailure(f"rank {getattr(self, 'rank', '?')} died{last_output()}")
        if not self._inbox.endswith(b"\n"):
            return None
        answer, self._inbox = json.loads(self._inbox), b""
        if "error" in answer:
            self.is_whole = False
            raise CompetitorFailure(answer["error"])
        return answer

    def kill(self) -> None:
        """Kill the rank if it is still alive."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in (self._process, self._liveness, self._reading):
            if descriptor >= 0:
                os.close(descriptor)
        self.socket.close()


def _mapped_shared_files(pid: int) -> Iterator[Path]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return
    for name in set(re.findall(r" (/dev/shm/[^\n]*?)$", maps, re.MULTILINE)):
        if not name.endswith(" (deleted)"):
            yield Path(name)
