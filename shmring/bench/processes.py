"""A competitor's processes: started by its own launcher, asked, watched, and gone without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmring.launch.processes import describe_status, die_with_parent
from shmring.memory.names import user_prefix

from .competitors import Competitor, Stage

GRACE_S = 5.0
PAGE_WORDS = 3 * 16  # for each rank: its place at the start line, and two words for round trips, 128 bytes apart


class TeamFailure(Exception):
    """A competitor cannot go on; the text says why, for its row."""


class Team:
    """The ranks of one competitor, under way from `start` to `end`."""

    def __init__(self, competitor: Competitor, stage: Stage, folder: Path) -> None:
        self.competitor = competitor
        self.stage = stage
        self.folder = folder
        self.version = competitor.title
        self._launchers: list[subprocess.Popen] = []
        self._lines: dict[int, _Line] = {}
        self._shared_files: set[Path] = set()
        self._resources = contextlib.ExitStack()

    @property
    def is_up(self) -> bool:
        """Whether there are ranks to be asked."""
        return bool(self._lines)

    def start(self, patience: float) -> None:
        """Launch the ranks and wait until all have joined their library's world.

        Raises
        ------
        TeamFailure
            They did not come, or not within ``patience`` seconds.
        """
        self.folder.mkdir(exist_ok=True)
        address = f"{user_prefix()[1:]}bench-{secrets.token_hex(8)}"
        deadline = time.monotonic() + patience
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.end)
            log = self._resources.enter_context(open(self.folder / "log", "wb"))
            # An abstract address: no file that could be left.
            listener = self._resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind("\0" + address)
            listener.listen(self.stage.size)
            page = os.memfd_create("start line")
            self._resources.callback(os.close, page)
            os.ftruncate(page, self.stage.size * PAGE_WORDS * 8)
            for command, variables in self.competitor.commands(self.stage, address, self.folder):
                self._launchers.append(
                    subprocess.Popen(
                        command,
                        env=variables,
                        cwd=self.folder,  # Python looks for modules where it is started
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                )
            while len(self._lines) < self.stage.size:
                line = self._welcome(listener, deadline)
                self._lines[line.rank] = line
            for rank, line in self._lines.items():
                line.give_task(self.competitor.task_of(self.stage, rank, self.folder), page)
            answers = self._answers(deadline)
            self.version = answers[0]["version"] or self.version
            self._note_shared_files()
            on_failure.pop_all()

    def ask(self, patience: float, **order: Any) -> list[dict]:
        """Give all ranks an order; their answers by rank.

        Raises
        ------
        TeamFailure
            A rank said that it failed, died, or did not answer in ``patience`` seconds. The team is no more then.
        """
        message = json.dumps(order).encode() + b"\n"
        try:
            for line in self._lines.values():
                line.send(message)
            answers = self._answers(time.monotonic() + patience)
            if order["do"] == "prepare":
                self._note_shared_files()
            return answers
        except TeamFailure:
            self.end()
            raise

    def end(self) -> None:
        """Let the ranks quit, end by force what has not, and remove what they have left in shared memory."""
        for line in self._lines.values():
            with contextlib.suppress(TeamFailure):
                line.send(b'{"do": "quit"}\n')
        deadline = time.monotonic() + (GRACE_S if self._healthy() else 0.2)
        for launcher in self._launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, deadline - time.monotonic()))
        for line in self._lines.values():
            line.kill()
        for launcher in self._launchers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        for line in self._lines.values():
            line.close()
        self._resources.close()
        for path in self._shared_files:
            with contextlib.suppress(OSError):
                path.unlink()
        self._launchers, self._lines = [], {}
        self._shared_files = set()
        self._resources = contextlib.ExitStack()

    def _healthy(self) -> bool:
        return bool(self._lines) and all(line.is_whole for line in self._lines.values())

    def _welcome(self, listener: socket.socket, deadline: float) -> _Line:
        """The next rank to come; of this user's processes only."""
        listener.settimeout(0.1)
        while True:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                for launcher in self._launchers:
                    if launcher.poll():
                        raise TeamFailure(
                            f"its launcher {describe_status(launcher.returncode)}{self._said()}"
                        ) from None
                if time.monotonic() > deadline:
                    raise TeamFailure(f"its ranks did not come in time{self._said()}") from None
                continue
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] == os.getuid():
                return _Line(connection, deadline)
            connection.close()

    def _answers(self, deadline: float) -> list[dict]:
        answers: dict[int, dict] = {}
        with selectors.DefaultSelector() as selector:
            for line in self._lines.values():
                selector.register(line.socket, selectors.EVENT_READ, line)
            while len(answers) < len(self._lines):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    late = ", ".join(map(str, sorted(self._lines.keys() - answers.keys())))
                    raise TeamFailure(f"no answer from rank {late} in time: it hangs, or is far too slow")
                for key, _ in ready:
                    answer = key.data.read(self._said)
                    if answer is not None:
                        answers[key.data.rank] = answer
                        selector.unregister(key.fileobj)
        return [answers[rank] for rank in sorted(answers)]

    def _said(self) -> str:
        """The last thing that its processes printed, which as a rule says why they failed."""
        text = (self.folder / "log").read_text(errors="replace")
        lines = [line.strip(" -=*\t") for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()]
        said = [line for line in lines if line]
        return f": {said[-1][:200]}" if said else ""

    def _note_shared_files(self) -> None:
        """Remember which files of /dev/shm the ranks have mapped: whatever kills them, those shall not stay."""
        for line in self._lines.values():
            self._shared_files |= set(_mapped_shared_files(line.pid))


class _Line:
    """The conductor's end of the line to one rank."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self.is_whole = True
        self._inbox = b""
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        hello: dict | None = None
        while hello is None:
            hello = self.read()
        self.rank, self.pid = hello["rank"], hello["pid"]
        # A descriptor of the process itself: a number could have passed on to a stranger by the time it is killed.
        self._process = os.pidfd_open(self.pid)
        reading, self._liveness = os.pipe()
        self._reading = reading

    def give_task(self, task: dict, page: int) -> None:
        """Tell the rank what to be; with it go the start line's page and the liveness (`worker/control.py`)."""
        socket.send_fds(self.socket, [json.dumps(task).encode() + b"\n"], [page, self._reading])
        os.close(self._reading)
        self._reading = -1

    def send(self, message: bytes) -> None:
        """Send an order."""
        try:
            self.socket.sendall(message)
        except OSError as error:
            self.is_whole = False
            raise TeamFailure(f"rank {self.rank} is gone: {error.strerror}") from None

    def read(self, said: Callable[[], str] = str) -> dict | None:
        """Take what has come; an answer if it is complete."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        self._inbox += data
        if not data:
            self.is_whole = False
            raise TeamFailure(f"rank {getattr(self, 'rank', '?')} died{said()}")
        if not self._inbox.endswith(b"\n"):
            return None
        answer, self._inbox = json.loads(self._inbox), b""
        if "error" in answer:
            self.is_whole = False
            raise TeamFailure(answer["error"])
        return answer

    def kill(self) -> None:
        """End the rank if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it."""
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
