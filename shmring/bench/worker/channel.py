"""The base class of libraries that move messages between two processes, each used as its documentation shows."""

from __future__ import annotations

import queue
import time
from typing import Any, ClassVar

import numpy as np

from .backend import DEATH_S
from .backend import Backend as Base

CAPACITY_NBYTES = 4 << 20  # of each direction, where the library has such a setting
BATCH = 256
RECORD = np.dtype([("time", "f8"), ("price", "f8"), ("volume", "i8"), ("symbol", "i4"), ("side", "i4")])
THINK_S = 0.001


class Backend(Base):
    """One of two ranks. `connect` is called before the second process is forked, `open` in each for each row.

    A subclass sets ``send``, which takes bytes or a contiguous array, and ``recv``, whose result the receiver owns.
    """

    calls: ClassVar = {
        "message": ("send(message)", "recv()"),
        "array": ("send(x)", "recv()"),
        "records": ("send_records(records)", "recv_records()"),
        "round_trip": ("trip()", "send(recv())"),
        "think": ("sleep(pause); trip()", "send(recv())"),
        "idle": ("send(message)", "recv()"),
        "death": ("recv()", "send(message)"),
    }
    # Of copies: a queue's thread may read what was put after the call, when the array is filled again.
    stores: ClassVar = {
        "message": ("send(x.tobytes())", "y.data[:] = recv()"),
        "array": ("send(x.copy())", "y.data[:] = recv()"),
        "records": ("send_records(x.view(RECORD).copy())", "y[:] = recv_records().view(y.dtype)"),
    }
    ends: ClassVar[dict[tuple[str, int], Any]] = {}
    send: Any
    recv: Any

    @classmethod
    def connect(cls, task: dict) -> None:
        """Make what both processes inherit: ``ends``, for each row."""
        cls.ends = {(op, nbytes): cls.pair(op, nbytes, task["kind"]) for op, nbytes in task["rows"]}

    @staticmethod
    def pair(op: str, nbytes: int, kind: str) -> Any:
        """Both directions for messages of so many bytes; the first is from rank 0."""

    def open(self, ends: Any, nbytes: int) -> None:
        """Set ``send`` and ``recv``."""
        raise NotImplementedError

    def recv_within(self, seconds: float) -> Any:
        """Receive; `queue.Empty` if nothing comes within that time."""
        raise NotImplementedError

    def error_of_death(self) -> Exception | None:
        """What the receiver's wait raised, once it has taken all messages; a wait is over after `DEATH_S`."""
        try:
            while True:
                self.recv_within(DEATH_S)
        except queue.Empty:
            return None
        except Exception as error:
            return error

    def send_records(self, records: np.ndarray) -> None:
        """Send a batch; as one message, if the library has no call for batches."""
        self.send(records.view("u1"))

    def recv_records(self) -> np.ndarray:
        """Receive a batch as an array."""
        return np.frombuffer(self.recv(), RECORD)

    def statement(self, problem) -> str:
        self.open(self.ends[problem.op, problem.nbytes], problem.nbytes)
        self.names = {name: getattr(self, name) for name in ("send", "recv", "send_records", "recv_records", "trip")}
        self.names |= {"message": problem.x.tobytes(), "sleep": time.sleep, "pause": THINK_S, "RECORD": RECORD}
        if problem.op == "records":
            self.names["records"] = problem.x.view(RECORD)
        return super().statement(problem)

    def checked(self, problem, statement: str) -> str:
        return self._of_rank(self.stores, problem) if problem.op in self.stores else statement

    def trip(self) -> None:
        """One round trip, timed."""
        start = time.perf_counter_ns()
        self.send(self.names["message"])
        self.recv()
        self.trips.append(time.perf_counter_ns() - start)

    def idle(self, seconds: float) -> dict:
        """Processor microseconds a second of rank 1 while it waits to receive."""
        if self.rank == 0:
            time.sleep(seconds)
            self.send(b"end")
            return {"us": 0.0}
        used, started = time.process_time(), time.perf_counter()
        self.recv()
        return {"us": 1e6 * (time.process_time() - used) / (time.perf_counter() - started)}
