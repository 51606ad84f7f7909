"""Libraries that move messages between two Python processes, each used by the calls that its documentation shows.

A `Peer` is made before the fork; then `enter` is called in each of the two processes. It has two directions: process 0
sends in the first and receives in the second.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import queue
import tempfile
import time
import uuid
from typing import Any

import numpy as np

import shmring

CAPACITY_NBYTES = 4 << 20  # of each direction, where the library has such a setting

RECORD = np.dtype([("time", "f8"), ("price", "f8"), ("volume", "i8"), ("symbol", "i4"), ("side", "i4")])


class Peer:
    """Two directions between two processes."""

    needs = ""  # the module to be imported
    title = ""

    def __init__(self, longest_nbytes: int) -> None:
        pass

    def enter(self, side: int) -> None:
        """Called once in each process, after the fork."""

    def send(self, message: Any) -> None:
        """Bytes, or a contiguous array."""
        raise NotImplementedError

    def recv(self) -> Any:
        """Bytes that the receiver owns; an array as bytes or as an array."""
        raise NotImplementedError

    def send_records(self, records: np.ndarray) -> None:
        """A batch; as one message if the library has no call for batches."""
        self.send(records.view("u1").data)

    def recv_records(self) -> int:
        """Receive a batch as an array; its length."""
        return len(np.frombuffer(self.recv(), RECORD))

    def detects_death(self, seconds: float) -> bool:
        """Wait to receive; whether an error reported within that time that the other process is dead."""
        raise NotImplementedError


class Shmring(Peer):
    """shmring.channel"""

    title = "shmring channel"
    dtype: np.dtype | None = None

    def __init__(self, longest_nbytes: int) -> None:
        self.ends = [shmring.channel(CAPACITY_NBYTES, dtype=self.dtype) for _ in range(2)]

    def enter(self, side: int) -> None:
        self.sender = self.ends[side][0].take()
        self.receiver = self.ends[1 - side][1].take()
        self.send, self.recv = self.sender.send, self.receiver.recv  # type: ignore[method-assign]

    def detects_death(self, seconds: float) -> bool:
        try:
            self.receiver.recv(seconds)
        except shmring.PeerLostError:
            return True
        except queue.Empty:
            return False
        raise AssertionError


class ShmringRecords(Shmring):
    """shmring.channel of records: for the batches"""

    dtype = RECORD

    def send_records(self, records: np.ndarray) -> None:
        self.sender.send_many(records)

    def recv_records(self) -> int:
        return len(self.receiver.recv_many())


class ShmringQueue(Peer):
    """shmring.Queue"""

    title = "shmring Queue"
    queues: list[Any]

    def __init__(self, longest_nbytes: int) -> None:
        self.queues = [shmring.Queue(capacity_nbytes=CAPACITY_NBYTES) for _ in range(2)]

    def enter(self, side: int) -> None:
        self.send, self.recv = self.queues[side].put, self.queues[1 - side].get  # type: ignore[method-assign]

    def send_records(self, records: np.ndarray) -> None:
        self.send(records)

    def recv_records(self) -> int:
        return len(self.recv())

    def detects_death(self, seconds: float) -> bool:
        try:
            self.recv(timeout=seconds)  # type: ignore[call-arg]
        except queue.Empty:
            return False
        raise AssertionError


class StandardQueue(ShmringQueue):
    """multiprocessing.Queue"""

    title = "multiprocessing.Queue"

    def __init__(self, longest_nbytes: int) -> None:
        # Bounded as the others are: else the time would be that of a copy into the buffer of its feeder thread.
        self.queues = [multiprocessing.Queue(max(2, CAPACITY_NBYTES // max(longest_nbytes, 1024))) for _ in range(2)]


class StandardSimpleQueue(ShmringQueue):
    """multiprocessing.SimpleQueue"""

    title = "multiprocessing.SimpleQueue"

    def __init__(self, longest_nbytes: int) -> None:
        self.queues = [multiprocessing.SimpleQueue() for _ in range(2)]

    def detects_death(self, seconds: float) -> bool:
        return _end_of_file(self.queues[0]._reader, seconds, self.recv)


class StandardPipe(Peer):
    """multiprocessing.Pipe, send_bytes and recv_bytes"""

    title = "multiprocessing.Pipe"

    def __init__(self, longest_nbytes: int) -> None:
        self.ends = multiprocessing.Pipe()

    def enter(self, side: int) -> None:
        self.ends[1 - side].close()
        self.end = self.ends[side]
        self.send, self.recv = self.end.send_bytes, self.end.recv_bytes  # type: ignore[assignment, method-assign]

    def send_records(self, records: np.ndarray) -> None:
        self.send(records.view("u1"))

    def detects_death(self, seconds: float) -> bool:
        return _end_of_file(self.end, seconds, self.recv)


def _end_of_file(end: Any, seconds: float, recv: Any) -> bool:
    if not end.poll(seconds):
        return False
    try:
        recv()
    except EOFError:
        return True
    raise AssertionError


class FasterFifo(Peer):
    """faster_fifo.Queue"""

    needs = "faster_fifo"
    title = "faster-fifo"

    def __init__(self, longest_nbytes: int) -> None:
        import faster_fifo

        nbytes = max(CAPACITY_NBYTES, 2 * longest_nbytes + 4096)  # what is longer than its ring never fits
        # What are bytes already need no pickle.
        self.queues = [faster_fifo.Queue(nbytes, loads=bytes, dumps=bytes) for _ in range(2)]

    def enter(self, side: int) -> None:
        self.outward, self.inward = self.queues[side], self.queues[1 - side]

    def send(self, message: Any) -> None:
        if isinstance(message, np.ndarray):
            message = message.view("u1")
        self.outward.put(message, timeout=1000)  # its default gives up after ten seconds

    def recv(self) -> Any:
        return self.inward.get(timeout=1000)

    def send_records(self, records: np.ndarray) -> None:
        self.send(records)

    def detects_death(self, seconds: float) -> bool:
        try:
            self.inward.get(timeout=seconds)
        except queue.Empty:
            return False
        raise AssertionError


class ZeroMQ(Peer):
    """zmq PAIR sockets over ipc"""

    needs = "zmq"
    title = "pyzmq ipc"

    def __init__(self, longest_nbytes: int) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"shmring-bench-{uuid.uuid4().hex}")

    def enter(self, side: int) -> None:
        import zmq

        self.zmq = zmq
        self.socket = zmq.Context().socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        (self.socket.bind if side == 0 else self.socket.connect)(f"ipc://{self.path}")
        self.send, self.recv = self.socket.send, self.socket.recv  # type: ignore[method-assign]

    def detects_death(self, seconds: float) -> bool:
        return self.socket.poll(int(seconds * 1000)) != 0


class Iceoryx2(Peer):
    """iceoryx2 publish/subscribe of byte slices, and an event to wake the receiver"""

    needs = "iceoryx2"
    title = "iceoryx2"

    def __init__(self, longest_nbytes: int) -> None:
        self.name, self.longest_nbytes = f"shmring-bench-{uuid.uuid4().hex}", longest_nbytes

    def enter(self, side: int) -> None:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Fatal)
        self.node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        self.tick = iox.Duration.from_millis(100)
        ports = [self._service(iox, direction) for direction in range(2)]
        service, event = ports[side]
        strategy = iox.BackpressureStrategy.RetryUntilDelivered
        builder = service.publisher_builder().initial_max_slice_len(max(self.longest_nbytes, 64))
        self.publisher = builder.backpressure_strategy(strategy).create()
        self.notifier = event.notifier_builder().create()
        service, event = ports[1 - side]
        self.subscriber = service.subscriber_builder().create()
        self.listener = event.listener_builder().create()
        self.ports = ports

    def _service(self, iox: Any, direction: int) -> tuple[Any, Any]:
        name = iox.ServiceName.new(f"{self.name}/{direction}")
        service = self.node.service_builder(name).publish_subscribe(iox.Slice[ctypes.c_uint8])
        depth = max(2, min(256, CAPACITY_NBYTES // max(self.longest_nbytes, 64)))
        service = service.enable_safe_overflow(False).subscriber_max_buffer_size(depth).open_or_create()
        return service, self.node.service_builder(name).event().open_or_create()

    def send(self, message: Any) -> None:
        array = np.frombuffer(message, np.uint8) if not isinstance(message, np.ndarray) else message
        loan = self.publisher.loan_slice_uninit(array.nbytes)
        ctypes.memmove(loan.payload_ptr, array.ctypes.data, array.nbytes)
        loan.assume_init().send()
        self.notifier.notify()

    def recv(self) -> Any:
        while (sample := self.subscriber.receive()) is None:
            self.listener.timed_wait(self.tick)
        return bytes(sample.payload().as_memory_view())

    def send_records(self, records: np.ndarray) -> None:
        self.send(records)

    def detects_death(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.subscriber.receive() is not None:
                raise AssertionError
            self.listener.timed_wait(self.tick)
        return False


PEERS: dict[str, type[Peer]] = {
    "shmring": Shmring,
    "shmring-queue": ShmringQueue,
    "mp-queue": StandardQueue,
    "mp-simplequeue": StandardSimpleQueue,
    "mp-pipe": StandardPipe,
    "faster-fifo": FasterFifo,
    "pyzmq": ZeroMQ,
    "iceoryx2": Iceoryx2,
}


def find(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The peers that can take part, with their versions, and why the others cannot."""
    there, missing = {}, {}
    for name in names:
        needs = PEERS[name].needs
        try:
            module = importlib.import_module(needs) if needs else shmring
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
            continue
        there[name] = _version_of(needs) if needs else "" if name.startswith("mp-") else module.__version__
    return there, missing


def _version_of(module: str) -> str:
    from importlib import metadata

    return metadata.version({"zmq": "pyzmq", "faster_fifo": "faster-fifo"}.get(module, module))
