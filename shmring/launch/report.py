"""The report that a rank of `spawn` sends to the process that started it: its result, or its error.

One report for each rank, through a pipe that the parent never blocks on: a rank may stop or die at any byte.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pickle
import struct
import traceback
from typing import NamedTuple

from shmring.communicator import Communicator
from shmring.core.base.followed import is_followed
from shmring.errors import BrokenError, RankFailedError
from shmring.launch.cloudpickling import dumps

_HEADER = struct.Struct("=qqqq")  # kind, status, number of bytes of the text and of the pickle
_MOST_PER_READ = 1 << 20


class Kind(enum.IntEnum):
    """How ``fn`` ended on a rank."""

    RETURNED = 0
    RAISED = 1
    FOLLOWED = 2
    """It raised because another rank had failed."""
    LEFT = 3
    """It raised `SystemExit`."""


class Report(NamedTuple):
    """How ``fn`` ended on a rank, with the pickle of what it returned or raised, which is empty if there is none."""

    kind: Kind
    status: int
    text: str
    pickled: bytes | memoryview

    def send(self, fd: int) -> None:
        """Write the report into a pipe; blocks until all of it is in the pipe or read."""
        text = self.text.encode(errors="backslashreplace")
        header = _HEADER.pack(self.kind, self.status, len(text), len(self.pickled))
        for part in (header, text, self.pickled):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]


class ReportReader:
    """The parent's end of the pipe of one rank."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._received = bytearray()
        self.at_end = False

    def read(self) -> Report | None:
        """Read what is in the pipe, at most 1 MiB of it; the report once it is complete. Never blocks."""
        try:
            received = os.read(self._fd, _MOST_PER_READ)
        except BlockingIOError:
            return None
        self.at_end = not received
        self._received += received
        return self._report()

    def read_rest(self) -> Report | None:
        """Read what a process that has ended left in the pipe; None if it is no complete report."""
        with contextlib.suppress(BlockingIOError):  # a child of that process may hold the other end open
            while received := os.read(self._fd, _MOST_PER_READ):
                self._received += received
        return self._report()

    def _report(self) -> Report | None:
        if len(self._received) < _HEADER.size:
            return None
        kind, status, text_nbytes, pickled_nbytes = _HEADER.unpack_from(self._received)
        if len(self._received) < _HEADER.size + text_nbytes + pickled_nbytes:
            return None
        rest = memoryview(self._received)[_HEADER.size :]
        return Report(Kind(kind), status, str(rest[:text_nbytes], "utf-8"), rest[text_nbytes:])


def report_of_result(result: object) -> Report:
    """The report of a rank on which ``fn`` returned; raises what pickling raises."""
    return Report(Kind.RETURNED, 0, "", dumps(result))


def report_of_failure(error: BaseException) -> Report:
    """The report of a rank on which ``fn`` raised."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, SystemExit):
        status = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        return Report(Kind.LEFT, status, text, b"")
    pickled = b""
    with contextlib.suppress(Exception):  # many an exception cannot be pickled, or cannot be made again
        once = dumps(error)
        if isinstance(pickle.loads(once), BaseException):
            pickled = once
    kind = Kind.FOLLOWED if is_followed(error) else Kind.RAISED
    return Report(kind, 0, text, pickled)


def result_of(report: Report, rank: int) -> object:
    """The result of ``fn`` on this rank."""
    try:
        return pickle.loads(report.pickled)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise RankFailedError(f"the result of rank {rank} cannot be unpickled here: {what}", rank, 0) from error


def error_of(report: Report, rank: int) -> BaseException:
    """The error of ``fn`` on this rank; a `RankFailedError` if it cannot be made again here."""
    error: BaseException | None = None
    if report.pickled:
        with contextlib.suppress(Exception):  # its module may not even exist here
            error = pickle.loads(report.pickled)
    if not isinstance(error, BaseException):
        left = report.kind == Kind.LEFT
        what = f"left with status {report.status}" if left else report.text.rstrip().rpartition("\n")[2]
        error = RankFailedError(f"rank {rank}: {what}", rank, report.status)
    elif hasattr(error, "add_note"):
        error.add_note(f"raised by rank {rank}")
    error.__cause__ = _RemoteTraceback(rank, report.text)
    return error


def leave_after(error: BaseException, comm: Communicator, rank: int) -> None:
    """Close the communicator of a rank on which ``fn`` raised; the other ranks get the reason."""
    with contextlib.suppress(Exception):
        if not isinstance(error, BrokenError):
            comm.abort(f"rank {rank} failed with {_in_short(error)}")
        comm.close()


def _in_short(error: BaseException) -> str:
    """The type and the text of an exception."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # raised by its __str__
        return type(error).__name__


class _RemoteTraceback(Exception):
    """Carries a rank's traceback as text, to be shown as the cause of the error raised here."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f"\n\non rank {self.rank}:\n{self.text}"
